/* SPDX-License-Identifier: Apache-2.0
 *
 * The least that sockets can do with the packets of a call: what `duckctl bench gap` and `bench
 * wire` stand beside. No protocol, no seals, no repair.
 *
 *     duckraw pong ADDRESS PACKETS REPLIES REPLY_BYTES POLL              answers each PACKETS-th
 *     duckraw ping ROUNDS PACKETS PACKET_BYTES REPLIES POLL PEER...      prints one time per round
 *     duckraw sink ADDRESS POLL                                          counts until a pause
 *     duckraw blast MEGABYTES PACKET_BYTES PEER                          sends as fast as it can
 *     duckraw seal MESSAGE_BYTES STRIDE ROUNDS                           the seals' cost, in ns
 *
 * POLL is spin or block. The last packet of a message may be shorter: sizes are of UDP payloads.
 */
#define _GNU_SOURCE
#include <seal.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PEERS_MAX 64
#define PACKETS_MAX 64
#define BATCH 64
#define ROUND_LIMIT_NS 200000000ull
#define SINK_PAUSE_MS 300

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "duckraw: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in parse_address(const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[64];
    unsigned port = 0;
    if (sscanf(text, "%63[0-9.]:%u", host, &port) < 1 ||
        inet_pton(AF_INET, host, &address.sin_addr) != 1)
        fail("an address like 127.0.0.1:7000 is expected");
    address.sin_port = htons((uint16_t)port);
    return address;
}

static int open_socket(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int bytes = 4 << 20;
    if (fd < 0) fail("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0) fail("bind");
    return fd;
}

static void say_ready(int fd) {
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    getsockname(fd, (struct sockaddr *)&own, &bytes);
    printf("ready %u\n", ntohs(own.sin_port));
    fflush(stdout);
}

static uint8_t in_room[BATCH][9216], out_room[9216];
static struct mmsghdr in_head[BATCH], out_head[PEERS_MAX * PACKETS_MAX];
static struct iovec in_part[BATCH], out_part[PEERS_MAX * PACKETS_MAX];
static struct sockaddr_in in_from[BATCH];

/* As many packets as there are, at least one; 0 after limit_ns. */
static int receive(int fd, int spins, uint64_t limit_ns) {
    uint64_t end = now_ns() + limit_ns;
    for (int i = 0; i < BATCH; i++) {
        in_part[i] = (struct iovec){in_room[i], sizeof in_room[i]};
        in_head[i].msg_hdr = (struct msghdr){.msg_name = &in_from[i],
                                             .msg_namelen = sizeof in_from[i],
                                             .msg_iov = &in_part[i],
                                             .msg_iovlen = 1};
    }
    for (;;) {
        int got = recvmmsg(fd, in_head, BATCH, MSG_DONTWAIT, NULL);
        if (got > 0) return got;
        uint64_t now = now_ns();
        if (now >= end) return 0;
        if (spins) continue;
        struct pollfd wait = {fd, POLLIN, 0};
        struct timespec left = {(time_t)((end - now) / 1000000000u),
                                (long)((end - now) % 1000000000u)};
        ppoll(&wait, 1, &left, NULL);
    }
}

/* `packets` packets of packet_bytes to each peer, in one system call per BATCH. */
static void send_all(int fd, const struct sockaddr_in *peers, int peer_count, int packets,
                     size_t packet_bytes) {
    int count = 0;
    for (int peer = 0; peer < peer_count; peer++)
        for (int i = 0; i < packets; i++, count++) {
            out_part[count] = (struct iovec){out_room, packet_bytes};
            out_head[count].msg_hdr = (struct msghdr){.msg_name = (void *)(uintptr_t)&peers[peer],
                                                      .msg_namelen = sizeof peers[peer],
                                                      .msg_iov = &out_part[count],
                                                      .msg_iovlen = 1};
        }
    for (int at = 0; at < count;) {
        int batch = count - at < BATCH ? count - at : BATCH;
        int sent = sendmmsg(fd, out_head + at, (unsigned)batch, 0);
        if (sent < 0 && errno != EINTR && errno != ENOBUFS && errno != ECONNREFUSED)
            fail("sendmmsg");
        if (sent > 0) at += sent;
    }
}

static _Noreturn void pong(char **words) {
    struct sockaddr_in own = parse_address(words[0]);
    int packets = atoi(words[1]), replies = atoi(words[2]), spins = strcmp(words[4], "spin") == 0;
    size_t reply_bytes = (size_t)atoi(words[3]);
    int fd = open_socket(&own), have = 0;
    say_ready(fd);
    for (;;) {
        int got = receive(fd, spins, 1000000000u);
        for (int i = 0; i < got; i++) {
            if (in_head[i].msg_len == 1) have = -1; /* a new round after a loss */
            if (++have < packets) continue;
            have = 0;
            send_all(fd, &in_from[i], 1, replies, reply_bytes);
        }
    }
}

static int ping(int count, char **words) {
    static struct sockaddr_in peers[PEERS_MAX];
    int rounds = atoi(words[0]), packets = atoi(words[1]), replies = atoi(words[3]);
    size_t packet_bytes = (size_t)atoi(words[2]);
    int spins = strcmp(words[4], "spin") == 0, peer_count = count - 5;
    for (int i = 0; i < peer_count; i++) peers[i] = parse_address(words[5 + i]);
    struct sockaddr_in own = {.sin_family = AF_INET};
    int fd = open_socket(&own), lost = 0;
    for (int round = 0; round < rounds; round++) {
        uint64_t begin = now_ns();
        send_all(fd, peers, peer_count, packets, packet_bytes);
        int have = 0;
        while (have < replies * peer_count) {
            int got = receive(fd, spins, ROUND_LIMIT_NS);
            if (got == 0) break;
            have += got;
        }
        uint64_t end = now_ns();
        if (have >= replies * peer_count) {
            printf("%llu\n", (unsigned long long)(end - begin));
            continue;
        }
        lost++;
        send_all(fd, peers, peer_count, 1, 1);
    }
    fprintf(stderr, "lost %d\n", lost);
    return 0;
}

static int sink(char **words) {
    struct sockaddr_in own = parse_address(words[0]);
    int fd = open_socket(&own), spins = strcmp(words[1], "spin") == 0;
    uint64_t packets = 0, bytes = 0, first = 0, last = 0;
    say_ready(fd);
    for (;;) {
        int got = receive(fd, spins, packets == 0 ? 10000000000ull : SINK_PAUSE_MS * 1000000ull);
        if (got == 0) break;
        last = now_ns();
        if (first == 0) first = last;
        packets += (uint64_t)got;
        for (int i = 0; i < got; i++) bytes += in_head[i].msg_len;
    }
    printf("packets %llu bytes %llu ns %llu\n", (unsigned long long)packets,
           (unsigned long long)bytes, (unsigned long long)(last - first));
    return 0;
}

static int blast(char **words) {
    uint64_t bytes = strtoull(words[0], NULL, 10) << 20;
    size_t packet_bytes = (size_t)atoi(words[1]);
    struct sockaddr_in peer = parse_address(words[2]), own = {.sin_family = AF_INET};
    int fd = open_socket(&own);
    for (uint64_t sent = 0; sent < bytes; sent += BATCH * packet_bytes)
        send_all(fd, &peer, 1, BATCH, packet_bytes);
    return 0;
}

static int seal(char **words) {
    size_t message = (size_t)atoi(words[0]), stride = (size_t)atoi(words[1]);
    int rounds = atoi(words[2]);
    static uint8_t packets[PACKETS_MAX * 4][9216];
    static const uint8_t raw[16] = {1, 2, 3};
    struct duck_seal_key send, receive_key;
    static struct duck_replay_window window;
    size_t count = (message + stride - 1) / stride;
    if (count > PACKETS_MAX * 4) fail("too many packets");
    duck_seal_key_set(&send, raw, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    duck_seal_key_set(&receive_key, raw, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    uint64_t seal_ns = UINT64_MAX, open_ns = UINT64_MAX;
    for (int round = 0; round < rounds; round++) {
        uint64_t begin = now_ns();
        for (size_t i = 0; i < count; i++) {
            size_t left = message - i * stride;
            duck_seal(&send, packets[i],
                      sizeof(struct duck_packet_header) + (left < stride ? left : stride));
        }
        uint64_t middle = now_ns();
        for (size_t i = 0; i < count; i++) {
            size_t left = message - i * stride;
            if (duck_open_sealed(&receive_key, &window, packets[i],
                                 sizeof(struct duck_packet_header) +
                                     (left < stride ? left : stride)) != DUCK_CHECK_OK)
                fail("a seal does not open");
        }
        uint64_t end = now_ns();
        if (middle - begin < seal_ns) seal_ns = middle - begin;
        if (end - middle < open_ns) open_ns = end - middle;
    }
    printf("seal %llu open %llu\n", (unsigned long long)seal_ns, (unsigned long long)open_ns);
    return 0;
}

int main(int count, char **words) {
    if (count == 7 && strcmp(words[1], "pong") == 0) pong(words + 2);
    if (count >= 8 && strcmp(words[1], "ping") == 0) return ping(count - 2, words + 2);
    if (count == 4 && strcmp(words[1], "sink") == 0) return sink(words + 2);
    if (count == 5 && strcmp(words[1], "blast") == 0) return blast(words + 2);
    if (count == 5 && strcmp(words[1], "seal") == 0) return seal(words + 2);
    fputs("usage: duckraw pong|ping|sink|blast|seal ...; run by duckctl bench gap and wire\n",
          stderr);
    return 2;
}
