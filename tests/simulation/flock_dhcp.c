/* SPDX-License-Identifier: Apache-2.0
 *
 * DHCP as PXE firmware speaks it (RFC 2131, RFC 4578): frames with the box's own MAC address, the
 * architecture in option 93, and tries after 4, 8, 16, 32 s, each a little early or late.
 */
#include "flock.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_BYTES_MAX 1600
#define HEAD (14 + 20 + 8) /* Ethernet, IPv4, UDP */
#define BOOTP 240          /* up to and with the magic cookie */
#define RECEIVE_BYTES (16 << 20)

static int raw = -1;
static struct sockaddr_ll everyone;

uint64_t dhcp_patience_ns(unsigned tries) {
    uint64_t seconds = 4u << (tries < 3 ? tries : 3);
    return (seconds * 10 - 10 + random_below(20)) * UINT64_C(100000000);
}

/* Only UDP to port 68: the rest of the traffic is the kernel's. */
static void filter(int fd) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 5),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 3),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 36),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 68, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, FRAME_BYTES_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) die("filter");
}

int dhcp_open(const char *interface) {
    int bytes = RECEIVE_BYTES;
    raw = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_IP));
    if (raw < 0) die("packet socket");
    filter(raw);
    setsockopt(raw, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    everyone = (struct sockaddr_ll){.sll_family = AF_PACKET,
                                    .sll_protocol = htons(ETH_P_IP),
                                    .sll_ifindex = (int)if_nametoindex(interface)};
    if (bind(raw, (struct sockaddr *)&everyone, sizeof everyone) != 0) die(interface);
    everyone.sll_halen = 6;
    memset(everyone.sll_addr, 0xff, 6);
    return raw;
}

/* ---- sending --------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *at, uint8_t code, size_t bytes, const void *value) {
    at[0] = code;
    at[1] = (uint8_t)bytes;
    memcpy(at + 2, value, bytes);
    return at + 2 + bytes;
}

static size_t put_options(uint8_t *start, const struct box *box, bool is_request) {
    static const uint8_t wanted[] = {1, 3, 12, 26, 43, 54, 60, 66, 67};
    uint8_t *at = start;
    uint8_t kind = is_request ? 3 : 1, undi[3] = {1, 3, 16}, uuid[17] = {0};
    uint8_t arch[2] = {(uint8_t)(box->arch >> 8), (uint8_t)box->arch}, size[2] = {5, 192};
    char class[40];
    snprintf(class, sizeof class, "%s:Arch:%05u:UNDI:003016",
             box->arch >= 15 ? "HTTPClient" : "PXEClient", box->arch);
    memcpy(uuid + 11, box->mac, 6);
    at = put(at, 53, 1, &kind);
    at = put(at, 57, 2, size);
    at = put(at, 55, sizeof wanted, wanted);
    at = put(at, 97, sizeof uuid, uuid);
    at = put(at, 93, 2, arch);
    at = put(at, 94, 3, undi);
    at = put(at, 60, strlen(class), class);
    if (is_request) {
        at = put(at, 50, 4, &box->address);
        at = put(at, 54, 4, &box->server);
    }
    *at++ = 255;
    return (size_t)(at - start);
}

static uint16_t ip_checksum(const uint8_t *header) {
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) sum += (uint32_t)(header[i] << 8 | header[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~((sum & 0xffff) + (sum >> 16));
}

static void put16(uint8_t *at, size_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

void dhcp_send(struct box *box, bool is_request) {
    uint8_t frame[FRAME_BYTES_MAX] = {0};
    uint8_t *ip = frame + 14, *udp = ip + 20, *bootp = udp + 8;
    memset(frame, 0xff, 6);
    memcpy(frame + 6, box->mac, 6);
    put16(frame + 12, ETH_P_IP);
    memcpy(bootp, (uint8_t[]){1, 1, 6, 0}, 4); /* request, Ethernet */
    memcpy(bootp + 4, &box->xid, 4);
    bootp[10] = 0x80; /* answer by broadcast: nobody answers ARP for the address yet */
    memcpy(bootp + 28, box->mac, 6);
    memcpy(bootp + 236, (uint8_t[]){99, 130, 83, 99}, 4);
    size_t bytes = BOOTP + put_options(bootp + BOOTP, box, is_request);
    put16(udp, 68);
    put16(udp + 2, 67);
    put16(udp + 4, 8 + bytes);
    ip[0] = 0x45;
    put16(ip + 2, 28 + bytes);
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    memset(ip + 16, 0xff, 4);
    put16(ip + 10, ip_checksum(ip));
    sendto(raw, frame, HEAD + bytes, 0, (struct sockaddr *)&everyone, sizeof everyone);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void copy_text(char *to, size_t room, const uint8_t *from, size_t bytes) {
    if (bytes >= room) bytes = room - 1;
    memcpy(to, from, bytes);
    to[bytes] = 0;
}

/* Reads the options into the box; gives the message type, 0 for a malformed message. */
static uint8_t read_options(struct box *box, const uint8_t *at, const uint8_t *end) {
    uint8_t kind = 0;
    while (at + 2 <= end && *at != 255) {
        if (*at == 0) {
            at++;
            continue;
        }
        uint8_t code = at[0], bytes = at[1];
        at += 2;
        if (at + bytes > end) return 0;
        if (code == 53 && bytes == 1) kind = at[0];
        if (code == 54 && bytes == 4) memcpy(&box->server, at, 4);
        if (code == 12) copy_text(box->told_name, sizeof box->told_name, at, bytes);
        if (code == 67) copy_text(box->file, sizeof box->file, at, bytes);
        at += bytes;
    }
    return kind;
}

static void take(const uint8_t *bootp, size_t bytes) {
    struct box *box = NULL;
    for (int i = 0; i < box_count && box == NULL; i++)
        if (memcmp(boxes[i].mac, bootp + 28, 6) == 0) box = &boxes[i];
    if (box == NULL || memcmp(&box->xid, bootp + 4, 4) != 0) return;
    if (box->phase != DISCOVER && box->phase != REQUEST) return;
    box->file[0] = 0;
    copy_text(box->file, sizeof box->file, bootp + 108, strnlen((const char *)bootp + 108, 128));
    uint8_t kind = read_options(box, bootp + BOOTP, bootp + bytes);
    if (kind == 2 && box->phase == DISCOVER) {
        memcpy(&box->address, bootp + 16, 4);
        box_enter(box, REQUEST, 0);
    } else if (kind == 5 && box->phase == REQUEST) {
        memcpy(&box->address, bootp + 16, 4);
        box_hears_lease(box);
    } else if (kind == 6) {
        box_enter(box, DISCOVER, dhcp_patience_ns(0));
    }
}

void dhcp_receive(int fd) {
    uint8_t frame[FRAME_BYTES_MAX];
    for (;;) {
        ssize_t bytes = recv(fd, frame, sizeof frame, 0);
        if (bytes < 0) return;
        if (bytes >= HEAD + BOOTP) take(frame + HEAD, (size_t)bytes - HEAD);
    }
}
