/* SPDX-License-Identifier: Apache-2.0
 *
 * The network as a whole: NICs found, links waited for, addresses taken, datagrams both ways, and a
 * NIC that fails in every way that the field reports know.
 */
#include "lan.h"
#include "model.h"

#include "net/arp.h"
#include "net/health.h"
#include "net/net.h"

#include <sys/wait.h>
#include <unistd.h>

#define S 1000000000ull

static struct model first, second;
static struct lan_server server;
static uint32_t datagrams;
static size_t last_bytes;

static void plug_first(void (*plug)(struct model *model, uint8_t slot)) {
    model_free(&first);
    model_free(&second);
    machine_reset();
    server = lan_usual_server;
    plug(&first, 3);
}

static enum net_state boot(void) {
    datagrams = 0;
    return net_init(7211, NULL);
}

static void echo(const struct net_peer *from, uint8_t *payload, size_t bytes) {
    datagrams++;
    last_bytes = bytes;
    memcpy(net_udp_buffer(), payload, bytes);
    (void)net_udp_send(from, bytes);
}

/* Carries frames between the models and the server. */
static void carry(struct model *model) {
    static struct lan_frame answer;
    const uint8_t *frame;
    size_t size;
    if (model->device == NULL) return;
    while ((size = model_take(model, &frame)) != 0) {
        if (lan_serve(&server, frame, size, &answer) && answer.size != 0)
            (void)model->inject(model, answer.bytes, answer.size, NO_DAMAGE);
        bool asks = load16(frame + 12) == 0x0806 && frame[21] == 1 && !server.silent;
        if (asks && load_address(frame + 38) == server.server) {
            lan_arp(&answer, 2, lan_host_mac, server.server, load_address(frame + 28));
            memcpy(answer.bytes, model_mac, 6);
            (void)model->inject(model, answer.bytes, answer.size, NO_DAMAGE);
        }
    }
}

static void live_ns(uint64_t ns) {
    uint64_t end = machine_now_ns() + ns;
    while (machine_now_ns() < end) {
        if (net_poll(echo) == 0) {
            uint64_t next = net_next_timer_ns(), now = machine_now_ns();
            if (next > now) machine_sleep_ns((next < end ? next : end) - now);
        }
        carry(&first);
        carry(&second);
    }
}

/* ---- starting -------------------------------------------------------------------------------- */
static void every_nic_gets_an_address(void) {
    void (*const plugs[])(struct model *, uint8_t) = {
        model_virtio, model_e1000e,  model_i219,        model_igb,
        model_igc,    model_rtl8168, model_rtl8168_old, model_rtl8125};
    for (unsigned at = 0; at < sizeof plugs / sizeof plugs[0]; at++) {
        plug_first(plugs[at]);
        CHECK(boot() != NET_NO_NIC);
        CHECK(!net_ready());
        live_ns(2 * S);
        CHECK_EQUAL(NET_READY, net_get_state());
        const struct net_description *net = net_describe();
        CHECK_EQUAL(server.address, net->address);
        CHECK(memcmp(model_mac, net->mac, 6) == 0);
        bool jumbo = plugs[at] != model_i219 && plugs[at] != model_rtl8168_old;
        CHECK_EQUAL(jumbo ? 9000 : 1500, net->mtu_bytes);
        CHECK_EQUAL(first.mbps, net->link_mbps);
        CHECK(strcmp("d01", net->host_name) == 0 && net->lease_s == 300);
        CHECK_EQUAL(server.next_server, net->next_server);
        CHECK(strcmp("d01", machine_option("name")) == 0);
        CHECK(strcmp("198.18.0.1", machine_option("host")) == 0);
        CHECK_EQUAL(plugs[at] != model_virtio && plugs[at] != model_e1000e, net->unproven);
    }
}

static void the_boot_server_is_the_host_unless_said(void) {
    plug_first(model_e1000e);
    server.next_server = make_address(10, 200, 3, 45);
    server.setting = NULL;
    boot();
    live_ns(2 * S);
    CHECK(strcmp("10.200.3.45", machine_option("host")) == 0);
    plug_first(model_e1000e);
    server.setting = "fleet_public=04"; /* trust never comes from DHCP */
    boot();
    live_ns(2 * S);
    CHECK(machine_option("fleet_public") == NULL);
    CHECK(strstr(machine_log(), "DHCP setting fleet_public refused") != NULL);
}

static void no_nic_is_said(void) {
    plug_first(model_e1000e);
    first.device->present = false;
    first.device->window = NULL;
    CHECK_EQUAL(NET_NO_NIC, boot());
    live_ns(5 * S);
    CHECK(!net_ready());
    struct net_peer to = {.address = LAN_ADDRESS(1), .port = 1};
    memset(net_udp_buffer(), 0, NET_UDP_PAYLOAD_BYTES_MAX);
    CHECK(!net_udp_send(&to, 10));
    CHECK_EQUAL(0, net_count()->sent_frames);
}

static void an_unknown_nic_is_named(void) {
    plug_first(model_e1000e);
    set_config16(first.device, 2, 0x9999);
    CHECK_EQUAL(NET_NO_NIC, boot());
    CHECK(strstr(machine_log(), "8086:9999 no driver knows this device") != NULL);
}

/* Slots 3 to 10 are looked at, though memory for the large rings is short; the cable is in the last
 * one. What comes after is named. */
static void more_nics_than_places_are_named(void) {
    static struct model other[NIC_COUNT_MAX];
    plug_first(model_e1000e);
    first.link = false;
    for (uint8_t at = 0; at < NIC_COUNT_MAX; at++) {
        uint8_t slot = (uint8_t)(at < NIC_COUNT_MAX - 2 ? 4 + at : 5 + at);
        model_e1000e(&other[at], slot);
        other[at].link = false;
    }
    model_e1000e(&second, 3 + NIC_COUNT_MAX - 1);
    CHECK_EQUAL(NET_ASKING, boot());
    CHECK(strstr(machine_log(), "10 PCI devices, 8 usable NICs") != NULL);
    CHECK(strstr(machine_log(), "nic 00:0b.0: 8086:10d3 it is not looked at: too many") != NULL);
    CHECK(strstr(machine_log(), "nic 00:0c.0: 8086:10d3 it is not looked at: too many") != NULL);
    live_ns(2 * S);
    CHECK(net_ready());
    for (uint8_t at = 0; at < NIC_COUNT_MAX; at++) model_free(&other[at]);
}

static void a_nic_without_memory_is_named(void) {
    plug_first(model_e1000e);
    model_e1000e(&second, 4);
    machine_arena_bytes = 3u << 20; /* one has room for its smallest rings */
    CHECK_EQUAL(NET_ASKING, boot());
    CHECK(strstr(machine_log(), "nic 00:04.0: 8086:10d3 it is not looked at: too little") != NULL);
    live_ns(2 * S);
    CHECK(net_ready());
}

static void a_broken_nvm_is_named(void) {
    plug_first(model_igc);
    first.no_address = true;
    CHECK_EQUAL(NET_NO_NIC, boot());
    CHECK(strstr(machine_log(), "no valid MAC address") != NULL);
}

static void a_nic_that_is_slow_to_start_is_started_later(void) {
    plug_first(model_igc);
    first.stuck_reset = true;
    CHECK_EQUAL(NET_LINK_DOWN, boot());
    live_ns(5 * S);
    CHECK(!net_ready());
    first.stuck_reset = false;
    live_ns(8 * S);
    CHECK(net_ready());
    CHECK(memcmp(model_mac, net_describe()->mac, 6) == 0);
}

/* In a child: a panic ends it. */
static bool panics(void (*run)(void)) {
    pid_t child = fork();
    if (child == 0) {
        machine_panicked = true;
        run();
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

static void live_long(void) { live_ns(100 * S); }

static void the_only_nic_lost_is_a_panic(void) {
    plug_first(model_igc);
    first.stuck_reset = true;
    boot();
    CHECK(panics(live_long));
    plug_first(model_igc);
    model_igb(&second, 4);
    first.stuck_reset = true;
    second.link = false;
    boot();
    CHECK(!panics(live_long)); /* the other one may still get its cable */
}

static void the_cable_may_come_late(void) {
    plug_first(model_igb);
    first.link = false;
    CHECK_EQUAL(NET_LINK_DOWN, boot());
    live_ns(30 * S);
    CHECK_EQUAL(NET_LINK_DOWN, net_get_state());
    CHECK_EQUAL(0, net_count()->dhcp_sent);
    live_ns(200 * S); /* and the NIC is started anew each minute */
    CHECK(net_count()->nic_resets >= 3);
    first.link = true;
    live_ns(2 * S);
    CHECK(net_ready());
}

static void the_nic_with_the_server_is_used(void) {
    plug_first(model_igc);
    model_igb(&second, 4);
    first.link = false; /* the other socket */
    boot();
    live_ns(2 * S);
    CHECK(net_ready() && strcmp("igb", net_describe()->driver) == 0);
    CHECK(!machine_is_master(first.device));
    CHECK(machine_is_master(second.device));
}

static void fixed_address_needs_no_server(void) {
    plug_first(model_e1000e);
    struct net_fixed fixed = {.address = LAN_ADDRESS(50),
                              .netmask = LAN_NETMASK,
                              .router = LAN_ADDRESS(1),
                              .mtu_bytes = 4000};
    CHECK_EQUAL(NET_READY, net_init(7211, &fixed));
    live_ns(S);
    CHECK_EQUAL(LAN_ADDRESS(50), net_describe()->address);
    CHECK_EQUAL(4000, net_describe()->mtu_bytes);
    CHECK_EQUAL(0, net_count()->dhcp_sent);
}

/* ---- traffic --------------------------------------------------------------------------------- */
static void ready(void (*plug)(struct model *, uint8_t)) {
    plug_first(plug);
    boot();
    live_ns(2 * S);
    CHECK(net_ready());
}

static struct lan_frame frame;
static void call(size_t bytes, uint32_t to) {
    static uint8_t payload[9000];
    memcpy(frame.bytes, to == LAN_ADDRESS(255) ? lan_everyone : model_mac, 6);
    lan_udp(&frame, LAN_ADDRESS(1), 5000, to, 7211, payload, bytes);
    (void)first.inject(&first, frame.bytes, frame.size, NO_DAMAGE);
}

static void datagrams_go_both_ways(void) {
    ready(model_e1000e);
    const uint8_t *sent;
    call(8972, server.address);
    net_poll(echo);
    CHECK_EQUAL(8972, last_bytes);
    CHECK_EQUAL(9014, model_take(&first, &sent));
    CHECK_EQUAL(0, load16(sent + LAN_UDP + 6)); /* no checksum: what it holds is authenticated */
    CHECK_EQUAL(5000, load16(sent + LAN_UDP + 2));
    call(100, LAN_ADDRESS(255));
    net_poll(echo);
    CHECK_EQUAL(2, datagrams);
    for (unsigned at = 0; at < 200; at++) call(64, server.address);
    CHECK_EQUAL(NET_BURST_FRAMES_MAX, net_poll(NULL)); /* a burst has a limit, NULL is counted */
    CHECK_EQUAL(2, datagrams);
    live_ns(S);
    CHECK_EQUAL(202, net_count()->delivered_datagrams);
}

static void a_full_ring_costs_packets_only(void) {
    ready(model_igc);
    first.hold_sends = true;
    struct net_peer to = {.address = LAN_ADDRESS(1), .port = swap16(5000)};
    call(1, server.address);
    net_poll(NULL);
    unsigned refused = 0;
    for (unsigned at = 0; at < 1000; at++) {
        memset(net_udp_buffer(), 1, NET_UDP_PAYLOAD_BYTES_MAX);
        refused += !net_udp_send(&to, 1000);
    }
    CHECK(refused > 800 && refused == net_count()->send_ring_full);
    first.hold_sends = false;
    first.run(&first);
    (void)net_udp_buffer();
    CHECK(net_udp_send(&to, 1000));
    net_flush(1000);
}

static void unknown_neighbours_are_asked_for(void) {
    ready(model_igc);
    struct net_peer to = {.address = LAN_ADDRESS(40), .port = 9};
    (void)net_udp_buffer();
    CHECK(!net_udp_send(&to, 5));
    CHECK_EQUAL(1, net_count()->send_unresolved);
    to.address = make_address(9, 9, 9, 9); /* by the router, which is known or asked for */
    (void)net_udp_buffer();
    (void)net_udp_send(&to, 5);
    live_ns(S / 2);
    (void)net_udp_buffer();
    CHECK(net_udp_send(&to, 5));
}

/* The question for a neighbour that was long silent does not leave in the datagram's place. */
static void a_stale_neighbour_is_asked_beside_its_datagrams(void) {
    ready(model_e1000e);
    static const uint8_t word[] = "word";
    const uint8_t *sent;
    call(10, server.address);
    for (unsigned second_now = 0; second_now <= ARP_FRESH_NS / S; second_now++) {
        lan_udp(&frame, LAN_ADDRESS(7), 5000, server.address, 7211, word, sizeof word);
        (void)first.inject(&first, frame.bytes, frame.size, NO_DAMAGE); /* others talk on */
        live_ns(S);
    }
    for (unsigned at = 0; at < 4; at++) { /* to the neighbour, and by it as the router */
        uint32_t to = at % 2 == 0 ? LAN_ADDRESS(1) : make_address(9, 9, 9, 9);
        memset(net_udp_buffer(), (int)(0x50 + at), 100);
        CHECK(net_udp_send(&(struct net_peer){.address = to, .port = swap16(5000)}, 100));
        CHECK_EQUAL(142, model_take(&first, &sent));
        CHECK(memcmp(sent, lan_host_mac, 6) == 0 && load16(sent + 12) == 0x0800);
        CHECK_EQUAL(to, load_address(sent + LAN_IP + 16));
        CHECK_EQUAL(5000, load16(sent + LAN_UDP + 2));
        for (unsigned byte = 0; byte < 100; byte++)
            CHECK_EQUAL(0x50 + at, sent[LAN_PAYLOAD + byte]);
        CHECK_EQUAL(0, model_take(&first, &sent));
    }
    net_poll(NULL);
    CHECK_EQUAL(60, model_take(&first, &sent));
    CHECK_EQUAL(0x0806, load16(sent + 12));
    CHECK_EQUAL(LAN_ADDRESS(1), load_address(sent + 38));
    net_poll(NULL);
    CHECK_EQUAL(0, model_take(&first, &sent)); /* one question is enough */
}

/* ---- failing NICs ---------------------------------------------------------------------------- */
static void a_lost_link_is_waited_for(void) {
    ready(model_igc);
    for (unsigned flap = 0; flap < 5; flap++) {
        first.link = false;
        live_ns(S);
        CHECK(net_ready() && net_describe()->link_mbps == 0);
        first.link = true;
        uint32_t before = server.requests;
        live_ns(S);
        CHECK_EQUAL(before + 1, server.requests); /* asks whether it is still in its domain */
    }
    CHECK_EQUAL(0, net_count()->addresses_lost);
    call(10, server.address);
    live_ns(S);
    CHECK_EQUAL(1, datagrams);
}

static void a_vanished_nic_is_started_when_it_is_back(void) {
    ready(model_igc);
    first.device->vanished = true;
    live_ns(3 * S);
    CHECK(!net_ready());
    CHECK(strstr(machine_log(), "does not start") != NULL);
    first.device->vanished = false;
    set_config16(first.device, 4, 2);
    live_ns(8 * S);
    CHECK(net_ready());
    call(10, server.address);
    live_ns(S);
    CHECK_EQUAL(1, datagrams);
}

static void stuck_sends_are_found(void) {
    ready(model_igc);
    first.hold_sends = true;
    call(10, server.address);
    live_ns(HEALTH_SEND_STALL_NS / 2);
    CHECK_EQUAL(0, net_count()->nic_resets);
    live_ns(HEALTH_SEND_STALL_NS);
    CHECK_EQUAL(1, net_count()->nic_resets);
    first.hold_sends = false;
    live_ns(S);
    call(10, server.address);
    live_ns(S);
    CHECK_EQUAL(2, datagrams);
}

static void deafness_is_found(void) {
    ready(model_igc);
    live_ns(100 * S); /* quiet, but the server answers when it is asked */
    CHECK_EQUAL(0, net_count()->nic_resets);
    server.silent = true;
    live_ns(25 * S);
    CHECK_EQUAL(0, net_count()->nic_resets);
    CHECK(net_count()->arp_requests_sent > 3);
    live_ns(10 * S);
    CHECK_EQUAL(1, net_count()->nic_resets);
    live_ns(1000 * S); /* the host is off: starts get rarer */
    CHECK(net_count()->nic_resets < 10);
}

static void a_restart_keeps_the_address(void) {
    ready(model_rtl8125);
    first.hold_sends = true;
    call(10, server.address);
    live_ns(3 * S);
    first.hold_sends = false;
    CHECK(net_count()->nic_resets >= 1);
    CHECK(net_ready());
    CHECK_EQUAL(server.address, net_describe()->address);
    CHECK_EQUAL(0, net_count()->addresses_lost);
}

static void a_magic_packet_wakes_what_was_switched_off(void) {
    void (*const plugs[])(struct model *, uint8_t) = {model_e1000e, model_i219, model_igb,
                                                      model_igc};
    for (unsigned at = 0; at < 4; at++) {
        ready(plugs[at]);
        CHECK(!first.wakes(&first));
        CHECK(net_arm_wake());
        CHECK(first.wakes(&first) && !machine_is_master(first.device));
        CHECK(strstr(machine_log(), "Wake-on-LAN armed") != NULL);
    }
    ready(model_igc);
    first.device->config[0x63] = 0; /* the board has no power for it */
    CHECK(!net_arm_wake());
    ready(model_rtl8125);
    CHECK(!net_arm_wake());
    CHECK(strstr(machine_log(), "Wake-on-LAN is not possible") != NULL);
}

static void stopped_for_good(void) {
    ready(model_e1000e);
    net_flush(1000);
    net_stop();
    CHECK(!machine_is_master(first.device));
    CHECK(!net_ready());
}

int main(void) {
    every_nic_gets_an_address();
    the_boot_server_is_the_host_unless_said();
    no_nic_is_said();
    an_unknown_nic_is_named();
    more_nics_than_places_are_named();
    a_nic_without_memory_is_named();
    a_broken_nvm_is_named();
    a_nic_that_is_slow_to_start_is_started_later();
    the_only_nic_lost_is_a_panic();
    the_cable_may_come_late();
    the_nic_with_the_server_is_used();
    fixed_address_needs_no_server();
    datagrams_go_both_ways();
    a_full_ring_costs_packets_only();
    unknown_neighbours_are_asked_for();
    a_stale_neighbour_is_asked_beside_its_datagrams();
    a_lost_link_is_waited_for();
    a_vanished_nic_is_started_when_it_is_back();
    stuck_sends_are_found();
    deafness_is_found();
    a_restart_keeps_the_address();
    a_magic_packet_wakes_what_was_switched_off();
    stopped_for_good();
    model_free(&first);
    model_free(&second);
    machine_reset();
    return 0;
}
