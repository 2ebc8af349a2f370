/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules for the time between OPEN and a ready kernel: however a start ends,
 * its OPEN is answered, and the duck takes the next request.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

#define MS UINT64_C(1000000)

static struct fake_host a, b;
static uint64_t seed;

static void ready_to_open(void) {
    uint8_t elf[1024];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_KERNEL, elf, tiny_elf(elf));
    fake_forget_sent();
}

/* OPEN to a kernel that says nothing yet; returns the request's sequence. */
static uint32_t begin_start(struct fake_host *host, uint32_t flags) {
    struct duck_open request = {
        .flags = flags, .call_bytes_max = 1, .result_bytes_max = 1, .call_time_limit_ms = 1};
    host_send_one(host, DUCK_MSG_OPEN, ++host->requests, &request, sizeof request);
    core_settle();
    return host->requests;
}

static struct duck_done close_session(struct fake_host *host) {
    const struct duck_done nothing = {0};
    return host_request(host, DUCK_MSG_CLOSE, &nothing, sizeof nothing);
}

/* The only DONE with this sequence. */
static struct duck_done answer_to(const struct fake_host *host, uint32_t sequence) {
    struct duck_done done = {0};
    uint32_t found = 0;
    for (uint32_t i = 0; i < fake.sent_count; i++) {
        struct duck_packet_header header = header_of(&fake.sent[i]);
        if (fake.sent[i].to.port != host->peer.port || header.type != DUCK_MSG_DONE ||
            header.sequence != sequence)
            continue;
        memcpy(&done, payload_of(&fake.sent[i]), sizeof done);
        found++;
    }
    CHECK_EQUAL(1, found);
    return done;
}

static void check_given_up(const struct fake_host *host, uint32_t sequence) {
    struct duck_done done = answer_to(host, sequence);
    CHECK_EQUAL(DUCK_ERR_NO_SESSION, done.status);
    CHECK(strcmp("closed or replaced while starting", done.text) == 0);
}

/* OPEN of these sets; the kernel gets ready when it is started. */
static struct duck_done open_of(const uint8_t *weights_id, const uint8_t *kernel_id) {
    struct duck_open request = {
        .call_bytes_max = 1, .result_bytes_max = 1, .call_time_limit_ms = 1};
    memcpy(request.weights_id, weights_id, sizeof request.weights_id);
    memcpy(request.kernel_id, kernel_id, sizeof request.kernel_id);
    fake_forget_sent();
    uint32_t before = fake.sessions_started;
    host_send_one(&a, DUCK_MSG_OPEN, ++a.requests, &request, sizeof request);
    if (fake.sessions_started != before) kernel_ready();
    core_settle();
    struct duck_done done = answer_to(&a, a.requests);
    close_session(&a);
    return done;
}

static void check_others(struct duck_done done, const char *text) {
    CHECK_EQUAL(DUCK_ERR_NOT_COMMITTED, done.status);
    CHECK(strcmp(text, done.text) == 0);
}

static void test_open_of_what_another_host_replaced(void) {
    static const char other_weights[] =
        "OPEN: other weights than this host's were loaded meanwhile";
    static const char other_kernel[] = "OPEN: another kernel than this host's was loaded meanwhile";
    uint8_t bytes[2048] = {1}, weights[DUCK_WIRE_DIGEST_BYTES], kernel[DUCK_WIRE_DIGEST_BYTES];
    const uint8_t any[DUCK_WIRE_DIGEST_BYTES] = {0};
    ready_to_open();
    memcpy(kernel, core.region[DUCK_REGION_KERNEL].set_id, sizeof kernel);
    check_others(open_of(kernel, any), other_weights); /* there are none */
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    memcpy(weights, core.region[DUCK_REGION_WEIGHTS].set_id, sizeof weights);
    CHECK_EQUAL(DUCK_OK, open_of(any, any).status);
    CHECK_EQUAL(DUCK_OK, open_of(weights, kernel).status);
    check_others(open_of(kernel, kernel), other_weights);
    check_others(open_of(weights, weights), other_kernel);
    bytes[0] = 2;
    host_make(&b, 2000, false);
    host_join(&b);
    host_load(&b, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    check_others(open_of(weights, kernel), other_weights);
    CHECK_EQUAL(DUCK_OK, open_of(any, kernel).status);
    weights[31] ^= 1; /* every byte counts */
    check_others(open_of(weights, kernel), other_weights);
}

static void test_kernel_that_never_gets_ready(void) {
    ready_to_open();
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

static void test_close_while_starting_answers_both(void) {
    ready_to_open();
    uint32_t opening = begin_start(&a, 0);
    CHECK_EQUAL(0, fake.sent_count);
    CHECK_EQUAL(DUCK_OK, close_session(&a).status);
    check_given_up(&a, opening);
    CHECK(!fake.session_runs);
    CHECK_EQUAL(DUCK_OK, close_session(&a).status); /* of nothing: the OPEN is not answered anew */
    check_given_up(&a, opening);
    CHECK_EQUAL(DUCK_OK, host_open(&a, 0).status);
}

static void test_takeover_while_starting_answers_both(void) {
    ready_to_open();
    host_make(&b, 2000, false);
    host_join(&b);
    fake_forget_sent();
    uint32_t first = begin_start(&a, 0);
    uint32_t second = begin_start(&a, DUCK_OPEN_TAKEOVER);
    check_given_up(&a, first);
    fake.now_ns += 3000 * MS; /* the owner is silent: somebody else may have it */
    CHECK_EQUAL(DUCK_OK, host_open(&b, DUCK_OPEN_TAKEOVER).status);
    check_given_up(&a, second);
    CHECK_EQUAL(3, fake.sessions_started);
    CHECK_EQUAL(1, core.stats.sessions_opened);
}

/* A refused takeover leaves the start alone. */
static void test_refused_takeover_lets_the_start_go_on(void) {
    ready_to_open();
    host_make(&b, 2000, false);
    host_join(&b);
    fake_forget_sent();
    uint32_t opening = begin_start(&a, 0);
    CHECK_EQUAL(DUCK_ERR_BUSY, host_open(&b, DUCK_OPEN_TAKEOVER).status);
    CHECK_EQUAL(DUCK_ERR_BUSY, close_session(&b).status);
    kernel_ready();
    fake.now_ns += MS;
    core_settle();
    CHECK_EQUAL(DUCK_OK, answer_to(&a, opening).status);
}

/* More starts than the duck remembers replies: no place for a reply is lost. */
static void test_many_given_up_starts_leave_a_duck_that_answers(void) {
    const struct duck_done nothing = {0};
    ready_to_open();
    for (uint32_t i = 0; i < 3 * CORE_REPLIES; i++) {
        fake_forget_sent();
        begin_start(&a, i % 2 == 0 ? 0 : DUCK_OPEN_TAKEOVER);
        if (i % 3 == 0) CHECK_EQUAL(DUCK_OK, close_session(&a).status);
    }
    CHECK_EQUAL(DUCK_OK, close_session(&a).status);
    CHECK_EQUAL(DUCK_OK, host_request(&a, DUCK_MSG_REBOOT, &nothing, sizeof nothing).status);
    CHECK_EQUAL(0, core.stats.dropped_limit);
}

int main(int count, char **words) {
    static void (*const tests[])(void) = {
        test_open_of_what_another_host_replaced,
        test_kernel_that_never_gets_ready,
        test_close_while_starting_answers_both,
        test_takeover_while_starting_answers_both,
        test_refused_takeover_lets_the_start_go_on,
        test_many_given_up_starts_leave_a_duck_that_answers,
    };
    seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) tests[i]();
    fake_free();
    printf("%zu tests passed\n", sizeof tests / sizeof tests[0]);
    return 0;
}
