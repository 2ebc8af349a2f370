/* SPDX-License-Identifier: Apache-2.0
 *
 * Random bytes for keys: HMAC-DRBG with SHA-256 (BearSSL), seeded from RDSEED or RDRAND and from
 * the jitter of the time stamp counter, and stirred again at each use. A CPU without both
 * instructions has the jitter alone, and the log says so.
 */
#include "platform.h"

#include "console/console.h"
#include "cpu/cpu.h"
#include "duck_main.h"
#include "time/timer.h"

#include <bearssl.h>

#define SEED_WORDS 16u
#define HARDWARE_TRIES 64u
#define JITTER_ROUNDS 2048u

static br_hmac_drbg_context generator;

static bool hardware_word(uint64_t *word) {
    const struct cpu_features *cpu = cpu_features();
    for (uint32_t i = 0; i < HARDWARE_TRIES; i++) {
        uint8_t good = 0;
        if (cpu->rdseed) __asm__ volatile("rdseed %0; setc %1" : "=r"(*word), "=qm"(good)::"cc");
        if (!good && cpu->rdrand)
            __asm__ volatile("rdrand %0; setc %1" : "=r"(*word), "=qm"(good)::"cc");
        if (good) return true;
        __builtin_ia32_pause();
    }
    return false;
}

/* How long a little work takes differs from time to time, by what caches, bus and memory do. */
static void stir_jitter(br_hmac_drbg_context *into) {
    volatile uint8_t work[256] = {0};
    for (uint32_t round = 0; round < JITTER_ROUNDS; round += SEED_WORDS) {
        uint64_t times[SEED_WORDS];
        for (uint32_t i = 0; i < SEED_WORDS; i++) {
            for (uint32_t j = 0; j < sizeof work; j += 16 + (i & 7u)) work[j]++;
            times[i] = timer_cycles();
        }
        br_hmac_drbg_update(into, times, sizeof times);
    }
}

static uint32_t stir_hardware(br_hmac_drbg_context *into) {
    uint64_t words[SEED_WORDS];
    uint32_t got = 0;
    for (uint32_t i = 0; i < SEED_WORDS; i++) got += hardware_word(&words[i]) ? 1 : 0;
    br_hmac_drbg_update(into, words, sizeof words);
    return got;
}

void platform_random_init(void) {
    br_hmac_drbg_init(&generator, &br_sha256_vtable, cpu_features(), sizeof *cpu_features());
    stir_jitter(&generator);
    if (stir_hardware(&generator) != SEED_WORDS)
        klog("random: this CPU has no working RDSEED or RDRAND; only timing jitter seeds the keys");
}

void plat_random(void *out, size_t bytes) {
    uint64_t now = timer_cycles();
    br_hmac_drbg_update(&generator, &now, sizeof now);
    br_hmac_drbg_generate(&generator, out, bytes);
}
