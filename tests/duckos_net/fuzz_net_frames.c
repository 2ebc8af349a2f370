/* SPDX-License-Identifier: Apache-2.0
 *
 * Usage: fuzz_net_frames SEED SECONDS LAYER; LAYER is ethernet, arp, ipv4, icmp, udp, dhcp or all.
 *
 * Frames that are almost right: a good one, damaged in a few places from the layer's header on,
 * with the checksums above repaired, so that the damage is what the layer sees. Whatever arrives,
 * nothing outside the frame is touched (sanitizers), what is sent is well-formed, and a good frame
 * is still answered.
 */
#include "cable.h"

#include "net/random.h"

#include <time.h>

enum layer { ETHERNET, ARP, IPV4, ICMP, UDP, DHCP_LAYER, LAYERS };
static const char *const layer_names[LAYERS] = {"ethernet", "arp", "ipv4", "icmp", "udp", "dhcp"};
static const size_t layer_starts[LAYERS] = {0, 14, LAN_IP, LAN_UDP, LAN_UDP, LAN_PAYLOAD};

static uint64_t state;
static uint32_t number(uint32_t below) { /* PCG-like: the fuzzer's own, apart from the code's */
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % below;
}

static struct lan_frame frame;
static uint64_t frames, replies;

static uint32_t some_address(void) {
    static const uint8_t last[] = {1, 2, 101, 101, 101, 102, 255, 0};
    if (number(8) == 0) return number(UINT32_MAX);
    return LAN_ADDRESS(last[number(sizeof last)]);
}

static size_t some_size(void) {
    static const size_t sizes[] = {0, 1, 17, 18, 22, 100, 1472, 4000, 8971, 8972};
    return number(2) == 0 ? sizes[number(10)] : number(1500);
}

static void make_dhcp(void) {
    static const enum dhcp_type types[] = {DHCP_OFFER, DHCP_ACK, DHCP_NAK, DHCP_OFFER,
                                           DHCP_DISCOVER};
    struct lan_server server = lan_usual_server;
    struct dhcp *dhcp = &cable.interface.dhcp;
    if (dhcp->has_offer && number(2) == 0) server.server = dhcp->offer.server;
    server.lease_s = number(3) == 0 ? number(UINT32_MAX) : 300;
    server.renew_s = number(4) == 0 ? number(400) : 0;
    server.rebind_s = number(4) == 0 ? number(400) : 0;
    server.setting = number(2) == 0 ? "name=x" : NULL;
    lan_answer(&server, types[number(5)], dhcp->transaction, cable_mac, &frame);
    if (cable.interface.address == 0 || number(4) == 0) return;
    store_address(frame.bytes + LAN_IP + 16, cable.interface.address);
}

static void make_good(enum layer layer) {
    static uint8_t payload[9000];
    memcpy(frame.bytes, number(8) == 0 ? lan_everyone : cable_mac, 6);
    switch (layer) {
    case ARP:
        lan_arp(&frame, (uint16_t)(1 + number(2)), lan_host_mac, some_address(), some_address());
        break;
    case ICMP: lan_echo(&frame, some_address(), some_address(), some_size()); break;
    case DHCP_LAYER: make_dhcp(); break;
    default: {
        uint16_t port = number(4) == 0 ? (uint16_t)number(65536) : 7211;
        lan_udp(&frame, some_address(), (uint16_t)number(65536), some_address(), port, payload,
                some_size());
    }
    }
}

static void damage(size_t start) {
    static const uint8_t values[] = {0, 1, 4, 8, 15, 0x45, 0x4f, 0x7f, 0x80, 0xff};
    for (uint32_t changes = number(5); changes > 0 && frame.size > start; changes--) {
        uint32_t near = number(3) == 0 ? (uint32_t)(frame.size - start) : 64;
        size_t at = start + number(near);
        if (at >= frame.size) continue;
        frame.bytes[at] = number(2) == 0 ? values[number(10)] : (uint8_t)number(256);
    }
    if (number(4) == 0) frame.size = number((uint32_t)frame.size + 1);
    if (number(8) == 0 && frame.size < 8900)
        for (uint32_t more = number(100); more > 0; more--)
            frame.bytes[frame.size++] = (uint8_t)number(256);
}

/* So that the layer in question is reached. Sometimes not. */
static void repair(enum layer layer) {
    if (number(8) == 0 || frame.size < LAN_PAYLOAD || load16(frame.bytes + 12) != 0x0800) return;
    if (layer == DHCP_LAYER || layer == UDP) {
        uint16_t length = load16(frame.bytes + LAN_UDP + 4);
        if (length >= 8 && LAN_UDP + (size_t)length <= frame.size) lan_udp_checksum(&frame);
    }
    size_t header = 4u * (frame.bytes[LAN_IP] & 15u);
    if (header >= 20 && LAN_IP + header <= frame.size) lan_ipv4_checksum(&frame);
    uint8_t *icmp = frame.bytes + LAN_UDP;
    size_t bytes = load16(frame.bytes + LAN_IP + 2);
    if (layer != ICMP || bytes < 28 || LAN_IP + bytes > frame.size) return;
    store16(icmp + 2, 0);
    checksum_store(icmp + 2, checksum_fold(checksum_add(0, icmp, bytes - 20)));
}

/* What leaves is right, whatever came in. */
static void check_sent(void) {
    for (struct lan_frame *sent; (sent = cable_sent()) != NULL; replies++) {
        const uint8_t *header = sent->bytes + LAN_IP;
        CHECK(memcmp(sent->bytes + 6, cable_mac, 6) == 0);
        uint16_t type = load16(sent->bytes + 12);
        if (type == 0x0806) continue;
        CHECK_EQUAL(0x0800, type);
        CHECK_EQUAL(0x45, header[0]);
        CHECK_EQUAL(0, checksum_fold(checksum_add(0, header, 20)));
        CHECK(14u + load16(header + 2) <= sent->size);
        CHECK(load16(header + 2) <= cable.interface.mtu_bytes);
    }
}

static void check_state(void) {
    const struct net_interface *interface = &cable.interface;
    if (interface->address == 0) return;
    CHECK(is_host_address(interface->address));
    CHECK(interface->address != subnet_broadcast(interface) && interface->netmask != 0);
    for (unsigned at = 0; at < ARP_NEIGHBOUR_COUNT; at++) {
        const struct arp_neighbour *neighbour = &interface->arp.neighbour[at];
        if (neighbour->known) CHECK((neighbour->mac[0] & 1) == 0);
    }
}

/* After all that, a host with an unknown address still gets its echo. */
static void still_alive(void) {
    cable.interface.address = LAN_ADDRESS(101);
    cable.interface.netmask = LAN_NETMASK;
    cable.interface.now_ns += 10000000000u;
    memcpy(frame.bytes, cable_mac, 6);
    lan_echo(&frame, LAN_ADDRESS(1), LAN_ADDRESS(101), 100);
    uint64_t before = cable.interface.count.echo_replies_sent;
    cable_receive(frame.bytes, frame.size);
    CHECK_EQUAL(before + 1, cable.interface.count.echo_replies_sent);
    check_sent();
}

static void one_frame(enum layer layer) {
    make_good(layer);
    damage(layer_starts[layer]);
    repair(layer);
    cable_receive(frame.bytes, frame.size);
    frames++;
    cable.interface.now_ns += number(50) == 0 ? number(UINT32_MAX) : number(100000);
    dhcp_tick(&cable.interface);
    arp_ask_stale(&cable.interface);
    check_sent();
    check_state();
}

static void begin_again(void) {
    if (number(3) == 0) {
        cable_reset();
        net_random_seed(state);
        dhcp_start(&cable.interface);
    } else {
        cable_reset_addressed();
        if (number(2) == 0) dhcp_start(&cable.interface);
    }
}

static void fuzz(enum layer layer) {
    begin_again();
    for (unsigned at = 0; at < 2000; at++) one_frame(layer);
    still_alive();
}

int main(int count, char **words) {
    CHECK(count == 4);
    state = strtoull(words[1], NULL, 10);
    time_t end = time(NULL) + strtol(words[2], NULL, 10);
    int only = LAYERS;
    for (int at = 0; at < LAYERS; at++)
        if (strcmp(words[3], layer_names[at]) == 0) only = at;
    struct net_counters *seen = &cable.interface.count;
    uint64_t delivered = 0, echoes = 0, leases = 0;
    do {
        for (int at = 0; at < LAYERS; at++) {
            if (only != LAYERS && at != only) continue;
            fuzz((enum layer)at);
            delivered += seen->delivered_datagrams;
            echoes += seen->echo_replies_sent;
            leases += cable.taken;
        }
    } while (time(NULL) < end);
    printf("%s: %llu frames, %llu delivered, %llu echoes, %llu leases, %llu sent\n", words[3],
           (unsigned long long)frames, (unsigned long long)delivered, (unsigned long long)echoes,
           (unsigned long long)leases, (unsigned long long)replies);
    machine_reset();
    return 0;
}
