/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules for hosts and requests against a fake platform whose
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
