/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernet, ARP, IPv4, ICMP and UDP: what is answered, and that everything else is dropped and
 * counted.
 */
#include "cable.h"

#include "net/arp.h"
#include "net/icmp.h"
#include "net/udp.h"

static struct lan_frame frame;
static const uint8_t stranger[6] = {0x02, 0, 0, 0, 0, 0x66};
#define COUNT (cable.interface.count)

static void arrive(void) { cable_receive(frame.bytes, frame.size); }
static void to_us(void) { memcpy(frame.bytes, cable_mac, 6); }

static void make_udp(size_t bytes) {
    static uint8_t payload[9000];
    for (size_t at = 0; at < bytes; at++) payload[at] = (uint8_t)(at * 3);
    to_us();
    lan_udp(&frame, LAN_ADDRESS(1), 5000, LAN_ADDRESS(101), 7211, payload, bytes);
}

static void make_echo(size_t bytes) {
    to_us();
    lan_echo(&frame, LAN_ADDRESS(1), LAN_ADDRESS(101), bytes);
}

/* Against RFC 1071 word by word, for every length and place in memory. */
static void checksums_equal_the_plain_sum(void) {
    static uint8_t bytes[300];
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = (uint8_t)(255 - at * at);
    for (size_t size = 0; size < 280; size++) {
        const uint8_t *from = bytes + size % 9;
        uint32_t sum = 0;
        for (size_t at = 0; at < size; at += 2)
            sum += (uint32_t)(from[at] << 8 | (at + 1 < size ? from[at + 1] : 0));
        while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
        CHECK_EQUAL((uint16_t)~sum, swap16(checksum_fold(checksum_add(0, from, size))));
    }
    static uint8_t ones[65535];
    memset(ones, 255, sizeof ones);
    CHECK_EQUAL(0xff00, checksum_fold(checksum_add(0, ones, sizeof ones)));
}

/* ---- Ethernet -------------------------------------------------------------------------------- */
static void short_and_foreign_frames(void) {
    cable_reset_addressed();
    make_udp(10);
    for (size_t size = 0; size < 14; size++) cable_receive(frame.bytes, size);
    CHECK_EQUAL(14, COUNT.nic_runts);
    frame.bytes[5] ^= 1; /* somebody else's */
    arrive();
    frame.bytes[5] ^= 1;
    memcpy(frame.bytes + 6, cable_mac, 6); /* from ourselves */
    arrive();
    memcpy(frame.bytes + 6, lan_everyone, 6); /* from a group */
    arrive();
    memset(frame.bytes + 6, 0, 6);
    arrive();
    CHECK_EQUAL(4, COUNT.ethernet_foreign);
    make_udp(10);
    store16(frame.bytes + 12, 0x86dd);
    arrive();
    store16(frame.bytes + 12, 46); /* a length, not a type */
    arrive();
    CHECK_EQUAL(2, COUNT.ethernet_unknown_type);
    CHECK_EQUAL(0, cable.datagrams);
    CHECK(cable_sent() == NULL);
}

/* ---- ARP ------------------------------------------------------------------------------------- */
static void arp_answers_for_our_address_only(void) {
    cable_reset_addressed();
    lan_arp(&frame, 1, lan_host_mac, LAN_ADDRESS(1), LAN_ADDRESS(101));
    arrive();
    struct lan_frame *reply = cable_sent();
    CHECK(reply != NULL && reply->size == 60);
    CHECK(memcmp(reply->bytes, lan_host_mac, 6) == 0);
    CHECK_EQUAL(2, load16(reply->bytes + 20));
    CHECK(memcmp(reply->bytes + 22, cable_mac, 6) == 0);
    CHECK_EQUAL(LAN_ADDRESS(101), load_address(reply->bytes + 28));
    for (size_t at = 42; at < 60; at++) CHECK_EQUAL(0, reply->bytes[at]); /* padding */
    lan_arp(&frame, 1, lan_host_mac, LAN_ADDRESS(1), LAN_ADDRESS(102));
    arrive();
    CHECK(cable_sent() == NULL);
    lan_arp(&frame, 1, stranger, 0, LAN_ADDRESS(101)); /* a probe: answered, not learnt */
    arrive();
    CHECK(cable_sent() != NULL);
    cable.interface.address = 0;
    lan_arp(&frame, 1, lan_host_mac, LAN_ADDRESS(1), 0);
    arrive();
    CHECK(cable_sent() == NULL);
}

static void malformed_arp(void) {
    static const uint8_t places[] = {14, 15, 16, 17, 18, 19};
    cable_reset_addressed();
    for (unsigned at = 0; at < sizeof places; at++) {
        lan_arp(&frame, 1, lan_host_mac, LAN_ADDRESS(1), LAN_ADDRESS(101));
        frame.bytes[places[at]] ^= 0x10;
        arrive();
    }
    lan_arp(&frame, 1, lan_host_mac, LAN_ADDRESS(1), LAN_ADDRESS(101));
    frame.bytes[24] ^= 1; /* the sender is not who sent it */
    arrive();
    for (size_t size = 14; size < 42; size++) cable_receive(frame.bytes, size);
    CHECK_EQUAL(sizeof places + 1 + 28, COUNT.arp_malformed);
    CHECK(cable_sent() == NULL);
}

static const uint8_t *find(uint8_t last) { return arp_find(&cable.interface, LAN_ADDRESS(last)); }

static void neighbours_are_asked_for_and_learnt(void) {
    cable_reset_addressed();
    CHECK(find(1) == NULL);
    CHECK(cable_sent() != NULL);
    CHECK(find(1) == NULL && cable_sent() == NULL); /* not twice within a second */
    cable.interface.now_ns += ARP_ASK_NS;
    CHECK(find(1) == NULL && cable_sent() != NULL);
    lan_arp(&frame, 2, lan_host_mac, LAN_ADDRESS(1), LAN_ADDRESS(101));
    to_us();
    arrive();
    CHECK(memcmp(find(1), lan_host_mac, 6) == 0);
    cable.interface.now_ns += ARP_FRESH_NS;
    uint8_t *lent = udp_payload(&cable.interface);
    CHECK(memcmp(find(1), lan_host_mac, 6) == 0 && cable_sent() == NULL); /* used at once, */
    CHECK(udp_payload(&cable.interface) == lent && *lent == 0xa5);        /* asked later */
    arp_ask_stale(&cable.interface);
    CHECK(cable_sent() != NULL);
    CHECK(find(1) != NULL); /* not twice within a second */
    arp_ask_stale(&cable.interface);
    CHECK(cable_sent() == NULL);
    CHECK(find(101) == NULL && find(255) == NULL && find(0) == NULL);
    CHECK(arp_find(&cable.interface, make_address(10, 0, 0, 1)) == NULL);
    CHECK(cable_sent() == NULL);
}

static void forgers_do_not_take_over_who_talks(void) {
    cable_reset_addressed();
    make_udp(10);
    arrive();
    CHECK(memcmp(find(1), lan_host_mac, 6) == 0);
    for (unsigned at = 0; at < 10; at++) {
        lan_arp(&frame, 1 + at % 2, stranger, LAN_ADDRESS(1), LAN_ADDRESS(101));
        arrive();
        make_udp(1);
        memcpy(frame.bytes + 6, stranger, 6);
        arrive();
        CHECK(memcmp(find(1), lan_host_mac, 6) == 0);
    }
    cable.interface.now_ns += ARP_HOLD_NS; /* silent since then: a new NIC in the host */
    lan_arp(&frame, 1, stranger, LAN_ADDRESS(1), LAN_ADDRESS(101));
    arrive();
    CHECK(memcmp(find(1), stranger, 6) == 0);
    lan_arp(&frame, 2, stranger, LAN_ADDRESS(9), LAN_ADDRESS(101)); /* nobody asked */
    arrive();
    CHECK_EQUAL(1, COUNT.arp_ignored);
    lan_arp(&frame, 1, stranger, LAN_ADDRESS(101), LAN_ADDRESS(101)); /* claims our address */
    arrive();
    CHECK_EQUAL(1, COUNT.arp_conflicts);
}

/* ---- IPv4 ------------------------------------------------------------------------------------ */
static void spoil(uint64_t *counter, unsigned at, uint8_t value) {
    uint64_t before = *counter;
    make_udp(20);
    frame.bytes[LAN_IP + at] = value;
    if (at != 10) lan_ipv4_checksum(&frame);
    arrive();
    CHECK_EQUAL(before + 1, *counter);
    CHECK_EQUAL(0, cable.datagrams);
}

static void malformed_ipv4(void) {
    cable_reset_addressed();
    spoil(&COUNT.ipv4_malformed, 0, 0x65);     /* version 6 */
    spoil(&COUNT.ipv4_malformed, 2, 0xff);     /* longer than the frame */
    spoil(&COUNT.ipv4_checksum, 10, 0x12);     /* wrong sum */
    spoil(&COUNT.ipv4_fragments, 6, 0x20);     /* more fragments */
    spoil(&COUNT.ipv4_fragments, 7, 0x01);     /* a later one */
    spoil(&COUNT.ipv4_unknown_protocol, 9, 6); /* TCP */
    spoil(&COUNT.ipv4_foreign, 12, 127);       /* from loopback */
    spoil(&COUNT.ipv4_foreign, 12, 224);       /* from a group */
    spoil(&COUNT.ipv4_foreign, 12, 0);
    spoil(&COUNT.ipv4_foreign, 15, 101); /* from ourselves */
    spoil(&COUNT.ipv4_foreign, 15, 255); /* from everybody */
    spoil(&COUNT.ipv4_foreign, 19, 102); /* to somebody else */
    make_udp(20);
    frame.bytes[LAN_IP] = 0x44; /* header too short */
    arrive();
    frame.bytes[LAN_IP] = 0x4f; /* options longer than the packet */
    store16(frame.bytes + LAN_IP + 2, 24);
    arrive();
    CHECK_EQUAL(4, COUNT.ipv4_malformed);
    for (size_t size = 14; size < 34; size++) cable_receive(frame.bytes, size);
    CHECK_EQUAL(24, COUNT.ipv4_malformed);
    CHECK(cable_sent() == NULL);
}

static void options_are_skipped(void) {
    cable_reset_addressed();
    for (unsigned words = 6; words <= 15; words++) {
        make_udp(33);
        size_t more = 4 * (words - 5);
        memmove(frame.bytes + LAN_UDP + more, frame.bytes + LAN_UDP, 41);
        memset(frame.bytes + LAN_UDP, 1, more);
        frame.bytes[LAN_IP] = (uint8_t)(0x40 | words);
        store16(frame.bytes + LAN_IP + 2, (uint16_t)(20 + more + 41));
        lan_ipv4_checksum(&frame);
        frame.size = 14 + 20 + more + 41;
        arrive();
        CHECK_EQUAL(words - 5, cable.datagrams);
        CHECK_EQUAL(33, cable.payload_bytes);
        CHECK_EQUAL(96, cable.payload[32]);
    }
}

static void broadcasts_reach_us(void) {
    cable_reset_addressed();
    const uint8_t payload[4] = {1, 2, 3, 4};
    memcpy(frame.bytes, lan_everyone, 6);
    lan_udp(&frame, LAN_ADDRESS(1), 5000, LAN_ADDRESS(255), 7211, payload, 4);
    arrive();
    lan_udp(&frame, LAN_ADDRESS(1), 5000, 0xffffffff, 7211, payload, 4);
    arrive();
    CHECK_EQUAL(2, cable.datagrams);
    lan_udp(&frame, LAN_ADDRESS(1), 5000, make_address(198, 18, 1, 255), 7211, payload, 4);
    arrive();
    CHECK_EQUAL(2, cable.datagrams);
}

/* ---- ICMP ------------------------------------------------------------------------------------ */
static void echoes_of_every_size(void) {
    static const size_t sizes[] = {0, 1, 2, 17, 18, 56, 1472, 4000, 8971, 8972};
    cable_reset_addressed();
    for (unsigned at = 0; at < sizeof sizes / sizeof sizes[0]; at++) {
        make_echo(sizes[at]);
        arrive();
        struct lan_frame *reply = cable_sent();
        CHECK(reply != NULL);
        const uint8_t *icmp = reply->bytes + LAN_UDP;
        CHECK_EQUAL(28 + sizes[at], load16(reply->bytes + LAN_IP + 2));
        CHECK_EQUAL(0, icmp[0]);
        CHECK_EQUAL(0, checksum_fold(checksum_add(0, icmp, 8 + sizes[at])));
        CHECK_EQUAL(0, checksum_fold(checksum_add(0, reply->bytes + LAN_IP, 20)));
        CHECK(memcmp(icmp + 4, frame.bytes + LAN_UDP + 4, 4 + sizes[at]) == 0);
    }
    cable.interface.mtu_bytes = 1500;
    make_echo(1473);
    arrive();
    CHECK(cable_sent() == NULL && COUNT.send_oversized == 1);
}

static void other_icmp_is_dropped(void) {
    cable_reset_addressed();
    make_echo(30);
    frame.bytes[LAN_UDP + 9] ^= 1;
    arrive();
    CHECK_EQUAL(1, COUNT.icmp_checksum);
    for (unsigned type = 0; type < 256; type++) {
        if (type == 8) continue;
        make_echo(30);
        frame.bytes[LAN_UDP] = (uint8_t)type;
        store16(frame.bytes + LAN_UDP + 2, 0);
        uint8_t *icmp = frame.bytes + LAN_UDP;
        checksum_store(icmp + 2, checksum_fold(checksum_add(0, icmp, 38)));
        arrive();
    }
    CHECK_EQUAL(255, COUNT.icmp_ignored);
    memcpy(frame.bytes, lan_everyone, 6); /* no amplifier */
    lan_echo(&frame, LAN_ADDRESS(1), LAN_ADDRESS(255), 30);
    arrive();
    CHECK_EQUAL(256, COUNT.icmp_ignored);
    to_us();
    lan_ipv4(&frame, LAN_ADDRESS(1), LAN_ADDRESS(101), 1, frame.bytes + LAN_UDP, 7);
    arrive();
    CHECK_EQUAL(1, COUNT.icmp_malformed);
    CHECK(cable_sent() == NULL);
}

static void echo_floods_are_limited(void) {
    cable_reset_addressed();
    make_echo(30);
    for (unsigned at = 0; at < ICMP_REPLIES_PER_SECOND_MAX + 50; at++) arrive();
    CHECK_EQUAL(ICMP_REPLIES_PER_SECOND_MAX, COUNT.echo_replies_sent);
    CHECK_EQUAL(50, COUNT.icmp_limited);
    cable.interface.now_ns += 1000000000u;
    arrive();
    CHECK_EQUAL(ICMP_REPLIES_PER_SECOND_MAX + 1, COUNT.echo_replies_sent);
}

/* ---- UDP ------------------------------------------------------------------------------------- */
static void datagrams_of_every_size(void) {
    static const size_t sizes[] = {0, 1, 17, 18, 19, 1472, 8972};
    cable_reset_addressed();
    for (unsigned at = 0; at < sizeof sizes / sizeof sizes[0]; at++) {
        make_udp(sizes[at]);
        arrive();
        CHECK_EQUAL(at + 1, cable.datagrams);
        CHECK_EQUAL(sizes[at], cable.payload_bytes);
        for (size_t byte = 0; byte < sizes[at]; byte++)
            CHECK_EQUAL((uint8_t)(byte * 3), cable.payload[byte]);
        CHECK_EQUAL(LAN_ADDRESS(1), cable.from.address);
        CHECK_EQUAL(swap16(5000), cable.from.port);
    }
    make_udp(100);
    store16(frame.bytes + LAN_UDP + 6, 0); /* no checksum is allowed */
    arrive();
    CHECK_EQUAL(8, cable.datagrams);
    store16(frame.bytes + LAN_UDP + 4,
            8 + 60); /* shorter than the packet: the rest is no payload */
    arrive();
    CHECK_EQUAL(60, cable.payload_bytes);
}

static void malformed_udp(void) {
    cable_reset_addressed();
    make_udp(50);
    frame.bytes[LAN_PAYLOAD + 3] ^= 4;
    arrive();
    CHECK_EQUAL(1, COUNT.udp_checksum);
    make_udp(50);
    store16(frame.bytes + LAN_UDP + 4, 59); /* longer than the packet */
    arrive();
    store16(frame.bytes + LAN_UDP + 4, 7);
    arrive();
    lan_ipv4(&frame, LAN_ADDRESS(1), LAN_ADDRESS(101), 17, frame.bytes + LAN_UDP, 7);
    arrive();
    CHECK_EQUAL(3, COUNT.udp_malformed);
    make_udp(50);
    store16(frame.bytes + LAN_UDP + 2, 7212);
    lan_udp_checksum(&frame);
    arrive();
    CHECK_EQUAL(1, COUNT.udp_closed_port);
    CHECK_EQUAL(0, cable.datagrams);
}

static const uint8_t *route(uint32_t to) { return ipv4_route(&cable.interface, to); }

static void sends_what_was_asked(void) {
    cable_reset_addressed();
    make_udp(1);
    arrive();
    uint8_t *payload = udp_payload(&cable.interface);
    for (unsigned at = 0; at < 500; at++) payload[at] = (uint8_t)at;
    CHECK(udp_send(&cable.interface, route(LAN_ADDRESS(1)), LAN_ADDRESS(1), swap16(7211),
                   swap16(5000), 500, UDP_WITH_CHECKSUM));
    struct lan_frame *sent = cable_sent();
    struct lan_frame again = *sent;
    lan_udp_checksum(&again);
    CHECK(memcmp(again.bytes, sent->bytes, sent->size) == 0);
    CHECK_EQUAL(542, sent->size);
    CHECK_EQUAL(0x4000, load16(sent->bytes + LAN_IP + 6)); /* do not fragment */
    CHECK(memcmp(sent->bytes, lan_host_mac, 6) == 0);
    CHECK(memcmp(route(LAN_ADDRESS(255)), lan_everyone, 6) == 0);
    CHECK(memcmp(route(make_address(8, 8, 8, 8)), lan_host_mac, 6) == 0); /* by the router */
    cable.interface.router = 0;
    CHECK(route(make_address(8, 8, 8, 8)) == NULL);
}

static void what_does_not_fit_is_dropped(void) {
    cable_reset_addressed();
    cable.interface.mtu_bytes = 1500;
    make_udp(1);
    arrive();
    (void)udp_payload(&cable.interface);
    CHECK(!udp_send(&cable.interface, lan_host_mac, LAN_ADDRESS(1), 1, 1, 1473,
                    UDP_WITHOUT_CHECKSUM));
    CHECK(
        udp_send(&cable.interface, lan_host_mac, LAN_ADDRESS(1), 1, 1, 1472, UDP_WITHOUT_CHECKSUM));
    CHECK(!udp_send(&cable.interface, lan_host_mac, LAN_ADDRESS(1), 1, 1, 8973,
                    UDP_WITHOUT_CHECKSUM));
    CHECK_EQUAL(2, COUNT.send_oversized);
    cable.full = true;
    cable.interface.sending = NULL;
    memset(udp_payload(&cable.interface), 1, NET_UDP_PAYLOAD_BYTES_MAX); /* room all the same */
    CHECK(
        !udp_send(&cable.interface, lan_host_mac, LAN_ADDRESS(1), 1, 1, 100, UDP_WITHOUT_CHECKSUM));
    CHECK_EQUAL(1, COUNT.send_ring_full);
}

int main(void) {
    checksums_equal_the_plain_sum();
    short_and_foreign_frames();
    arp_answers_for_our_address_only();
    malformed_arp();
    neighbours_are_asked_for_and_learnt();
    forgers_do_not_take_over_who_talks();
    malformed_ipv4();
    options_are_skipped();
    broadcasts_reach_us();
    echoes_of_every_size();
    other_icmp_is_dropped();
    echo_floods_are_limited();
    datagrams_of_every_size();
    malformed_udp();
    sends_what_was_asked();
    what_does_not_fit_is_dropped();
    machine_reset();
    return 0;
}
