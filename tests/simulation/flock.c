/* SPDX-License-Identifier: Apache-2.0
 *
 *   flock run INTERFACE BOXES CONTROL FIRMWARE_MS START_MS [on]
 *   flock ask CONTROL COMMAND [BOX]
 *
 * BOXES: a file with a line per box: name, MAC address, DHCP architecture code. `on`: all are
 * switched on at the start. Each takes FIRMWARE_MS to twice that before it asks for an address.
 */
#include "flock.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define LOOK_MS 5

struct box *boxes;
int box_count;
int poller;
uint64_t firmware_ns, image_start_ns;

/* What an epoll entry is: a box's fetch, or one of these. */
enum { ID_DHCP = BOXES_MAX, ID_DUCK, ID_CONTROL };

_Noreturn void die(const char *what) {
    fprintf(stderr, "flock: %s: %s\n", what, strerror(errno));
    exit(1);
}

uint64_t random_below(uint64_t limit) {
    uint64_t value;
    plat_random(&value, sizeof value);
    return limit == 0 ? 0 : value % limit;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

static void read_boxes(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die(path);
    boxes = calloc(BOXES_MAX, sizeof *boxes);
    if (boxes == NULL) die("memory");
    unsigned m[6], arch;
    char name[DUCK_WIRE_NAME_BYTES];
    while (box_count < BOXES_MAX && fscanf(file, "%31s %x:%x:%x:%x:%x:%x %u", name, &m[0], &m[1],
                                           &m[2], &m[3], &m[4], &m[5], &arch) == 8) {
        struct box *box = &boxes[box_count++];
        memcpy(box->name, name, sizeof name);
        for (int i = 0; i < 6; i++) box->mac[i] = (uint8_t)m[i];
        box->arch = (uint16_t)arch;
        box->fetch.fd = -1;
        box->due_ns = UINT64_MAX;
    }
    fclose(file);
}

struct box *box_by_address(uint32_t address) {
    for (int i = 0; i < box_count; i++)
        if (boxes[i].address == address && boxes[i].phase == UP) return &boxes[i];
    return NULL;
}

void box_enter(struct box *box, enum phase phase, uint64_t in_ns) {
    box->phase = phase;
    box->tries = 0;
    box->due_ns = plat_now_ns() + in_ns;
}

void box_power(struct box *box, bool on) {
    fetch_end(box);
    platform_stop(box);
    box->address = 0;
    box->phase = OFF;
    box->due_ns = UINT64_MAX;
    if (!on) return;
    box->boots++;
    box->xid = (uint32_t)random_below(UINT32_MAX);
    box_enter(box, FIRMWARE, firmware_ns + random_below(firmware_ns));
}

/* An address and a boot file: fetch it. Without a file, firmware goes on to a disk that isn't
 * there. */
void box_hears_lease(struct box *box) {
    if (box->file[0] == 0 || box->stops_in == FETCH) {
        box_enter(box, HUNG, 0);
        box->due_ns = UINT64_MAX;
        return;
    }
    box_enter(box, FETCH, 0);
    fetch_start(box);
}

static void due(struct box *box) {
    if (box->stops_in != OFF && box->stops_in == box->phase) {
        fetch_end(box);
        box->phase = HUNG;
        box->due_ns = UINT64_MAX;
        return;
    }
    switch (box->phase) {
    case FIRMWARE: box_enter(box, DISCOVER, 0); /* fall through */
    case DISCOVER:
    case REQUEST:
        if (box->phase == REQUEST && box->tries == 3) box_enter(box, DISCOVER, 0);
        dhcp_send(box, box->phase == REQUEST);
        box->due_ns = plat_now_ns() + dhcp_patience_ns(box->tries++);
        break;
    case FETCH: fetch_late(box); break;
    case STARTING:
        box->phase = UP;
        box->due_ns = UINT64_MAX;
        if (!platform_start(box)) box->phase = HUNG;
        break;
    case UP: platform_tick(box); break;
    case OFF:
    case HUNG: box->due_ns = UINT64_MAX; break;
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void watch(int fd, uint32_t id) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = id}};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll");
}

static void handle(uint32_t id, const int *fds) {
    if (id < BOXES_MAX)
        fetch_ready(&boxes[id]);
    else if (id == ID_DHCP)
        dhcp_receive(fds[0]);
    else if (id == ID_DUCK)
        platform_receive(fds[1]);
    else
        control_receive(fds[2]);
}

static void live(const int *fds) {
    struct epoll_event events[EVENTS_MAX];
    uint64_t looked_ns = 0;
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS_MAX, LOOK_MS);
        for (int i = 0; i < count; i++) handle(events[i].data.u32, fds);
        uint64_t now = plat_now_ns();
        if (now - looked_ns < LOOK_MS * UINT64_C(1000000)) continue;
        looked_ns = now;
        for (int i = 0; i < box_count; i++)
            if (boxes[i].due_ns <= now) due(&boxes[i]);
    }
}

static int run(int count, char **words) {
    if (count < 7) return 2;
    struct rlimit files = {2 * BOXES_MAX, 2 * BOXES_MAX};
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    read_boxes(words[3]);
    firmware_ns = strtoull(words[5], NULL, 10) * 1000000;
    image_start_ns = strtoull(words[6], NULL, 10) * 1000000;
    poller = epoll_create1(0);
    int fds[3] = {dhcp_open(words[2]), platform_open(DUCK_WIRE_PORT), control_open(words[4])};
    for (uint32_t i = 0; i < 3; i++) watch(fds[i], ID_DHCP + i);
    for (int i = 0; count > 7 && i < box_count; i++) box_power(&boxes[i], true);
    printf("flock ready boxes=%d\n", box_count);
    fflush(stdout);
    live(fds);
    return 0;
}

int main(int count, char **words) {
    if (count > 3 && strcmp(words[1], "ask") == 0)
        return control_ask(words[2], count - 3, words + 3);
    if (count > 1 && strcmp(words[1], "run") == 0) return run(count, words);
    fprintf(stderr, "usage: flock run ... | flock ask ...\n");
    return 2;
}
