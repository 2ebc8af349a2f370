/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck's life: look at the network, do what is due, and wait for more in the way the poll
 * policy says.
 */
#include "duckd.h"
#include "session_shared.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define ALONE_NS 1000u          /* sched_yield() without anybody to yield to is shorter */
#define LOOKS_ALONE 8u          /* then so many looks without asking */
#define SIGNAL_LOOK_INTERVAL 64 /* rounds of the loop between two looks when it never blocks */

static struct duck_core core;
static int signals = -1;
static bool must_restart;

uint64_t plat_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void plat_random(void *out, size_t bytes) {
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) fail("getrandom: %s", strerror(errno));
}

void plat_reboot(void) { must_restart = true; }

/* ---- start ----------------------------------------------------------------------------------- */

static int hex_digit(char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

static void read_config(const struct options *options, struct core_config *config) {
    /* Read from the text that stands in the file, which `duckd --version` shows too. */
    const char *volatile text = DUCK_BUILD_HASH;
    const char *build = text;
    memset(config, 0, sizeof *config);
    fleet_public_read(options->fleet_public_file, config->fleet_public);
    if (options->identity_file != NULL)
        identity_read(options->identity_file, config->identity_private);
    else
        plat_random(config->identity_private, sizeof config->identity_private);
    memcpy(config->name, options->name, sizeof config->name);
    for (size_t i = 0; i < sizeof config->build; i++)
        config->build[i] = (uint8_t)(hex_digit(build[2 * i]) << 4 | hex_digit(build[2 * i + 1]));
}

static void say_ready(const struct options *options) {
    printf("duckd ready name=%s listen=", options->name);
    for (int i = 0; i < options->listen_count; i++) {
        struct sockaddr_in address = sockets_address(i);
        printf("%s%s:%u", i == 0 ? "" : ",", inet_ntoa(address.sin_addr), ntohs(address.sin_port));
    }
    printf(" pid=%d build=%s\n", (int)getpid(), DUCK_BUILD_HASH);
    fflush(stdout);
}

static void catch_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) fail("signalfd: %s", strerror(errno));
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool signal_came(void) {
    struct signalfd_siginfo info;
    return read(signals, &info, sizeof info) > 0;
}

static struct timespec until(uint64_t deadline) {
    uint64_t now = plat_now_ns();
    uint64_t ns = deadline > now ? deadline - now : 0;
    const uint64_t longest = 1000000000u;
    if (ns > longest) ns = longest;
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Sleep until a packet, a completed call, the child's end, a signal or the deadline. */
static void block(uint64_t deadline) {
    struct pollfd set[SOCKETS_MAX + 3];
    int sockets = sockets_poll_set(set);
    int watched = session_poll_set(set + sockets);
    set[sockets + watched] = (struct pollfd){.fd = signals, .events = POLLIN};
    if (!session_going_to_sleep()) return;
    struct timespec time = until(deadline);
    ppoll(set, (nfds_t)(sockets + watched + 1), &time, NULL);
    session_awake();
    session_polled(set + sockets, watched);
}

static void nap(uint64_t idle_ns, uint64_t deadline) {
    struct timespec time = until(deadline);
    uint64_t ns = session_nap_ns(idle_ns);
    if (time.tv_sec > 0 || (uint64_t)time.tv_nsec > ns) time = (struct timespec){0, (long)ns};
    nanosleep(&time, NULL);
}

/* Between two looks let others on the CPU: the kernel above all, which may have to share it. Where
 * nobody wants it, asking costs as much as a look, so it is asked rarely. */
static void pause_politely(void) {
    static unsigned looks_left;
    __builtin_ia32_pause();
    if (looks_left > 0) {
        looks_left--;
        return;
    }
    const uint64_t begin_ns = plat_now_ns();
    sched_yield();
    looks_left = plat_now_ns() - begin_ns < ALONE_NS ? LOOKS_ALONE : 0;
}

static void wait_for_more(enum duck_poll_policy policy, uint64_t deadline, uint64_t last_wait_ns,
                          uint64_t idle_ns) {
    if (deadline == 0) return;
    if (policy == DUCK_POLL_SLEEP)
        nap(idle_ns, deadline);
    else if (policy == DUCK_POLL_SPIN || session_may_look(last_wait_ns, idle_ns))
        pause_politely();
    else
        block(deadline);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void live(enum duck_poll_policy policy) {
    unsigned round = 0;
    uint64_t busy_ns = plat_now_ns(), last_wait_ns = UINT64_MAX;
    while (!must_restart) {
        int packets = sockets_receive(&core);
        const uint64_t now = plat_now_ns();
        const bool is_busy = session_has_news() || packets != 0;
        if (is_busy) {
            last_wait_ns = now - busy_ns;
            busy_ns = now;
        }
        uint64_t deadline = core_tick(&core);
        sockets_flush();
        if (round++ % SIGNAL_LOOK_INTERVAL == 0 && signal_came()) return;
        if (!is_busy) wait_for_more(policy, deadline, last_wait_ns, now - busy_ns);
    }
}

int daemon_main(struct options *options) {
    static struct core_config config;
    read_config(options, &config);
    logfile_open(options->name, options->log_file);
    catch_signals();
    machine_init(options);
    memory_init(options->memory_limit, options->huge_pages);
    session_init(options);
    sockets_open(options);
    core_init(&core, &config);
    explicit_bzero(&config, sizeof config);
    if (!options->restarted) say_ready(options);
    live(options->poll);
    core_stop(&core);
    if (must_restart && options->image) return EXIT_REBOOT;
    if (must_restart) restart_self();
    return 0;
}
