/* SPDX-License-Identifier: Apache-2.0
 *
 * The DHCP client against servers that are right, slow, wrong, hostile and absent.
 */
#include "cable.h"

#include "net/random.h"

#define S 1000000000ull
#define DHCP (cable.interface.dhcp)
#define COUNT (cable.interface.count)

static struct lan_server server;
static struct lan_frame answer;

static void begin(void) {
    cable_reset();
    server = lan_usual_server;
    dhcp_start(&cable.interface);
}

/* Hand everything that was sent to the server, and its answers to us. */
static void exchange(void) {
    for (struct lan_frame *sent; (sent = cable_sent()) != NULL;)
        if (lan_serve(&server, sent->bytes, sent->size, &answer) && answer.size != 0)
            cable_receive(answer.bytes, answer.size);
}

static void wait_ns(uint64_t ns) {
    uint64_t end = cable.interface.now_ns + ns;
    while (DHCP.next_ns <= end && DHCP.next_ns != UINT64_MAX) {
        if (DHCP.next_ns > cable.interface.now_ns) cable.interface.now_ns = DHCP.next_ns;
        dhcp_tick(&cable.interface);
        exchange();
        if (DHCP.next_ns <= cable.interface.now_ns) cable.interface.now_ns++;
    }
    cable.interface.now_ns = end;
    dhcp_tick(&cable.interface);
    exchange();
}

static void bind_it(void) {
    begin();
    exchange();
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
}

/* ---- the usual way --------------------------------------------------------------------------- */
static void gets_an_address_at_once(void) {
    uint8_t bytes;
    bind_it();
    CHECK_EQUAL(1, server.discovers);
    CHECK_EQUAL(1, server.requests);
    CHECK_EQUAL(1, cable.taken);
    CHECK_EQUAL(lan_usual_server.address, cable.interface.address);
    CHECK(strcmp(cable.binding.host_name, "d01") == 0);
    CHECK_EQUAL(9000, cable.binding.mtu_bytes);
    const uint8_t *class = lan_option(&server.last_question, 60, &bytes);
    CHECK(class != NULL && bytes == 6 && memcmp(class, "duckos", 6) == 0);
    CHECK(lan_option(&server.last_question, 61, &bytes) == NULL);
    CHECK_EQUAL(server.address, load_address(lan_option(&server.last_question, 50, &bytes)));
    CHECK_EQUAL(server.server, load_address(lan_option(&server.last_question, 54, &bytes)));
    const uint8_t *question = server.last_question.bytes;
    CHECK(memcmp(question + LAN_PAYLOAD + 28, cable_mac, 6) == 0);
    CHECK_EQUAL(0, load_address(question + LAN_IP + 12)); /* from nobody, to everybody */
    CHECK_EQUAL(0xffffffff, load_address(question + LAN_IP + 16));
}

static void asks_4_8_16_32_seconds_apart(void) {
    uint64_t first[2] = {0, 0};
    for (unsigned round = 0; round < 2; round++) {
        static const uint64_t expected_s[] = {4, 8, 16, 32, 32, 32};
        begin();
        net_random_seed(round + 1);
        dhcp_start(&cable.interface);
        for (unsigned at = 0; at < 6; at++) {
            uint64_t wait = DHCP.next_ns - cable.interface.now_ns;
            CHECK(wait >= (expected_s[at] - 1) * S && wait < (expected_s[at] + 1) * S);
            first[round] += wait;
            cable.interface.now_ns = DHCP.next_ns;
            dhcp_tick(&cable.interface);
        }
        CHECK_EQUAL(8, COUNT.dhcp_sent);
    }
    CHECK(first[0] != first[1]); /* two ducks do not ask in step */
}

static void collects_offers_and_takes_the_better(void) {
    begin();
    struct lan_server plain = {.address = LAN_ADDRESS(77),
                               .server = LAN_ADDRESS(9),
                               .netmask = LAN_NETMASK,
                               .lease_s = 60};
    lan_answer(&plain, DHCP_OFFER, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(DHCP_SELECTING, DHCP.state);
    lan_answer(&lan_usual_server, DHCP_OFFER, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size); /* has boot information: no more waiting */
    CHECK_EQUAL(DHCP_REQUESTING, DHCP.state);
    CHECK_EQUAL(lan_usual_server.server, DHCP.offer.server);
    begin();
    server.silent = true;
    lan_answer(&plain, DHCP_OFFER, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    wait_ns(DHCP_COLLECT_NS - 1);
    CHECK_EQUAL(DHCP_SELECTING, DHCP.state);
    cable.interface.now_ns++;
    dhcp_tick(&cable.interface);
    CHECK_EQUAL(DHCP_REQUESTING, DHCP.state);
    CHECK_EQUAL(plain.server, DHCP.offer.server);
}

static void gives_a_dead_server_up(void) {
    begin();
    lan_answer(&server, DHCP_OFFER, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(DHCP_REQUESTING, DHCP.state);
    server.silent = true;
    exchange(); /* the first discover and request */
    wait_ns(70 * S);
    CHECK_EQUAL(DHCP_REQUEST_TRIES, server.requests);
    CHECK_EQUAL(DHCP_SELECTING, DHCP.state);
    server.silent = false;
    wait_ns(40 * S);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
}

/* ---- the lease ------------------------------------------------------------------------------- */
static void know_the_server(void) {
    lan_arp(&answer, 1, lan_host_mac, server.server, cable.interface.address);
    cable_receive(answer.bytes, answer.size);
    while (cable_sent() != NULL) {
    }
}

static void renews_at_half_time_from_its_server(void) {
    bind_it();
    know_the_server();
    wait_ns(150 * S - 1);
    CHECK_EQUAL(1, server.requests);
    cable.interface.now_ns++;
    dhcp_tick(&cable.interface);
    struct lan_frame *sent = cable_sent(); /* the MAC is old: used, and asked for */
    CHECK(sent != NULL && memcmp(sent->bytes, lan_host_mac, 6) == 0);
    arp_ask_stale(&cable.interface);
    CHECK_EQUAL(0x0806, load16(cable_sent()->bytes + 12));
    CHECK_EQUAL(server.server, load_address(sent->bytes + LAN_IP + 16));
    CHECK_EQUAL(server.address, load_address(sent->bytes + LAN_PAYLOAD + 12)); /* ciaddr */
    CHECK(lan_serve(&server, sent->bytes, sent->size, &answer));
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
    CHECK_EQUAL(2, cable.taken);
    CHECK_EQUAL(0, cable.lost);
    uint8_t bytes;
    CHECK(lan_option(&server.last_question, 50, &bytes) == NULL);
    CHECK(lan_option(&server.last_question, 54, &bytes) == NULL);
    wait_ns(1000 * S); /* and again and again */
    CHECK(server.requests >= 7 && cable.lost == 0);
}

static void asks_anyone_then_gives_the_address_up(void) {
    bind_it();
    know_the_server();
    server.silent = true;
    wait_ns(261 * S);
    CHECK_EQUAL(DHCP_RENEWING, DHCP.state);
    wait_ns(1 * S); /* seven eighths of 300 s */
    CHECK_EQUAL(DHCP_REBINDING, DHCP.state);
    CHECK_EQUAL(0xffffffff, load_address(server.last_question.bytes + LAN_IP + 16));
    wait_ns(37 * S);
    CHECK_EQUAL(0, cable.lost);
    wait_ns(2 * S);
    CHECK_EQUAL(1, cable.lost);
    CHECK_EQUAL(DHCP_SELECTING, DHCP.state);
    CHECK_EQUAL(0, cable.interface.address);
    server.silent = false;
    wait_ns(40 * S);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
}

static void another_server_may_rebind(void) {
    bind_it();
    server.silent = true;
    wait_ns(263 * S);
    CHECK_EQUAL(DHCP_REBINDING, DHCP.state);
    server.silent = false;
    server.server = LAN_ADDRESS(2);
    wait_ns(37 * S);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
    CHECK_EQUAL(0, cable.lost);
}

static void times_of_the_server_if_they_make_sense(void) {
    static const uint32_t said[][2] = {{100, 200}, {0, 200}, {200, 100}, {100, 400}, {300, 300}};
    for (unsigned at = 0; at < 5; at++) {
        begin();
        server.renew_s = said[at][0];
        server.rebind_s = said[at][1];
        exchange();
        CHECK_EQUAL(DHCP_BOUND, DHCP.state);
        CHECK_EQUAL((at == 0 ? 100 : 150) * S, DHCP.renew_ns - cable.interface.now_ns);
        CHECK_EQUAL((at == 0 ? 200 : 262) * S, DHCP.rebind_ns - cable.interface.now_ns);
    }
}

static void infinite_lease_is_left_alone(void) {
    begin();
    server.lease_s = UINT32_MAX;
    exchange();
    CHECK_EQUAL(UINT64_MAX, DHCP.next_ns);
    wait_ns(100000 * S);
    CHECK_EQUAL(1, server.requests);
    CHECK_EQUAL(0, cable.lost);
}

static void refused_at_any_time(void) {
    begin();
    server.refuses = true;
    exchange();
    CHECK_EQUAL(1, COUNT.dhcp_naks);
    CHECK_EQUAL(0, cable.taken);
    server.refuses = false;
    wait_ns(10 * S);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
    know_the_server();
    server.refuses = true;
    wait_ns(151 * S);
    CHECK_EQUAL(1, cable.lost);
    server.refuses = false;
    wait_ns(10 * S);
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
    CHECK_EQUAL(2, cable.taken);
}

static void asks_again_after_the_link_was_gone(void) {
    bind_it();
    dhcp_confirm(&cable.interface);
    exchange();
    CHECK_EQUAL(DHCP_BOUND, DHCP.state);
    CHECK_EQUAL(0, cable.lost);
    server.refuses = true; /* plugged into another domain */
    dhcp_confirm(&cable.interface);
    exchange();
    CHECK_EQUAL(1, cable.lost);
    server.refuses = false;
    server.address = LAN_ADDRESS(110);
    wait_ns(10 * S);
    CHECK_EQUAL(LAN_ADDRESS(110), cable.interface.address);
    begin();
    server.silent = true;
    exchange();
    dhcp_confirm(&cable.interface); /* had none: starts over */
    CHECK_EQUAL(DHCP_SELECTING, DHCP.state);
}

/* ---- forged and malformed answers ------------------------------------------------------------ */
static void answers_of_others_are_ignored(void) {
    static const uint8_t other[6] = {0x52, 0x54, 0, 0x12, 0x34, 0x57};
    bind_it();
    know_the_server();
    lan_answer(&server, DHCP_NAK, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size); /* nothing was asked */
    lan_answer(&server, DHCP_ACK, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(2, COUNT.dhcp_ignored);
    wait_ns(150 * S - 1);
    server.silent = true;
    wait_ns(2);
    CHECK_EQUAL(DHCP_RENEWING, DHCP.state);
    struct lan_server forger = server;
    forger.silent = false;
    lan_answer(&forger, DHCP_NAK, DHCP.transaction + 1, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    lan_answer(&forger, DHCP_NAK, DHCP.transaction, other, &answer);
    memcpy(answer.bytes, cable_mac, 6);
    cable_receive(answer.bytes, answer.size);
    forger.server = LAN_ADDRESS(66);
    lan_answer(&forger, DHCP_NAK, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    forger.server = server.server;
    forger.address = LAN_ADDRESS(111); /* an address that we did not ask for */
    lan_answer(&forger, DHCP_ACK, DHCP.transaction, cable_mac, &answer);
    store_address(answer.bytes + LAN_IP + 16, cable.interface.address);
    lan_ipv4_checksum(&answer);
    lan_udp_checksum(&answer);
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(6, COUNT.dhcp_ignored);
    CHECK_EQUAL(0, cable.lost);
}

static struct dhcp_answer parsed;
static enum dhcp_parsed parse(const uint8_t *message, size_t bytes) {
    uint8_t *exact = malloc(bytes != 0 ? bytes : 1);
    memcpy(exact, message, bytes);
    enum dhcp_parsed result = dhcp_parse(exact, bytes, 0x12345678, cable_mac, &parsed);
    free(exact);
    return result;
}

static uint8_t message[600];
static size_t message_bytes;
static void make_message(const struct lan_server *from) {
    lan_answer(from, DHCP_ACK, 0x12345678, cable_mac, &answer);
    message_bytes = load16(answer.bytes + LAN_UDP + 4) - 8u;
    memcpy(message, answer.bytes + LAN_PAYLOAD, message_bytes);
}

static void cut_anywhere_is_harmless(void) {
    make_message(&lan_usual_server);
    CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes));
    for (size_t bytes = 0; bytes + 1 < message_bytes; bytes++)
        if (parse(message, bytes) == DHCP_PARSED) CHECK(parsed.address == server.address);
    for (size_t bytes = 0; bytes < 240; bytes++) CHECK_EQUAL(DHCP_MALFORMED, parse(message, bytes));
    for (size_t at = 236; at < 240; at++) {
        message[at] ^= 1;
        CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes));
        message[at] ^= 1;
    }
}

/* Options that the RFC gives a length, with every other length. */
static void wrong_lengths_are_refused(void) {
    static const struct {
        uint8_t code, good;
    } options[] = {{1, 4}, {26, 2}, {51, 4}, {53, 1}, {54, 4}, {58, 4}, {59, 4}, {52, 1}};
    for (unsigned at = 0; at < sizeof options / sizeof options[0]; at++) {
        for (uint8_t length = 0; length < 12; length++) {
            if (length == options[at].good) continue;
            make_message(&lan_usual_server);
            uint8_t *end = message + message_bytes - 1;
            *end++ = options[at].code;
            *end++ = length;
            memset(end, 1, length);
            end[length] = 255;
            CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes + 2u + length));
        }
    }
}

static void senseless_values_are_refused(void) {
    struct lan_server from = lan_usual_server;
    const uint32_t masks[] = {0, make_address(255, 0, 255, 0), 0xffffffff,
                              make_address(255, 255, 255, 254)};
    for (unsigned at = 0; at < 4; at++) {
        from.netmask = masks[at];
        make_message(&from);
        CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes));
    }
    from = lan_usual_server;
    const uint32_t addresses[] = {
        LAN_ADDRESS(0), LAN_ADDRESS(255), 0, make_address(127, 0, 0, 1), make_address(224, 0, 0, 1),
        0xffffffff};
    for (unsigned at = 0; at < 6; at++) {
        from.address = addresses[at];
        make_message(&from);
        CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes));
    }
    from = lan_usual_server;
    from.lease_s = 0;
    make_message(&from);
    CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes));
    from = lan_usual_server;
    from.server = make_address(0, 1, 1, 1);
    make_message(&from);
    CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes));
}

/* Options in the file and server name fields (RFC 2132, 9.3). */
static void overloaded_fields_are_read(void) {
    struct lan_server from = lan_usual_server;
    from.mtu = 0;
    from.name = NULL;
    make_message(&from);
    const uint8_t overload[] = {52, 1, 3, 255}, in_file[] = {26, 2, 0x20, 0x00, 255},
                  in_name[] = {12, 2, 'd', '7', 255};
    memcpy(message + message_bytes - 1, overload, sizeof overload);
    memcpy(message + 108, in_file, sizeof in_file);
    memcpy(message + 44, in_name, sizeof in_name);
    CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes + 3));
    CHECK_EQUAL(0x2000, parsed.mtu_bytes);
    CHECK(strcmp("d7", parsed.host_name) == 0);
    CHECK(!parsed.has_boot_file);
    memcpy(message + 108, overload, sizeof overload); /* overloads again */
    CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes + 3));
    memset(message + 108, 12, 128); /* runs over the field's end */
    CHECK_EQUAL(DHCP_MALFORMED, parse(message, message_bytes + 3));
    memset(message + 108, 0, 128); /* only padding */
    CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes + 3));
}

static void names_are_names(void) {
    static const char *const bad[] = {"d 1", "d/1", "d\n1", "\x80", "$(x)"};
    struct lan_server from = lan_usual_server;
    for (unsigned at = 0; at < 5; at++) {
        from.name = bad[at];
        make_message(&from);
        CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes));
        CHECK_EQUAL(0, parsed.host_name[0]);
    }
    from.name = "a23456789b23456789c23456789d23456789e23456789f23456789g23456789h";
    make_message(&from);
    CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes));
    CHECK_EQUAL(0, parsed.host_name[0]); /* 64 bytes: one too many */
    from.name = "duck-07.shelf";
    make_message(&from);
    CHECK_EQUAL(DHCP_PARSED, parse(message, message_bytes));
    CHECK(strcmp("duck-07.shelf", parsed.host_name) == 0);
}

static void vendor_options_are_walked(void) {
    static const uint8_t text[] = {0, 9, 2, 'x', 'y', 1, 3, 'a', '=', 'b', 1, 0, 1, 200, 'c'};
    struct dhcp_answer from = {.vendor_bytes = sizeof text};
    memcpy(from.vendor, text, sizeof text);
    size_t at = 0;
    uint8_t bytes;
    const uint8_t *found = dhcp_vendor_option(&from, 1, &at, &bytes);
    CHECK(found != NULL && bytes == 3 && memcmp(found, "a=b", 3) == 0);
    found = dhcp_vendor_option(&from, 1, &at, &bytes);
    CHECK(found != NULL && bytes == 0);
    CHECK(dhcp_vendor_option(&from, 1, &at, &bytes) == NULL); /* longer than what is left */
    CHECK(dhcp_vendor_option(&from, 1, &at, &bytes) == NULL);
}

static void proxies_without_address_are_ignored(void) {
    begin();
    struct lan_server proxy = lan_usual_server;
    proxy.address = 0;
    lan_answer(&proxy, DHCP_OFFER, DHCP.transaction, cable_mac, &answer);
    cable_receive(answer.bytes, answer.size);
    CHECK_EQUAL(1, COUNT.dhcp_ignored);
    CHECK(!DHCP.has_offer);
}

int main(void) {
    gets_an_address_at_once();
    asks_4_8_16_32_seconds_apart();
    collects_offers_and_takes_the_better();
    gives_a_dead_server_up();
    renews_at_half_time_from_its_server();
    asks_anyone_then_gives_the_address_up();
    another_server_may_rebind();
    times_of_the_server_if_they_make_sense();
    infinite_lease_is_left_alone();
    refused_at_any_time();
    asks_again_after_the_link_was_gone();
    answers_of_others_are_ignored();
    cut_anywhere_is_harmless();
    wrong_lengths_are_refused();
    senseless_values_are_refused();
    overloaded_fields_are_read();
    names_are_names();
    vendor_options_are_walked();
    proxies_without_address_are_ignored();
    machine_reset();
    return 0;
}
