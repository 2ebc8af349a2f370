/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck core's platform for all boxes: one socket for all addresses (IP_PKTINFO says which is
 * meant), no memory regions and no sessions. A box that has booted is a duck by the core's own
 * code.
 */
#include "flock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#define RECEIVE_BYTES (32 << 20)
#define MAGIC "DUCKCFG1"
#define BLOCK_BYTES 4096
#define PACKETS_PER_LOOK 256

static int udp = -1;
static struct box *current; /* whose core runs now */
static uint8_t outgoing[DUCK_WIRE_PACKET_BYTES_MAX];
static bool wants_reboot;

/* ---- what the core asks for ------------------------------------------------------------------ */

uint64_t plat_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void plat_random(void *out, size_t bytes) {
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) die("getrandom");
}

uint8_t *plat_packet_buffer(void) { return outgoing; }

void plat_packet_send(const struct plat_peer *to, size_t bytes) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } control = {0};
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = to->port, .sin_addr = {to->address}};
    struct iovec part = {outgoing, bytes};
    struct msghdr message = {.msg_name = &address,
                             .msg_namelen = sizeof address,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo)),
                                      .cmsg_level = IPPROTO_IP,
                                      .cmsg_type = IP_PKTINFO};
    struct in_pktinfo from = {.ipi_spec_dst = {current->address}};
    memcpy(CMSG_DATA(&control.header), &from, sizeof from);
    sendmsg(udp, &message, 0);
}

uint64_t plat_region_bytes_max(uint32_t region) {
    (void)region;
    return 0;
}
uint64_t plat_session_bytes_max(void) { return 0; }
uint8_t *plat_region_provide(uint32_t region, uint64_t bytes) {
    (void)region;
    (void)bytes;
    return NULL;
}
void plat_region_release(uint32_t region) { (void)region; }

enum duck_status plat_session_start(const struct plat_session_request *request,
                                    struct plat_session_memory *memory,
                                    char text[DUCK_WIRE_TEXT_BYTES]) {
    (void)request;
    (void)memory;
    snprintf(text, DUCK_WIRE_TEXT_BYTES, "a simulated box has no cores");
    return DUCK_ERR_NO_MEMORY;
}
bool plat_session_ended(struct duck_fault *verdict) {
    (void)verdict;
    return false;
}
void plat_session_wake(void) {}
void plat_session_call_times(uint32_t call_number, uint64_t *start_ns, uint64_t *end_ns) {
    (void)call_number;
    *start_ns = *end_ns = 0;
}
void plat_session_stop(void) {}
void plat_session_usage(struct duck_usage *usage) { memset(usage, 0, sizeof *usage); }
void plat_stats(struct duck_stats *stats) { (void)stats; }
bool plat_spare_core_run(void (*work)(void *argument), void *argument) {
    (void)work;
    (void)argument;
    return false;
}

void plat_describe(uint16_t interface, struct duck_info *info) {
    (void)interface;
    info->platform = DUCK_PLATFORM_DUCKOS;
    strcpy(info->cpu_model, "simulated box");
    info->cpu_features = plat_cpu_features();
    info->core_count = plat_core_count();
    info->memory_bytes = UINT64_C(31) << 30;
    info->mtu_bytes = 1500;
    info->link_mbps = 2500;
    memcpy(info->mac_address, current->mac, sizeof current->mac);
}

uint32_t plat_cpu_features(void) { return DUCK_CPU_AVX2 | DUCK_CPU_FMA | DUCK_CPU_F16C; }
uint32_t plat_core_count(void) { return 4; }
void plat_log(const char *line, size_t bytes) {
    (void)line;
    (void)bytes;
}
void plat_reboot(void) { wants_reboot = true; }

/* ---- booting --------------------------------------------------------------------------------- */

/* The value of a line `key=value` of the boot file's config block; NULL when it is not there. */
static const char *config_value(const struct fetch *image, const char *key, size_t *bytes) {
    const char *block = memmem(image->data, image->size, MAGIC, strlen(MAGIC));
    if (block == NULL || block + BLOCK_BYTES > (const char *)image->data + image->size) return NULL;
    const char *end = block + BLOCK_BYTES;
    for (const char *line = block + strlen(MAGIC); line < end && *line != 0;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) return NULL;
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == '=') {
            line += strlen(key) + 1;
            *bytes = (size_t)(stop - line);
            return line;
        }
        line = stop + 1;
    }
    return NULL;
}

static bool read_hex(const struct fetch *image, const char *key, uint8_t *out, size_t bytes) {
    size_t length = 0;
    const char *text = config_value(image, key, &length);
    if (text == NULL || length != 2 * bytes) return false;
    for (size_t i = 0; i < bytes; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) return false;
        out[i] = (uint8_t)value;
    }
    return true;
}

/* As the image does it: key, build and version from the boot file, the name from DHCP. */
bool platform_start(struct box *box) {
    struct core_config config = {0};
    bool fits =
        read_hex(&box->fetch, "build", config.build, sizeof config.build) &&
        read_hex(&box->fetch, "fleet_public", config.fleet_public, sizeof config.fleet_public);
    fetch_end(box);
    if (!fits) return false;
    plat_random(config.identity_private, sizeof config.identity_private);
    memcpy(config.name, box->told_name, sizeof config.name);
    box->core = malloc(sizeof *box->core);
    if (box->core == NULL) die("memory");
    current = box;
    core_init(box->core, &config);
    platform_tick(box);
    return true;
}

void platform_stop(struct box *box) {
    free(box->core);
    box->core = NULL;
}

void platform_tick(struct box *box) {
    current = box;
    wants_reboot = false;
    box->due_ns = core_tick(box->core);
    if (!wants_reboot) return;
    box->obeyed++;
    box_power(box, true);
}

/* ---- the network ----------------------------------------------------------------------------- */

int platform_open(uint16_t port) {
    const int on = 1, bytes = RECEIVE_BYTES;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (udp < 0) die("socket");
    setsockopt(udp, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    if (bind(udp, (struct sockaddr *)&any, sizeof any) != 0) die("bind");
    return udp;
}

static uint32_t destination(struct msghdr *message) {
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        struct in_pktinfo info;
        if (at->cmsg_level != IPPROTO_IP || at->cmsg_type != IP_PKTINFO) continue;
        memcpy(&info, CMSG_DATA(at), sizeof info);
        return info.ipi_addr.s_addr;
    }
    return 0;
}

void platform_receive(int fd) {
    static uint8_t packet[9216];
    for (int i = 0; i < PACKETS_PER_LOOK; i++) {
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(struct in_pktinfo))];
        } control;
        struct sockaddr_in from;
        struct iovec part = {packet, sizeof packet};
        struct msghdr message = {.msg_name = &from,
                                 .msg_namelen = sizeof from,
                                 .msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof control};
        ssize_t bytes = recvmsg(fd, &message, 0);
        if (bytes < 0) return;
        struct box *box = box_by_address(destination(&message));
        if (box == NULL || box->core == NULL) continue;
        struct plat_peer peer = {from.sin_addr.s_addr, from.sin_port, 0};
        current = box;
        core_packet(box->core, &peer, packet, (size_t)bytes);
        platform_tick(box);
    }
}
