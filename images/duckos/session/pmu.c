/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions retired in ring 3, by Intel's fixed counter 0 (SDM volume 3, 20.2.2). Where CPUID
 * does not promise it (emulators, other vendors) nothing is counted and usage says 0.
 */
#include "session/session.h"

#include <cpuid.h>

enum { MSR_FIXED_COUNTER_0 = 0x309u, MSR_FIXED_CONTROL = 0x38Du, MSR_GLOBAL_CONTROL = 0x38Fu };
#define FIXED_0_IN_RING_3 2u
#define GLOBAL_FIXED_0 (1ull << 32)
#define LEAF_PMU 0xAu

static uint64_t msr_read(uint32_t msr) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}

static void msr_write(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" ::"c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

bool pmu_present(void) {
    uint32_t a, b, c, d;
    if (__get_cpuid_max(0, NULL) < LEAF_PMU) return false;
    __cpuid_count(LEAF_PMU, 0, a, b, c, d);
    uint32_t version = a & 0xFFu, fixed_counters = d & 0x1Fu;
    return version >= 2 && fixed_counters >= 1;
}

void pmu_start(void) {
    if (!pmu_present()) return;
    msr_write(MSR_FIXED_COUNTER_0, 0);
    msr_write(MSR_FIXED_CONTROL, FIXED_0_IN_RING_3);
    msr_write(MSR_GLOBAL_CONTROL, msr_read(MSR_GLOBAL_CONTROL) | GLOBAL_FIXED_0);
}

uint64_t pmu_instructions(void) { return pmu_present() ? msr_read(MSR_FIXED_COUNTER_0) : 0; }
