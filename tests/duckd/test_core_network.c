/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules for hosts, requests and bulk loading against a fake platform whose
 * clock the test moves: who is heard, and what is done once only.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

#define MS UINT64_C(1000000)

static struct fake_host a, b;
static uint64_t seed;

/* ---- handshake ------------------------------------------------------------------------------- */

static void test_handshake_answers_are_as_long_as_questions(void) {
    struct duck_proof proof;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_send_hello(&a);
    host_send_hello(&a);
    CHECK_EQUAL(2, fake.sent_count);
    CHECK_EQUAL(sizeof(struct duck_packet_header) + sizeof(struct duck_hello), fake.sent[0].bytes);
    CHECK(memcmp(fake.sent[0].data, fake.sent[1].data, fake.sent[0].bytes) == 0);
    CHECK_EQUAL(0, core.association[0].state); /* nothing is kept for a stranger */
    host_make_proof(&a, &proof);
    for (int i = 0; i < 3; i++) { /* INFO may be lost: it is told again, under the same keys */
        host_send_proof(&a, &proof);
        const struct fake_packet *info = &fake.sent[fake.sent_count - 1];
        CHECK_EQUAL(sizeof(struct duck_packet_header) + sizeof proof, info->bytes);
        CHECK(host_can_open(&a, info));
    }
    CHECK_EQUAL(5, fake.sent_count);
    CHECK_EQUAL(1, core.generations);
}

/* A recorded handshake: the cookie is bound to the address and to a few seconds, the proof is
 * remembered as long as its cookie is good, and the session it made is the same one. */
static void test_replayed_handshake_does_nothing(void) {
    struct duck_proof proof;
    struct duck_ping ping = {0};
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_send_hello(&a);
    host_make_proof(&a, &proof);
    struct fake_host elsewhere = a;
    elsewhere.peer.port = 6666;
    host_send_proof(&elsewhere, &proof);
    CHECK_EQUAL(1, core.stats.dropped_session);
    host_send_proof(&a, &proof);
    host_send_one(&a, DUCK_MSG_PING, 1, &ping, sizeof ping);
    CHECK_EQUAL(1, host_count(&a, DUCK_MSG_PONG));
    for (int i = 0; i < 100; i++) host_send_proof(&a, &proof);
    CHECK_EQUAL(1, core.generations);
    /* The place is given to others while the cookie is still good: the proof makes no second one,
     * which would accept recorded packets again. */
    for (uint16_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        host_make(&b, (uint16_t)(2000 + i), false);
        host_join(&b);
    }
    uint32_t generations = core.generations;
    uint64_t replays = core.stats.dropped_replay;
    fake_forget_sent();
    host_send_proof(&a, &proof);
    CHECK_EQUAL(0, fake.sent_count);
    CHECK_EQUAL(replays + 1, core.stats.dropped_replay);
    CHECK_EQUAL(generations, core.generations);
    fake.now_ns += CORE_COOKIE_NS;
    core_tick(&core);
    host_send_proof(&a, &proof);
    CHECK_EQUAL(0, fake.sent_count);
    CHECK_EQUAL(2, core.stats.dropped_session);
}

/* Whoever can send and receive at some address makes the duck check at most so many signatures, and
 * a host that was believed before has checks of its own. */
static void test_strangers_make_bounded_work(void) {
    struct duck_proof proof;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a); /* a's address is known now */
    fake.now_ns += UINT64_C(1000000000);
    static struct fake_host stranger;
    uint64_t checked = core.stats.dropped_mac, refused = core.stats.dropped_limit;
    for (uint16_t i = 0; i < 200; i++) {
        host_make(&stranger, (uint16_t)(3000 + i), false);
        stranger.peer.address = 0x0200007f;
        host_send_hello(&stranger);
        host_make_proof(&stranger, &proof);
        proof.signature[10] ^= 1;
        host_send_proof(&stranger, &proof);
    }
    CHECK_EQUAL(CORE_VERIFY_BURST, core.stats.dropped_mac - checked);
    CHECK_EQUAL(200 - CORE_VERIFY_BURST, core.stats.dropped_limit - refused);
    host_make(&b, 1001, false);
    host_send_hello(&b);
    host_make_proof(&b, &proof);
    host_send_proof(&b, &proof);
    CHECK_EQUAL(2, core.generations);
    host_make_proof(&stranger, &proof);
    proof.signature[10] ^= 1;
    fake.now_ns += UINT64_C(1000000000);
    checked = core.stats.dropped_mac;
    for (int i = 0; i < 200; i++) host_send_proof(&stranger, &proof);
    CHECK_EQUAL(CORE_VERIFY_BURST, core.stats.dropped_mac - checked);
    /* Ephemeral keys are made at most once per CORE_EPHEMERAL_NS however many ask. */
    uint8_t key[DUCK_WIRE_KEY_BYTES];
    memcpy(key, core.handshake.ephemeral[core.handshake.in_use].public_key, sizeof key);
    for (int i = 0; i < 1000; i++) host_send_hello(&stranger);
    CHECK(memcmp(key, core.handshake.ephemeral[core.handshake.in_use].public_key, sizeof key) == 0);
}

/* Every field of the transcript counts: a proof with one bit changed is not believed. */
static void test_proofs_are_over_everything(void) {
    struct duck_proof proof, changed;
    const size_t at[] = {
        offsetof(struct duck_proof, host_nonce), offsetof(struct duck_proof, duck_nonce),
        offsetof(struct duck_proof, ephemeral), offsetof(struct duck_proof, signature),
        offsetof(struct duck_proof, signature) + 40};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        fake_core_start(seed);
        host_make(&a, 1000, false);
        host_send_hello(&a);
        host_make_proof(&a, &proof);
        fake_forget_sent();
        changed = proof;
        ((uint8_t *)&changed)[at[i]] ^= 0x40;
        host_send_proof(&a, &changed);
        CHECK_EQUAL(0, fake.sent_count);
        CHECK_EQUAL(0, core.generations);
        host_send_proof(&a, &proof);
        CHECK_EQUAL(1, core.generations);
    }
}

/* Old private halves are gone when their cookies are, so that recorded sessions stay closed. */
static void test_ephemeral_keys_are_forgotten(void) {
    static const uint8_t zero[DUCK_WIRE_KEY_BYTES];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    CHECK_EQUAL(core.handshake.ephemeral[core.handshake.in_use].born_ns + CORE_COOKIE_NS,
                core_tick(&core));
    fake.now_ns += CORE_COOKIE_NS;
    CHECK_EQUAL(UINT64_MAX, core_tick(&core));
    for (int i = 0; i < 2; i++)
        CHECK(memcmp(core.handshake.ephemeral[i].private_key, zero, sizeof zero) == 0);
}

/* Fresh keys, often enough for the epoch's byte to turn over: packets under the old and the new
 * ones pass side by side, and nothing older does. */
static void test_rekey(void) {
    uint8_t private_key[DUCK_WIRE_KEY_BYTES];
    struct duck_ping ping = {0};
    static struct fake_host old, older;
    fake_core_start(seed);
    host_make(&a, 1000, true);
    host_join(&a);
    for (uint32_t epoch = 1; epoch <= 260; epoch++) {
        struct duck_rekey request = {.epoch = epoch};
        older = old;
        old = a;
        duck_seal_key_set(&old.send_key, old.keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
        old.send_key.counter = 1000;
        plat_random(private_key, sizeof private_key);
        duck_agree_public(private_key, request.ephemeral);
        CHECK(host_rekey(&a, &request, private_key));
        fake_forget_sent();
        /* The duck speaks under the old key until it hears the new one. */
        host_send_one(&old, DUCK_MSG_PING, 2, &ping, sizeof ping);
        CHECK(host_can_open(&old, host_last(&a, DUCK_MSG_PONG)));
        host_send_one(&a, DUCK_MSG_PING, 3, &ping, sizeof ping);
        CHECK(host_can_open(&a, host_last(&a, DUCK_MSG_PONG)));
        host_send_one(&old, DUCK_MSG_PING, 4, &ping, sizeof ping);
        CHECK(host_can_open(&a, host_last(&a, DUCK_MSG_PONG)));
        CHECK_EQUAL(0, core.stats.dropped_mac);
        if (epoch < 2) continue;
        duck_seal_key_set(&older.send_key, older.keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
        older.send_key.counter = 5000;
        host_send_one(&older, DUCK_MSG_PING, 5, &ping, sizeof ping);
        CHECK_EQUAL(1, core.stats.dropped_mac);
        core.stats.dropped_mac = 0;
    }
}

static void test_rekey_out_of_turn(void) {
    uint8_t private_key[DUCK_WIRE_KEY_BYTES];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_rekey request = {.epoch = 2};
    plat_random(private_key, sizeof private_key);
    duck_agree_public(private_key, request.ephemeral);
    CHECK(!host_rekey(&a, &request, private_key)); /* 1 comes before 2 */
    request.epoch = 1;
    struct fake_host before = a;
    CHECK(host_rekey(&a, &request, private_key));
    /* The answer was lost: the same request, sealed anew, gets the same answer. */
    duck_seal_key_set(&before.send_key, before.keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    before.send_key.counter = 1000;
    CHECK(host_rekey(&before, &request, private_key));
    CHECK(memcmp(&a.keys, &before.keys, sizeof a.keys) == 0);
    /* Another one for the same epoch is refused, and one with a key of low order. */
    duck_seal_key_set(&a.send_key, a.keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    request.ephemeral[0] ^= 1;
    CHECK(!host_rekey(&a, &request, private_key));
    request = (struct duck_rekey){.epoch = 2};
    CHECK(!host_rekey(&a, &request, private_key));
    CHECK_EQUAL(3, core.stats.dropped_limit);
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

/* Every second fragment is missing, and the host only probes: all answers together are no longer
 * than what came, and each names something that is missing. */
static void test_acknowledgements_are_no_longer_than_what_came(void) {
    static uint8_t bytes[400 * 64 + 1];
    struct duck_nack nack;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_reserve reserve = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof bytes};
    host_request(&a, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    fake_forget_sent();
    a.writes++;
    for (uint32_t i = 0; i < 400; i += 2) send_chunk_part(bytes, sizeof bytes, 0, i, 64);
    uint64_t asked = 200 * (sizeof(struct duck_packet_header) + 16 + 64), answered = 0;
    for (int probe = 0; probe < 1000; probe++) {
        send_chunk_part(bytes, sizeof bytes, 0, 400, 64);
        asked += sizeof(struct duck_packet_header) + 16 + 1;
        answered += fake.sent[fake.sent_count - 1].bytes;
        CHECK(answered <= asked);
        CHECK(ack_ranges(&nack) >= 1);
        if (probe == 0) CHECK_EQUAL(DUCK_WIRE_NACK_RANGES_MAX, nack.range_count);
    }
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

/* Two pieces hashed by other cores, one of them written meanwhile: all are right, in order. */
static void test_hashes_on_other_cores(void) {
    static uint8_t bytes[1 << 20];
    const uint32_t piece = 1 << 19;
    struct duck_done done;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    for (uint32_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)fake_random();
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    fake.has_spare_cores = true;
    fake_forget_sent();
    bytes[piece + 3] ^= 1; /* written in the middle of the hash */
    for (uint32_t i = 0; i < 2; i++) {
        struct duck_commit commit = {.region = DUCK_REGION_WEIGHTS,
                                     .flags = i == 1 ? DUCK_COMMIT_LAST : 0,
                                     .offset = (uint64_t)i * piece,
                                     .bytes = piece};
        duck_sha256 hash;
        duck_sha256_start(&hash);
        duck_sha256_add(&hash, bytes + commit.offset, piece);
        duck_sha256_end(&hash, commit.sha256);
        host_send_one(&a, DUCK_MSG_COMMIT, ++a.requests, &commit, sizeof commit);
    }
    core_tick(&core);
    CHECK_EQUAL(2, fake.spare_core_runs);
    a.writes++;
    send_chunk_part(bytes + piece, 64, piece, 0, 64);
    while (core.commit_count != 0) core_tick(&core);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_OK, done.status);
}

/* ---- the rest ---------------------------------------------------------------------------------
 */

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
        test_handshake_answers_are_as_long_as_questions,
        test_replayed_handshake_does_nothing,
        test_strangers_make_bounded_work,
        test_proofs_are_over_everything,
        test_ephemeral_keys_are_forgotten,
        test_rekey,
        test_rekey_out_of_turn,
        test_answers_go_where_the_last_valid_packet_came_from,
        test_many_hosts_at_once,
        test_repeated_request_is_answered_not_done,
        test_requests_in_any_order,
        test_bulk_with_loss,
        test_acknowledgements_are_no_longer_than_what_came,
        test_commit_pieces_and_gaps,
        test_write_during_hash_restarts_it,
        test_hashes_on_other_cores,
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
