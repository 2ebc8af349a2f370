/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile neighbour: as many frames as the wire takes, none of which a duck should obey.
 *
 *     hostile_frames INTERFACE DUCK_MAC DUCK_IPV4 MTU SECONDS SEED
 *
 * Prints how many frames of each kind were sent.
 */
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HELLO_BYTES = 192, PROOF_BYTES = 288 }; /* whole handshake packets, duck/wire.h */
enum { FRAME_MAX = 9018, HEADERS = 14 + 20 + 8, DUCK_PORT = 7211, KINDS = 9 };
static const char *const kNames[KINDS] = {"noise",    "ethertypes", "truncated",
                                          "oversize", "spoofed",    "fragments",
                                          "unsealed", "arp",        "dhcp"};

static uint64_t state;
static uint8_t frame[FRAME_MAX];
static uint8_t duck_mac[6];
static uint32_t duck_address; /* network order */
static uint32_t mtu;

static uint32_t dice(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1DULL) >> 32);
}

static void fill(uint8_t *place, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) place[i] = (uint8_t)dice();
}

static void put16(uint32_t at, uint32_t value) {
    frame[at] = (uint8_t)(value >> 8);
    frame[at + 1] = (uint8_t)value;
}

static void ethernet(uint32_t type) {
    fill(frame, FRAME_MAX < 128 ? FRAME_MAX : 128);
    memcpy(frame, duck_mac, 6);
    if (dice() % 8 == 0) memset(frame, 0xFF, 6);
    frame[6] = 2;
    put16(12, type);
}

static void ip_checksum(void) {
    uint32_t sum = 0;
    put16(24, 0);
    for (uint32_t i = 14; i < 34; i += 2) sum += (uint32_t)frame[i] << 8 | frame[i + 1];
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    put16(24, ~sum & 0xFFFF);
}

/* An IPv4 and UDP header that say `bytes` of payload come from `source`. */
static void udp(uint32_t source, uint32_t port, uint32_t bytes) {
    ethernet(0x0800);
    frame[14] = 0x45;
    put16(16, 28 + bytes);
    put16(20, 0x4000);
    frame[22] = 64;
    frame[23] = 17;
    memcpy(frame + 26, &source, 4);
    memcpy(frame + 30, &duck_address, 4);
    ip_checksum();
    put16(36, port);
    put16(38, 8 + bytes);
    put16(40, 0);
}

/* A packet header of the wire protocol behind a good magic (duck/wire.h). Half of them have lengths
 * that agree, so that only session and seal are wrong. */
static void packet(uint32_t bytes) {
    uint8_t *header = frame + HEADERS;
    fill(header, bytes < 256 ? bytes : 256);
    if (bytes < 56) return;
    const uint32_t payload = bytes - 56;
    memcpy(header, "DUCK", 4);
    header[4] = dice() % 8 == 0 ? (uint8_t)dice() : 2; /* version */
    header[5] = (uint8_t)(dice() % 48);                /* type */
    header[6] = (uint8_t)(dice() % 3);                 /* key */
    header[7] = 0;
    if (dice() % 4 == 0) return;
    /* A request that ducks take, with the kind of key that it must have. */
    static const uint8_t types[] = {3, 5, 6, 7, 9, 12, 13, 16, 17, 19, 20, 32, 33, 35, 36, 39};
    header[5] = types[dice() % sizeof types];
    if (payload == HELLO_BYTES) header[5] = 1;
    if (payload == PROOF_BYTES) header[5] = 11;
    header[6] = payload == HELLO_BYTES || payload == PROOF_BYTES ? 0 : 1;
    memset(header + 12, 0, 28);
    if (header[6] == 0) memcpy(header + 56, header + 8, 4); /* the session, again */
    header[16] = header[26] = (uint8_t)payload;             /* message_bytes, payload_bytes */
    header[17] = header[27] = (uint8_t)(payload >> 8);
    header[24] = 0xC0; /* fragment_bytes: 8896 */
    header[25] = 0x22;
}

static uint32_t build(uint32_t kind) {
    const uint32_t host = (duck_address & htonl(0xFFFFFF00U)) | htonl(1);
    const uint32_t room = mtu - 28;
    uint32_t bytes = dice() % room;
    if (dice() % 4 == 0) bytes = 56 + (dice() % 2 ? HELLO_BYTES : PROOF_BYTES);
    switch (kind) {
    case 0:
        ethernet(0x0800);
        fill(frame + 14, 200);
        return 14 + 46 + bytes % 1400;
    case 1: ethernet(dice() & 0xFFFF); return 60 + bytes % 1400;
    case 2: udp(host, DUCK_PORT, bytes); return 14 + dice() % (28 + bytes + 1);
    case 3:
        udp(host, DUCK_PORT, room);
        packet(room);
        put16(38, 0xFFFF);
        return HEADERS + room;
    case 4:
        udp(dice(), DUCK_PORT, bytes);
        packet(bytes);
        return HEADERS + bytes;
    case 5:
        udp(host, DUCK_PORT, bytes);
        put16(20, dice() & 0x3FFF);
        ip_checksum();
        break;
    case 6:
        udp(host, DUCK_PORT, bytes);
        packet(bytes);
        break;
    case 7:
        ethernet(0x0806);
        put16(14, 1);
        put16(16, 0x0800);
        put16(18, 0x0604);
        return 60;
    default:
        udp(host, 68, bytes);
        put16(34, 67);
        fill(frame + HEADERS, bytes < 300 ? bytes : 300);
        if (bytes > 240) memcpy(frame + HEADERS + 236, "\x63\x82\x53\x63", 4);
        break;
    }
    return HEADERS + bytes;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    uint64_t sent[KINDS] = {0}, full = 0;
    unsigned mac[6];
    if (count != 7) return 2;
    const int interface = (int)if_nametoindex(words[1]);
    if (sscanf(words[2], "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) !=
        6)
        return 2;
    for (int i = 0; i < 6; i++) duck_mac[i] = (uint8_t)mac[i];
    inet_pton(AF_INET, words[3], &duck_address);
    mtu = (uint32_t)atoi(words[4]);
    state = strtoull(words[6], NULL, 0) | 1;
    const int raw = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = interface, .sll_halen = 6};
    if (interface == 0 || raw < 0) return 3;
    const double end = now() + atof(words[5]);
    while (now() < end)
        for (uint32_t burst = 0; burst < 64; burst++) {
            const uint32_t kind = dice() % KINDS;
            uint32_t bytes = build(kind);
            if (bytes < 14) bytes = 14;
            if (bytes > mtu + 14) bytes = mtu + 14;
            if (sendto(raw, frame, bytes, 0, (struct sockaddr *)&to, sizeof to) < 0)
                full++;
            else
                sent[kind]++;
        }
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s %llu\n", kNames[kind], (unsigned long long)sent[kind]);
    printf("refused %llu\n", (unsigned long long)full);
    return 0;
}
