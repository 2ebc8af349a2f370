/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include "cpu/cpu.h"

/* SDM volume 4, table 2-2 */
enum {
    MSR_EFER = 0xC0000080u,
    MSR_STAR = 0xC0000081u,
    MSR_LSTAR = 0xC0000082u,
    MSR_SFMASK = 0xC0000084u,
    MSR_KERNEL_GS_BASE = 0xC0000102u
};
#define EFER_SCE 1u
/* Trap, interrupt, direction, I/O privilege, nested task, resume, alignment check. */
#define FLAGS_CLEARED 0x57700u

static uint64_t msr_read(uint32_t msr) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}

static void msr_write(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" ::"c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32))
                     : "memory");
}

void ring_prepare_cpu(struct ring_cpu *cpu) {
    /* SYSRET loads CS from STAR[63:48] + 16 and SS from + 8. */
    static_assert(CPU_USER_CODE == CPU_USER_DATA + 8 && CPU_KERNEL_DATA == CPU_KERNEL_CODE + 8,
                  "the GDT's order is the one that SYSCALL and SYSRET want");
    const uint64_t user = CPU_USER_DATA - 8;
    msr_write(MSR_STAR, user << 48 | (uint64_t)CPU_KERNEL_CODE << 32);
    msr_write(MSR_LSTAR, (uint64_t)(uintptr_t)ring_syscall_entry);
    msr_write(MSR_SFMASK, FLAGS_CLEARED);
    msr_write(MSR_KERNEL_GS_BASE, (uint64_t)(uintptr_t)cpu);
    msr_write(MSR_EFER, msr_read(MSR_EFER) | EFER_SCE);
}
