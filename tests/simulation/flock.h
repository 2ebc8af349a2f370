/* SPDX-License-Identifier: Apache-2.0
 *
 * A flock of simulated boxes in one process: firmware that asks by DHCP (raw frames), fetches its
 * boot file by TFTP or HTTP, and then is a duck: the real core, started with what the boot file and
 * the DHCP answer say. Boxes have a power switch each (a control socket) and can be told to hang.
 *
 * Files: flock.c (start, loop, life of a box), flock_dhcp.c, flock_fetch.c, flock_platform.c (the
 * core's platform), flock_control.c.
 */
#ifndef FLOCK_H
#define FLOCK_H

#include "core.h"
#include <netinet/in.h>
#include <stdbool.h>

#define BOXES_MAX 4096
#define IMAGE_BYTES_MAX (8u << 20)
#define FILE_NAME_BYTES 512

enum phase { OFF, FIRMWARE, DISCOVER, REQUEST, FETCH, STARTING, UP, HUNG };

struct fetch {
    int fd; /* -1: none */
    bool is_http, head_done, connected;
    uint8_t *data;
    size_t size, capacity, expected;
    uint16_t block; /* TFTP: the last one received */
    uint16_t block_bytes;
    struct sockaddr_in peer;
    char header[2048]; /* of the HTTP answer, as far as it came */
    size_t header_bytes;
    bool in_body;
};

struct box {
    char name[DUCK_WIRE_NAME_BYTES]; /* for the control socket; the duck gets its name by DHCP */
    uint8_t mac[6];
    uint16_t arch;              /* DHCP option 93 */
    enum phase phase, stops_in; /* stops_in: a later boot hangs there; OFF: nowhere */
    uint64_t due_ns;            /* next time that something is to be done */
    unsigned tries;
    uint32_t xid, address, server; /* network byte order, but for xid */
    char file[FILE_NAME_BYTES];
    char told_name[DUCK_WIRE_NAME_BYTES];
    struct fetch fetch;
    uint32_t boots, switched, obeyed;
    struct duck_core *core;
};

extern struct box *boxes;
extern int box_count;
extern int poller; /* epoll */
extern uint64_t firmware_ns, image_start_ns;

uint64_t random_below(uint64_t limit);
_Noreturn void die(const char *what);
struct box *box_by_address(uint32_t address);
void box_enter(struct box *box, enum phase phase, uint64_t in_ns);
void box_power(struct box *box, bool on);
void box_hears_lease(struct box *box);

/* flock_dhcp.c */
int dhcp_open(const char *interface);
void dhcp_send(struct box *box, bool is_request);
void dhcp_receive(int fd);
uint64_t dhcp_patience_ns(unsigned tries);

/* flock_fetch.c */
void fetch_start(struct box *box);
void fetch_ready(struct box *box);
void fetch_late(struct box *box);
void fetch_end(struct box *box);

/* flock_platform.c */
int platform_open(uint16_t port);
bool platform_start(struct box *box); /* false: the boot file is none of ours */
void platform_stop(struct box *box);
void platform_receive(int fd);
void platform_tick(struct box *box);

/* flock_control.c */
int control_open(const char *path);
void control_receive(int fd);
int control_ask(const char *path, int count, char **words);

#endif
