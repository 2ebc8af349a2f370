/* SPDX-License-Identifier: Apache-2.0
 *
 * Model-specific registers and control registers.
 */
#ifndef DUCKOS_MSR_H
#define DUCKOS_MSR_H

#include <stdbool.h>
#include <stdint.h>

/* SDM volume 4. */
enum msr {
    MSR_APIC_BASE = 0x1b,
    MSR_PERF_CONTROL = 0x199,
    MSR_THERM_STATUS = 0x19c,
    MSR_TEMPERATURE_TARGET = 0x1a2,
    MSR_TURBO_RATIO_LIMIT = 0x1ad,
    MSR_TSC_DEADLINE = 0x6e0,
    MSR_PM_ENABLE = 0x770,
    MSR_HWP_CAPABILITIES = 0x771,
    MSR_HWP_REQUEST = 0x774,
    MSR_X2APIC = 0x800,
};
#define MSR_PAT 0x277u
#define MSR_EFER 0xc0000080u
#define MSR_FS_BASE 0xc0000100u
#define MSR_GS_BASE 0xc0000101u

static inline uint64_t msr_read(uint32_t msr) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}
static inline void msr_write(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" ::"c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

/* For registers that CPUID promises but a hypervisor may refuse: false instead of a panic. Only
 * after trap_load. */
bool msr_try_read(uint32_t msr, uint64_t *value);
bool msr_try_write(uint32_t msr, uint64_t value);

struct cpuid {
    uint32_t a, b, c, d;
};
static inline struct cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
    struct cpuid r;
    __asm__ volatile("cpuid"
                     : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d)
                     : "a"(leaf), "c"(subleaf));
    return r;
}

#endif
