/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that the duck core's NACK timer follows how late fragments come, on a clock that the test
 * moves.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

static struct fake_host a;
static uint64_t seed;

static void serving(void) {
    uint8_t elf[1024];
    fake_core_start(seed);
    host_make(&a, 1000, true);
    host_join(&a);
    host_load(&a, DUCK_REGION_KERNEL, elf, tiny_elf(elf));
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

static uint32_t nacks_after(uint64_t ns) {
    fake_forget_sent();
    fake.now_ns += ns;
    core_tick(&core);
    return host_count(&a, DUCK_MSG_NACK);
}

/* The first wait follows how late fragments come on this path: rises at once, is forgotten slowly,
 * stays within its bounds, and learns nothing from repairs, which come late because of itself. */
static void test_nack_timer_follows_arrival(void) {
    static uint8_t bytes[64 * 400];
    serving();
    send_call_part(bytes, sizeof bytes, 1, 0, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(0, nacks_after(CORE_NACK_QUIET_NS - 1));
    CHECK_EQUAL(1, nacks_after(1));
    fake.now_ns += 900000; /* late by 1.2 ms in all: asked in vain */
    send_call_part(bytes, sizeof bytes, 1, 1, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(0, nacks_after(2399999));
    CHECK_EQUAL(1, nacks_after(1));
    fake.now_ns += 5000000;
    send_call_part(bytes, sizeof bytes, 1, 2, 64, DUCK_KEY_SESSION); /* a repair */
    CHECK_EQUAL(0, nacks_after(2399999));
    CHECK_EQUAL(1, nacks_after(1));
    for (uint32_t i = 3; i < 399; i++)
        send_call_part(bytes, sizeof bytes, 1, i, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(1, nacks_after(CORE_NACK_QUIET_NS));
    fake.now_ns += UINT64_C(10000000000);
    send_call_part(bytes, sizeof bytes, 1, 399, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(1, core.session.published);
    send_call_part(bytes, sizeof bytes, 2, 0, 64, DUCK_KEY_DOMAIN);
    CHECK_EQUAL(0, nacks_after(CORE_NACK_QUIET_NS_MAX - 1));
    CHECK_EQUAL(1, nacks_after(1));
}

int main(int count, char **words) {
    seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    test_nack_timer_follows_arrival();
    fake_free();
    return 0;
}
