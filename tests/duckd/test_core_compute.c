/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules for compute sessions and calls against a fake platform whose
 * clock the test moves: how lost pieces are asked for, who owns the session, when the core gives
 * up.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

#define MS UINT64_C(1000000)

static struct fake_host a, b;
static uint64_t seed;

/* ---- compute --------------------------------------------------------------------------------- */

/* When the core has nothing to do but to forget the key of the last handshake. */
static uint64_t keys_end(void) {
    return core.handshake.ephemeral[core.handshake.in_use].born_ns + CORE_COOKIE_NS;
}

static void load_kernel(struct fake_host *host) {
    uint8_t elf[1024];
    uint32_t bytes = tiny_elf(elf);
    host_load(host, DUCK_REGION_KERNEL, elf, bytes);
}

static void serving(bool with_domain) {
    fake_core_start(seed);
    host_make(&a, 1000, with_domain);
    host_join(&a);
    load_kernel(&a);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
    fake_forget_sent();
}

static void send_call_part(const uint8_t *bytes, uint32_t count, uint32_t sequence, uint32_t index,
                           uint16_t stride, uint8_t key) {
    uint32_t at = index * stride;
    uint32_t part = count - at < stride ? count - at : stride;
    struct fake_fragment fragment = {DUCK_MSG_CALL, key, sequence, count, index, stride};
    host_send(&a, &fragment, bytes + at, part);
}

/* Put a RESULT together from what was sent; false while pieces are missing. */
static bool result_equals(uint32_t sequence, const uint8_t *bytes, uint32_t count) {
    static uint8_t got[DUCK_WIRE_CALL_BYTES_MAX];
    uint32_t have = 0;
    memset(got, 0xEE, count);
    for (uint32_t i = 0; i < fake.sent_count; i++) {
        struct duck_packet_header header = header_of(&fake.sent[i]);
        if (header.type != DUCK_MSG_RESULT || header.sequence != sequence) continue;
        CHECK_EQUAL(count, header.message_bytes);
        uint32_t part = header.payload_bytes - (uint32_t)sizeof(struct duck_result_prefix);
        memcpy(got + header.fragment_index * header.fragment_bytes,
               payload_of(&fake.sent[i]) + sizeof(struct duck_result_prefix), part);
        have += part;
    }
    return have >= count && memcmp(got, bytes, count) == 0;
}

static void test_calls_reassembled_in_any_order(void) {
    static uint8_t bytes[4][200000];
    serving(true);
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t count[4], sent[4] = {0}, order[4][3200];
        const uint16_t strides[] = {64, 128, 1408, 8896};
        uint16_t stride = strides[fake_below(4)];
        uint32_t first = core.session.completed + 1;
        for (uint32_t c = 0; c < 4; c++) {
            count[c] = 1 + fake_below(sizeof bytes[0]);
            for (uint32_t i = 0; i < count[c]; i++) bytes[c][i] = (uint8_t)fake_random();
            uint32_t fragments = duck_fragment_count(count[c], stride);
            for (uint32_t i = 0; i < fragments; i++) order[c][i] = i;
            for (uint32_t i = fragments; i-- > 1;) {
                uint32_t other = fake_below(i + 1), kept = order[c][i];
                order[c][i] = order[c][other];
                order[c][other] = kept;
            }
        }
        /* The four calls' fragments interleaved, some twice, domain and session keys mixed. */
        for (uint32_t left = 1; left != 0;) {
            left = 0;
            for (uint32_t c = 0; c < 4; c++) {
                if (sent[c] == duck_fragment_count(count[c], stride)) continue;
                left = 1;
                if (fake_below(2) == 0) continue;
                uint8_t key = fake_below(2) ? DUCK_KEY_DOMAIN : DUCK_KEY_SESSION;
                uint32_t index = order[c][sent[c]++];
                send_call_part(bytes[c], count[c], first + c, index, stride, key);
                if (fake_below(10) == 0)
                    send_call_part(bytes[c], count[c], first + c, index, stride, key);
            }
        }
        CHECK_EQUAL(first + 3, core.session.published);
        kernel_echo();
        core_settle();
        for (uint32_t c = 0; c < 4; c++) CHECK(result_equals(first + c, bytes[c], count[c]));
        fake_forget_sent();
    }
    CHECK_EQUAL(80, core.stats.calls_finished);
}

static void test_missing_call_fragments_are_asked_for(void) {
    static uint8_t bytes[64 * 1408];
    serving(false);
    for (uint32_t i = 0; i < 64; i++)
        if (i != 3 && i != 4 && i != 9 && i != 63)
            send_call_part(bytes, sizeof bytes, 1, i, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(fake.now_ns + CORE_NACK_QUIET_NS, core_tick(&core));
    CHECK_EQUAL(0, host_count(&a, DUCK_MSG_NACK));
    fake.now_ns += CORE_NACK_QUIET_NS;
    core_tick(&core);
    struct duck_nack nack = {0};
    const struct fake_packet *packet = host_last(&a, DUCK_MSG_NACK);
    CHECK(packet != NULL);
    memcpy(&nack, payload_of(packet), header_of(packet).payload_bytes);
    CHECK_EQUAL(DUCK_MSG_CALL, nack.message_type);
    CHECK_EQUAL(3, nack.range_count);
    CHECK_EQUAL(3, nack.range[0].begin);
    CHECK_EQUAL(5, nack.range[0].end);
    CHECK_EQUAL(9, nack.range[1].begin);
    CHECK_EQUAL(10, nack.range[1].end);
    CHECK_EQUAL(63, nack.range[2].begin);
    CHECK_EQUAL(64, nack.range[2].end);
    /* Nothing comes: a few more tries, each after twice the time, then silence. */
    for (int i = 0; i < 2000; i++) {
        fake.now_ns += MS;
        core_tick(&core);
    }
    CHECK_EQUAL(CORE_NACK_TRIES, host_count(&a, DUCK_MSG_NACK));
    CHECK_EQUAL(keys_end(), core_tick(&core));
    /* A QUERY wakes it up again. */
    struct duck_query query = {{0}};
    host_send_one(&a, DUCK_MSG_QUERY, 1, &query, sizeof query);
    CHECK_EQUAL(CORE_NACK_TRIES + 1, host_count(&a, DUCK_MSG_NACK));
}

/* One short packet of a huge call: all NACKs together are no longer than it. */
static void test_nacks_are_no_longer_than_what_came(void) {
    static uint8_t bytes[64 * 1024];
    serving(false);
    send_call_part(bytes, sizeof bytes, 1, 500, 64, DUCK_KEY_SESSION);
    uint64_t asked = sizeof(struct duck_packet_header) + 64, answered = 0;
    for (int i = 0; i < 2000; i++) {
        fake.now_ns += MS;
        core_tick(&core);
    }
    for (uint32_t i = 0; i < fake.sent_count; i++) answered += fake.sent[i].bytes;
    CHECK(answered > 0);
    CHECK(answered <= asked);
}

static void test_fragments_that_contradict_each_other(void) {
    static uint8_t bytes[3000];
    serving(false);
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    send_call_part(bytes, sizeof bytes, 1, 1, 1344, DUCK_KEY_SESSION);
    send_call_part(bytes, sizeof bytes - 1, 1, 1, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(2, core.stats.dropped_size);
    CHECK_EQUAL(1, core.session.call[1].received);
}

static void test_owner_is_never_displaced(void) {
    static struct fake_host others[3 * CORE_ASSOCIATIONS];
    uint8_t bytes[64] = {9};
    serving(true);
    for (uint32_t i = 0; i < 3 * CORE_ASSOCIATIONS; i++) {
        fake.now_ns += 10 * MS;
        host_make(&others[i], (uint16_t)(3000 + i), true);
        host_join(&others[i]);
        fake_forget_sent();
    }
    send_call_part(bytes, sizeof bytes, 1, 0, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(1, core.session.published);
}

/* Domain keys come and go; the place of an old one carries no replay window over to a new one. */
static void test_domains_in_turn(void) {
    uint8_t bytes[64] = {9};
    serving(true);
    for (uint32_t i = 0; i < 3 * CORE_DOMAINS; i++) {
        fake.now_ns += 3001 * MS;
        host_make(&a, (uint16_t)(3000 + i), true);
        a.domain_key.counter = 1000000 - i * 5000;
        host_join(&a);
        CHECK_EQUAL(DUCK_OK, host_open(&a, DUCK_OPEN_TAKEOVER).status);
        send_call_part(bytes, sizeof bytes, 1, 0, 64, DUCK_KEY_DOMAIN);
        CHECK_EQUAL(1, core.session.published);
        fake_forget_sent();
    }
}

static void test_wholly_lost_call_is_asked_for(void) {
    static uint8_t bytes[1000];
    serving(false);
    send_call_part(bytes, sizeof bytes, 2, 0, 1408, DUCK_KEY_SESSION);
    fake.now_ns += CORE_NACK_QUIET_NS;
    core_tick(&core);
    const struct fake_packet *packet = host_last(&a, DUCK_MSG_NACK);
    CHECK(packet != NULL && header_of(packet).sequence == 1);
    struct duck_nack nack = {0};
    memcpy(&nack, payload_of(packet), header_of(packet).payload_bytes);
    CHECK_EQUAL(1, nack.range_count);
    CHECK_EQUAL(0, nack.range[0].begin);
    CHECK_EQUAL(UINT32_MAX, nack.range[0].end);
    CHECK_EQUAL(0, core.session.published);
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(2, core.session.published);
}

static void test_credit_and_cache(void) {
    uint8_t bytes[64] = {7};
    struct duck_query query = {{0}};
    serving(false);
    for (uint32_t i = 1; i <= 5; i++)
        send_call_part(bytes, sizeof bytes, i, 0, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(4, core.session.published); /* the fifth breaks the credit */
    CHECK_EQUAL(1, core.stats.dropped_limit);
    kernel_echo();
    core_settle();
    CHECK_EQUAL(4, host_count(&a, DUCK_MSG_RESULT));
    /* A repeated call is answered from the cache, never computed again, and not for every packet.
     */
    fake.now_ns += 2 * CORE_REPEAT_QUIET_NS;
    for (int i = 0; i < 5; i++) send_call_part(bytes, sizeof bytes, 2, 0, 1408, DUCK_KEY_SESSION);
    core_settle();
    CHECK_EQUAL(5, host_count(&a, DUCK_MSG_RESULT));
    CHECK_EQUAL(4, core.stats.calls_finished);
    CHECK_EQUAL(1, core.stats.calls_repeated);
    host_send_one(&a, DUCK_MSG_QUERY, 3, &query, sizeof query);
    core_settle();
    CHECK_EQUAL(6, host_count(&a, DUCK_MSG_RESULT));
    /* Call 5 takes the place of call 1. */
    send_call_part(bytes, sizeof bytes, 5, 0, 1408, DUCK_KEY_SESSION);
    host_send_one(&a, DUCK_MSG_QUERY, 5, &query, sizeof query);
    CHECK_EQUAL(1, host_count(&a, DUCK_MSG_BUSY));
    host_send_one(&a, DUCK_MSG_QUERY, 1, &query, sizeof query);
    CHECK_EQUAL(1, host_count(&a, DUCK_MSG_FAULT));
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(2, core.stats.dropped_limit);
}

static void test_result_pieces_are_sent_again(void) {
    static uint8_t bytes[100000];
    serving(false);
    for (uint32_t i = 0; i < duck_fragment_count(sizeof bytes, 1408); i++)
        send_call_part(bytes, sizeof bytes, 1, i, 1408, DUCK_KEY_SESSION);
    kernel_echo();
    core_settle();
    CHECK(result_equals(1, bytes, sizeof bytes));
    fake_forget_sent();
    struct duck_nack nack = {
        .message_type = DUCK_MSG_RESULT, .range_count = 3, .range = {{1, 3}, {70, 999}, {999, 5}}};
    host_send_one(&a, DUCK_MSG_NACK, 1, &nack, 8 + 3 * 8);
    core_settle();
    CHECK_EQUAL(2 + 2, host_count(&a, DUCK_MSG_RESULT)); /* 100000 bytes are fragments 0..71 */
    uint64_t dropped = core.stats.dropped_size;
    nack.range_count = 65;
    host_send_one(&a, DUCK_MSG_NACK, 1, &nack, 8 + 3 * 8);
    nack.range_count = 2;
    host_send_one(&a, DUCK_MSG_NACK, 1, &nack, 8 + 3 * 8);
    host_send_one(&a, DUCK_MSG_NACK, 1, &nack, 4);
    CHECK_EQUAL(dropped + 3, core.stats.dropped_size);
}

static void test_time_limit_ends_the_session(void) {
    uint8_t bytes[64] = {0};
    serving(false);
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    CHECK_EQUAL(fake.now_ns + 1000 * MS, core_tick(&core));
    fake.now_ns += 1000 * MS - 1;
    core_tick(&core);
    CHECK(fake.session_runs);
    fake.now_ns += 1;
    core_tick(&core);
    CHECK(!fake.session_runs);
    struct duck_fault fault;
    memcpy(&fault, payload_of(host_last(&a, DUCK_MSG_FAULT)), sizeof fault);
    CHECK_EQUAL(DUCK_ERR_TIME_LIMIT, fault.status);
    CHECK_EQUAL(1, fault.call);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
}

/* The limit is for each call by itself: a queue of short calls may take longer in total. */
static void test_time_limit_is_per_call(void) {
    uint8_t bytes[64] = {0};
    serving(false);
    for (uint32_t i = 1; i <= 4; i++)
        send_call_part(bytes, sizeof bytes, i, 0, 1408, DUCK_KEY_SESSION);
    for (uint32_t i = 1; i <= 4; i++) {
        fake.now_ns += 900 * MS;
        fake.session.mailbox->slot[i % DUCK_KERNEL_SLOTS].output_bytes = 8;
        fake.session.mailbox->call_completed = i;
        core_settle();
        CHECK(fake.session_runs);
    }
    CHECK_EQUAL(4, host_count(&a, DUCK_MSG_RESULT));
}

static void test_lying_kernels(void) {
    uint8_t bytes[64] = {0};
    struct duck_fault fault;
    serving(false);
    fake.session.mailbox->call_completed = 3; /* nothing was published */
    core_tick(&core);
    memcpy(&fault, payload_of(host_last(&a, DUCK_MSG_FAULT)), sizeof fault);
    CHECK_EQUAL(DUCK_ERR_KERNEL_FAULT, fault.status);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    fake.session.mailbox->slot[1].output_bytes = (256u << 10) + 1;
    fake.session.mailbox->call_completed = 1;
    core_tick(&core);
    CHECK(!fake.session_runs);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
    /* Offsets in the slot are the kernel's to destroy: the core has its own. */
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    fake.session.mailbox->slot[1].output_offset = UINT64_MAX / 2;
    fake.session.mailbox->slot[1].input_offset = UINT64_MAX / 2;
    fake.session.mailbox->slot[1].output_bytes = 64;
    fake.session.mailbox->call_completed = 1;
    core_settle();
    CHECK(result_equals(1, bytes, sizeof bytes));
}

static void test_takeover(void) {
    serving(false);
    host_make(&b, 2000, false);
    host_join(&b);
    fake.now_ns += 2999 * MS;
    struct duck_done done = host_open(&b, 0);
    CHECK_EQUAL(DUCK_ERR_BUSY, done.status);
    CHECK_EQUAL(2999 * MS, done.value);
    CHECK_EQUAL(DUCK_ERR_BUSY, host_open(&b, DUCK_OPEN_TAKEOVER).status);
    uint8_t nothing[208] = {0};
    CHECK_EQUAL(DUCK_ERR_BUSY, host_request(&b, DUCK_MSG_CLOSE, nothing, sizeof nothing).status);
    CHECK_EQUAL(DUCK_ERR_BUSY, host_open(&a, 0).status); /* the owner itself, without the flag */
    fake.now_ns += 3000 * MS;
    CHECK_EQUAL(DUCK_ERR_BUSY, host_open(&b, 0).status);
    CHECK_EQUAL(DUCK_OK, host_open(&b, DUCK_OPEN_TAKEOVER).status);
    /* The former owner is told that the session is not its own. */
    fake_forget_sent();
    struct duck_query query = {{0}};
    host_send_one(&a, DUCK_MSG_QUERY, 1, &query, sizeof query);
    struct duck_fault fault;
    memcpy(&fault, payload_of(host_last(&a, DUCK_MSG_FAULT)), sizeof fault);
    CHECK_EQUAL(DUCK_ERR_NO_SESSION, fault.status);
    CHECK_EQUAL(DUCK_ERR_BUSY, host_open(&a, DUCK_OPEN_TAKEOVER).status);
    CHECK_EQUAL(DUCK_OK, host_open(&b, DUCK_OPEN_TAKEOVER).status);
}

static void test_calls_of_an_earlier_session_are_stale(void) {
    static uint8_t packet[sizeof(struct duck_packet_header) + 64];
    serving(true);
    /* A call sealed now, by both keys, but on the wire until after the next OPEN. */
    for (int domain = 0; domain < 2; domain++) {
        struct duck_packet_header header = {
            .magic = DUCK_WIRE_MAGIC,
            .version = DUCK_WIRE_VERSION,
            .type = DUCK_MSG_CALL,
            .key = domain ? DUCK_KEY_DOMAIN : DUCK_KEY_SESSION,
            .session = domain ? a.domain_session : a.session,
            .sequence = 1,
            .message_bytes = 64,
            .fragment_bytes = 64,
            .payload_bytes = 64,
        };
        memcpy(packet, &header, sizeof header);
        duck_seal(domain ? &a.domain_key : &a.send_key, packet, sizeof packet);
        uint8_t bytes[64] = {1};
        if (domain) /* a later one that arrives before the OPEN sets the domain's floor */
            send_call_part(bytes, sizeof bytes, 1, 0, 64, DUCK_KEY_DOMAIN);
        CHECK_EQUAL(DUCK_OK, host_open(&a, DUCK_OPEN_TAKEOVER).status);
        uint64_t before = core.stats.dropped_session;
        core_packet(&core, &a.peer, packet, sizeof packet);
        CHECK_EQUAL(before + 1, core.stats.dropped_session);
        CHECK_EQUAL(0, core.session.published);
    }
}

static void test_domain_window_survives_a_new_association(void) {
    uint8_t bytes[64] = {1};
    static uint8_t recorded[sizeof(struct duck_packet_header) + 64];
    serving(true);
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = DUCK_MSG_CALL,
        .key = DUCK_KEY_DOMAIN,
        .session = a.domain_session,
        .sequence = 1,
        .message_bytes = 64,
        .fragment_bytes = 64,
        .payload_bytes = 64,
    };
    memcpy(recorded, &header, sizeof header);
    memcpy(recorded + sizeof header, bytes, sizeof bytes);
    duck_seal(&a.domain_key, recorded, sizeof recorded);
    core_packet(&core, &a.peer, recorded, sizeof recorded);
    CHECK_EQUAL(1, core.session.published);
    /* The same host joins anew (new session, same domain key), opens, and the old call is replayed.
     */
    a.session += 2;
    plat_random(a.host_nonce, sizeof a.host_nonce);
    a.requests = 0;
    host_join(&a);
    fake.now_ns += 3000 * MS;
    CHECK_EQUAL(DUCK_OK, host_open(&a, DUCK_OPEN_TAKEOVER).status);
    core_packet(&core, &a.peer, recorded, sizeof recorded);
    CHECK_EQUAL(0, core.session.published);
    CHECK_EQUAL(1, core.stats.dropped_replay);
}

static uint32_t core_state_of_pong(struct fake_host *host) {
    struct duck_ping ping = {0};
    struct duck_pong pong;
    host_send_one(host, DUCK_MSG_PING, 2, &ping, sizeof ping);
    memcpy(&pong, payload_of(host_last(host, DUCK_MSG_PONG)), sizeof pong);
    return pong.state;
}

static void test_session_that_dies_is_named(void) {
    uint8_t bytes[64] = {0};
    serving(false);
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    fake.verdict = (struct duck_fault){.status = DUCK_ERR_KERNEL_FAULT,
                                       .fault_kind = DUCK_FAULT_MEMORY,
                                       .core = 2,
                                       .address = 0xdead,
                                       .instruction = 0x1234,
                                       .text = "here\033[2J\xff"};
    fake.session_dies = true;
    core_tick(&core);
    struct duck_fault fault;
    memcpy(&fault, payload_of(host_last(&a, DUCK_MSG_FAULT)), sizeof fault);
    CHECK_EQUAL(0xdead, fault.address);
    CHECK_EQUAL(1, fault.call);
    CHECK_EQUAL(0, strcmp("here?[2J?", fault.text));
    CHECK_EQUAL(DUCK_STATE_FAULTED, core_state_of_pong(&a));
    /* Asked again, it says so again; to a question that is too short it cuts the words. */
    fake_forget_sent();
    send_call_part(bytes, sizeof bytes, 1, 0, 1408, DUCK_KEY_SESSION);
    const struct fake_packet *packet = host_last(&a, DUCK_MSG_FAULT);
    CHECK(packet != NULL);
    CHECK_EQUAL(sizeof(struct duck_packet_header) + 64, packet->bytes);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
    CHECK_EQUAL(DUCK_STATE_SERVING, core_state_of_pong(&a));
}

int main(int count, char **words) {
    static void (*const tests[])(void) = {
        test_calls_reassembled_in_any_order,
        test_missing_call_fragments_are_asked_for,
        test_nacks_are_no_longer_than_what_came,
        test_fragments_that_contradict_each_other,
        test_owner_is_never_displaced,
        test_domains_in_turn,
        test_wholly_lost_call_is_asked_for,
        test_credit_and_cache,
        test_result_pieces_are_sent_again,
        test_time_limit_ends_the_session,
        test_time_limit_is_per_call,
        test_lying_kernels,
        test_takeover,
        test_calls_of_an_earlier_session_are_stale,
        test_domain_window_survives_a_new_association,
        test_session_that_dies_is_named,
    };
    seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) tests[i]();
    fake_free();
    printf("%zu tests passed\n", sizeof tests / sizeof tests[0]);
    return 0;
}
