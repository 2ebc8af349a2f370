/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules against a fake platform whose clock the test moves: who is heard,
 * what is done once only, how lost pieces are asked for and when the core gives up.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

#define MS UINT64_C(1000000)

static struct fake_host a, b;
static uint64_t seed;

/* ---- handshake ------------------------------------------------------------------------------- */

static void test_hello_is_answered_alike_and_as_long(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_send_hello(&a);
    host_send_hello(&a);
    CHECK_EQUAL(2, fake.sent_count);
    CHECK_EQUAL(sizeof(struct duck_packet_header) + sizeof(struct duck_info), fake.sent[0].bytes);
    CHECK(memcmp(fake.sent[0].data, fake.sent[1].data, fake.sent[0].bytes) == 0);
}

static void test_replayed_hello_disturbs_nobody(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct fake_host attacker = a;
    attacker.peer.port = 6666;
    for (int i = 0; i < 100; i++) host_send_hello(&attacker);
    /* Many different recorded HELLOs, more than the table has places. */
    for (uint16_t i = 0; i < 100; i++) {
        host_make(&b, 6667, false);
        host_send_hello(&b);
    }
    fake_forget_sent();
    struct duck_ping ping = {0};
    host_send_one(&a, DUCK_MSG_PING, 2, &ping, sizeof ping);
    CHECK_EQUAL(1, host_count(&a, DUCK_MSG_PONG));
}

static void test_answers_go_where_the_last_valid_packet_came_from(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_ping ping = {0};
    a.peer.port = 2000;
    host_send_one(&a, DUCK_MSG_PING, 2, &ping, sizeof ping);
    CHECK_EQUAL(2000, fake.sent[fake.sent_count - 1].to.port);
}

static void test_many_hosts_at_once(void) {
    static struct fake_host hosts[CORE_ASSOCIATIONS];
    struct duck_ping ping = {0};
    fake_core_start(seed);
    for (uint16_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        host_make(&hosts[i], (uint16_t)(100 + i), false);
        host_join(&hosts[i]);
        fake.now_ns += MS;
    }
    fake_forget_sent();
    for (uint16_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        host_send_one(&hosts[i], DUCK_MSG_PING, 2, &ping, sizeof ping);
        CHECK_EQUAL(1, host_count(&hosts[i], DUCK_MSG_PONG));
        fake.now_ns += MS;
    }
    /* One more takes the place of the one heard least recently. */
    host_make(&a, 1000, false);
    host_join(&a);
    fake_forget_sent();
    host_send_one(&hosts[0], DUCK_MSG_PING, 3, &ping, sizeof ping);
    host_send_one(&hosts[1], DUCK_MSG_PING, 3, &ping, sizeof ping);
    CHECK_EQUAL(0, host_count(&hosts[0], DUCK_MSG_PONG));
    CHECK_EQUAL(1, host_count(&hosts[1], DUCK_MSG_PONG));
}

/* ---- requests -------------------------------------------------------------------------------- */

static void test_repeated_request_is_answered_not_done(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_reserve fresh = {
        .region = DUCK_REGION_WEIGHTS, .flags = DUCK_RESERVE_FRESH, .bytes = 4096};
    CHECK_EQUAL(DUCK_OK, host_request(&a, DUCK_MSG_RESERVE, &fresh, sizeof fresh).status);
    uint32_t generation = core.region[DUCK_REGION_WEIGHTS].generation;
    for (int i = 0; i < 3; i++)
        host_send_one(&a, DUCK_MSG_RESERVE, a.requests, &fresh, sizeof fresh);
    CHECK_EQUAL(generation, core.region[DUCK_REGION_WEIGHTS].generation);
    CHECK_EQUAL(4, host_count(&a, DUCK_MSG_DONE));
    /* Long after its reply has left the cache it is still not done again. */
    uint32_t old = a.requests;
    struct duck_reserve same = {.region = DUCK_REGION_WEIGHTS, .bytes = 4096};
    for (int i = 0; i < 40; i++) host_request(&a, DUCK_MSG_RESERVE, &same, sizeof same);
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_RESERVE, old, &fresh, sizeof fresh);
    CHECK_EQUAL(generation, core.region[DUCK_REGION_WEIGHTS].generation);
    CHECK_EQUAL(0, fake.sent_count);
}

static void test_requests_in_any_order(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_reserve same = {.region = DUCK_REGION_WEIGHTS, .bytes = 4096};
    const uint32_t order[] = {3, 1, 4, 2, 300, 299, 45, 46};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        fake_forget_sent();
        host_send_one(&a, DUCK_MSG_RESERVE, order[i], &same, sizeof same);
        CHECK_EQUAL(1, host_count(&a, DUCK_MSG_DONE));
    }
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_RESERVE, 44, &same, sizeof same); /* 256 behind the newest */
    CHECK_EQUAL(0, fake.sent_count);
}

/* ---- bulk ------------------------------------------------------------------------------------ */

static void send_chunk_part(const uint8_t *bytes, uint32_t count, uint64_t offset, uint32_t index,
                            uint16_t stride) {
    static uint8_t payload[DUCK_WIRE_PACKET_BYTES_MAX];
    struct duck_write_prefix prefix = {.region = DUCK_REGION_WEIGHTS, .chunk_offset = offset};
    uint32_t at = index * stride;
    uint32_t part = count - at < stride ? count - at : stride;
    struct fake_fragment fragment = {DUCK_MSG_WRITE, DUCK_KEY_SESSION, a.writes, count, index,
                                     stride};
    memcpy(payload, &prefix, sizeof prefix);
    memcpy(payload + sizeof prefix, bytes + at, part);
    host_send(&a, &fragment, payload, (uint32_t)sizeof prefix + part);
}

static uint32_t ack_ranges(struct duck_nack *nack) {
    const struct fake_packet *packet = host_last(&a, DUCK_MSG_WRITE_ACK);
    CHECK(packet != NULL);
    memset(nack, 0, sizeof *nack);
    memcpy(nack, payload_of(packet), header_of(packet).payload_bytes);
    CHECK_EQUAL(DUCK_MSG_WRITE, nack->message_type);
    CHECK_EQUAL(a.writes, header_of(packet).sequence);
    return nack->range_count;
}

/* Lose fragments at random, then send what the acknowledgements ask for, until the chunk is
 * complete. */
static void transfer_chunk(const uint8_t *bytes, uint32_t count, uint64_t offset, uint16_t stride) {
    uint32_t fragments = duck_fragment_count(count, stride);
    struct duck_nack nack;
    a.writes++;
    fake_forget_sent();
    for (uint32_t i = 0; i < fragments; i++)
        if (fake_below(100) < 60) send_chunk_part(bytes, count, offset, i, stride);
    for (int round = 0; round < 200; round++) {
        send_chunk_part(bytes, count, offset, fragments - 1, stride);
        if (ack_ranges(&nack) == 0) return;
        for (uint32_t r = nack.range_count; r-- > 0;)
            for (uint32_t i = nack.range[r].begin; i < nack.range[r].end; i++) {
                CHECK(i < fragments);
                if (fake_below(100) < 80) send_chunk_part(bytes, count, offset, i, stride);
            }
        fake_forget_sent();
    }
    CHECK(!"the chunk never became complete");
}

static void test_bulk_with_loss(void) {
    static uint8_t bytes[300000];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)fake_random();
    struct duck_reserve reserve = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof bytes};
    host_request(&a, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    for (uint32_t at = 0; at < sizeof bytes;) {
        const uint16_t strides[] = {64, 1344, 1408, 8896};
        uint32_t count = 1 + fake_below(60000);
        if (count > sizeof bytes - at) count = (uint32_t)sizeof bytes - at;
        transfer_chunk(bytes + at, count, at, strides[fake_below(4)]);
        at += count;
    }
    CHECK(memcmp(core.region[DUCK_REGION_WEIGHTS].memory, bytes, sizeof bytes) == 0);
}

static void test_commit_pieces_and_gaps(void) {
    static uint8_t bytes[8192];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
    /* One byte written anew: no longer whole, and only that part must be committed again. */
    a.writes++;
    bytes[5000] = 9;
    send_chunk_part(bytes + 4992, 64, 4992, 0, 64);
    CHECK(!core.region[DUCK_REGION_WEIGHTS].whole);
    struct duck_commit commit = {
        .region = DUCK_REGION_WEIGHTS, .flags = DUCK_COMMIT_LAST, .offset = 0, .bytes = 64};
    duck_sha256 hash;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, bytes, 64);
    duck_sha256_end(&hash, commit.sha256);
    struct duck_done done = host_request(&a, DUCK_MSG_COMMIT, &commit, sizeof commit);
    CHECK_EQUAL(DUCK_ERR_NOT_COMMITTED, done.status);
    CHECK_EQUAL(4992, done.value);
    commit.offset = 4992;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, bytes + 4992, 64);
    duck_sha256_end(&hash, commit.sha256);
    CHECK_EQUAL(DUCK_OK, host_request(&a, DUCK_MSG_COMMIT, &commit, sizeof commit).status);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
}

static void test_write_during_hash_restarts_it(void) {
    static uint8_t bytes[1 << 20];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    struct duck_commit commit = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof bytes};
    duck_sha256 hash;
    bytes[3] = 1; /* the digest of what is written in the middle of the hash */
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, bytes, sizeof bytes);
    duck_sha256_end(&hash, commit.sha256);
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_COMMIT, ++a.requests, &commit, sizeof commit);
    CHECK_EQUAL(0, core_tick(&core));
    CHECK_EQUAL(0, core_tick(&core));
    a.writes++;
    send_chunk_part(bytes, 64, 0, 0, 64);
    core_settle();
    struct duck_done done;
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_OK, done.status);
}

/* ---- compute --------------------------------------------------------------------------------- */

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
    CHECK_EQUAL(UINT64_MAX, core_tick(&core));
    /* A QUERY wakes it up again. */
    struct duck_query query = {{0}};
    host_send_one(&a, DUCK_MSG_QUERY, 1, &query, sizeof query);
    CHECK_EQUAL(CORE_NACK_TRIES + 1, host_count(&a, DUCK_MSG_NACK));
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
    /* The same host start says HELLO anew (new session, same domain nonce), opens, and the old call
     * is replayed. */
    a.session += 2;
    plat_random(a.host_nonce, 16);
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
                                       .text = "here"};
    fake.session_dies = true;
    core_tick(&core);
    struct duck_fault fault;
    memcpy(&fault, payload_of(host_last(&a, DUCK_MSG_FAULT)), sizeof fault);
    CHECK_EQUAL(0xdead, fault.address);
    CHECK_EQUAL(1, fault.call);
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

static void test_kernel_that_never_gets_ready(void) {
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    load_kernel(&a);
    struct duck_open request = {
        .call_bytes_max = 1, .result_bytes_max = 1, .call_time_limit_ms = 1};
    host_send_one(&a, DUCK_MSG_OPEN, ++a.requests, &request, sizeof request);
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_OPEN, a.requests, &request, sizeof request); /* being worked on */
    CHECK_EQUAL(0, fake.sent_count);
    fake.now_ns += CORE_START_LIMIT_NS;
    core_settle();
    struct duck_done done;
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_ERR_TIME_LIMIT, done.status);
    CHECK(!fake.session_runs);
}

static void test_reboot_comes_after_its_answer(void) {
    uint8_t nothing[208] = {0};
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    CHECK_EQUAL(DUCK_OK, host_request(&a, DUCK_MSG_REBOOT, nothing, sizeof nothing).status);
    CHECK_EQUAL(fake.now_ns + CORE_REBOOT_DELAY_NS, core_tick(&core));
    CHECK_EQUAL(0, fake.reboots);
    fake.now_ns += CORE_REBOOT_DELAY_NS;
    core_tick(&core);
    CHECK_EQUAL(1, fake.reboots);
}

static void test_log_wraps(void) {
    static char text[CORE_LOG_BYTES + 10];
    fake_core_start(seed);
    char line[100];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 2000; i++) log_line(&core.log, line, sizeof line);
    uint64_t since = 0;
    CHECK_EQUAL(CORE_LOG_BYTES, log_read(&core.log, &since, text, sizeof text));
    CHECK_EQUAL(core.log.end - CORE_LOG_BYTES, since);
    since = UINT64_MAX;
    CHECK_EQUAL(0, log_read(&core.log, &since, text, sizeof text));
    CHECK_EQUAL(core.log.end, since);
}

int main(int count, char **words) {
    static void (*const tests[])(void) = {
        test_hello_is_answered_alike_and_as_long,
        test_replayed_hello_disturbs_nobody,
        test_answers_go_where_the_last_valid_packet_came_from,
        test_many_hosts_at_once,
        test_repeated_request_is_answered_not_done,
        test_requests_in_any_order,
        test_bulk_with_loss,
        test_commit_pieces_and_gaps,
        test_write_during_hash_restarts_it,
        test_calls_reassembled_in_any_order,
        test_missing_call_fragments_are_asked_for,
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
        test_kernel_that_never_gets_ready,
        test_reboot_comes_after_its_answer,
        test_log_wraps,
    };
    seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) tests[i]();
    fake_free();
    printf("%zu tests passed\n", sizeof tests / sizeof tests[0]);
    return 0;
}
