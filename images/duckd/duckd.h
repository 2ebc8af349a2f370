/* SPDX-License-Identifier: Apache-2.0
 *
 * duckd: the duck as a Linux process. What its files offer each other.
 */
#ifndef DUCKD_H
#define DUCKD_H

#include "../core/core.h"
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>

#define LISTEN_MAX 16
#define SOCKETS_MAX (2 * LISTEN_MAX) /* each listening address may bring its broadcast address */
#define EXIT_FAILED 1
#define EXIT_USAGE 2
#define EXIT_REBOOT 3 /* --image: asked to reboot the machine (images/linux) */

/* ---- options.c ------------------------------------------------------------------------------- */
struct options {
    char name[DUCK_WIRE_NAME_BYTES];
    struct sockaddr_in listen[LISTEN_MAX];
    int listen_count;
    const char *fleet_public_file;
    const char *identity_file; /* NULL: another identity at each start */
    const char *log_file;
    uint32_t core_count;   /* resolved: at least 1 */
    uint64_t memory_limit; /* 0 = 90 % of what is available at the start */
    enum duck_poll_policy poll;
    bool pin;
    bool huge_pages;
    bool image;     /* part of the Linux image: REBOOT is for process 1, which restarts the box */
    bool restarted; /* after REBOOT: the ready line was printed before */
    /* duckd run */
    const char *kernel_file, *input_file, *output_file, *weights_file;
    uint32_t time_limit_ms;
};
/* These end the process with EXIT_USAGE when the command line is wrong. */
void options_parse(int count, char **words, struct options *options);
void options_parse_run(int count, char **words, struct options *options);
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- keyfile.c ------------------------------------------------------------------------------- */
void fleet_public_read(const char *path, uint8_t key[DUCK_WIRE_PUBLIC_BYTES]);
/* Makes the file when it is not there. */
void identity_read(const char *path, uint8_t key[DUCK_WIRE_KEY_BYTES]);

/* ---- sockets.c ------------------------------------------------------------------------------- */
void sockets_open(struct options *options);
int sockets_receive(struct duck_core *core); /* packets handled */
void sockets_flush(void);
int sockets_poll_set(struct pollfd *set); /* fills and returns the count */
struct sockaddr_in sockets_address(int index);

/* ---- memory.c -------------------------------------------------------------------------------- */
void memory_init(uint64_t limit, bool huge_pages);
int memory_region_fd(uint32_t region);
uint64_t memory_region_map_bytes(uint32_t region);
bool memory_in_huge_pages(uint32_t region);
void memory_session_take(uint64_t bytes);
void memory_session_give_back(void);

/* Move a descriptor above every number in enum session_fd, so that giving the child its own never
 * closes another. */
int memory_high_fd(int fd);

/* ---- session.c ------------------------------------------------------------------------------- */
void session_init(const struct options *options);
int session_poll_set(struct pollfd *set); /* 0 or 2 entries: complete, ended */
void session_polled(const struct pollfd *set, int count);
/* Tell the child whether complete() must wake us; false: a call was completed just now, so do not
 * sleep. */
bool session_going_to_sleep(void);
void session_awake(void);
bool session_has_news(void); /* a call was completed since the last look */
const struct session_shared *session_memory(void);

/* ---- machine.c ------------------------------------------------------------------------------- */
void machine_init(const struct options *options);
void machine_read_link(uint16_t interface, struct in_addr address);
uint64_t machine_memory_available(void);
uint64_t machine_free_huge_pages(void); /* of 2 MiB */
uint32_t machine_allowed_cpus(void);
/* The broadcast address of the network that has this local address, or 0. */
struct in_addr machine_broadcast(struct in_addr address);

/* ---- logfile.c ------------------------------------------------------------------------------- */
void logfile_open(const char *name, const char *path);

/* ---- main.c, daemon.c, run_once.c ------------------------------------------------------------ */
extern char **duckd_arguments; /* of main, for the restart */
int daemon_main(struct options *options);
int run_once_main(const struct options *options);
void restart_self(void);

#endif
