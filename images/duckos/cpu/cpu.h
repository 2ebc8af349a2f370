/* SPDX-License-Identifier: Apache-2.0
 *
 * The processors: which there are, what they can do, and handing work to them. Core 0 runs the main
 * loop; every other core waits for a function (cpu_run), runs it once on its own stack, and waits
 * again.
 */
#ifndef DUCKOS_CPU_H
#define DUCKOS_CPU_H

#include "param.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Selectors of the one GDT that all cores share. */
#define CPU_KERNEL_CODE 0x08u
#define CPU_KERNEL_DATA 0x10u
#define CPU_USER_DATA (0x18u | 3u)
#define CPU_USER_CODE (0x20u | 3u)
#define CPU_FIRST_TSS 0x30u /* core i: + 16 * i */

#define CPU_MXCSR_START 0x1F80u /* kernel_abi.h: no DAZ, no FTZ, all exceptions masked */

struct cpu_features {
    char model[49];
    bool avx, avx2, fma, f16c, bmi2, aes, pclmul, vnni; /* usable: CPU and XCR0 */
    bool page_1g, smep, smap, umip, invariant_tsc, tsc_deadline, rdrand, rdseed, x2apic;
    bool thermal_sensor, hwp;
    uint32_t state_bytes; /* XSAVE area for XCR0 = 7 */
};

void cpu_init_first(void);   /* core 0: features, control registers, GDT, IDT, TSS */
void cpu_start_others(void); /* INIT-SIPI-SIPI; needs memory, ACPI and the timer */

const struct cpu_features *cpu_features(void);
uint32_t cpu_count(void); /* cores that run, at most CPU_MAX */

/* This core: 0 .. cpu_count() - 1. The task register tells, so ring 3 can't change the answer. */
static inline uint32_t cpu_index(void) {
    uint64_t selector;
    __asm__ volatile("str %0" : "=r"(selector));
    return (uint32_t)(selector - CPU_FIRST_TSS) / 16u;
}

/* ---- work for other cores -------------------------------------------------------------------- */
/* False when that core is not idle (or is core 0, or does not exist). */
bool cpu_run(uint32_t core, void (*function)(void *argument), void *argument)
    __attribute__((warn_unused_result));
bool cpu_idle(uint32_t core); /* true when its function has returned; its writes are visible */

/* How idle cores wait: false = spin on memory (hardware: fastest), true = hlt + interrupt (CI). */
void cpu_wait_by_halting(bool halt);
bool cpu_waits_by_halting(void);

/* A core that halts (cpu_wait_by_halting, timer_sleep_until) goes on; harmless otherwise. In ring 3
 * it arrives as trap_user with TRAP_WAKE. */
void cpu_wake(uint32_t core);
/* Ring 3 on that core is interrupted: trap_user with TRAP_STOP. Nothing happens in ring 0. */
void cpu_stop(uint32_t core);
void cpu_halt_others(void); /* panic: NMI, they never run again */

/* Before paging: what page tables may use. */
bool cpu_has_1g_pages(void);
void cpu_allow_page_rights(void); /* NX, write protection, write-combining */
/* For memory/paging.c: this core's page tables, and forgetting one page of them. */
void cpu_use_tables(uint64_t root);
void cpu_flush_page(uint64_t virtual);

/* ---- around ring 3 --------------------------------------------------------------------------- */
/* Vector state: `area` is 64-byte aligned, cpu_features()->state_bytes long. All code of duckos is
 * compiled for general registers only, but BearSSL (core 0) uses SSE. */
void cpu_state_save(void *area);
void cpu_state_restore(const void *area);
void cpu_state_reset(void); /* x87, SSE, AVX as after power-on, MXCSR = CPU_MXCSR_START */

/* FS points to this core's stack-protector word while the OS runs (libbearssl.a is compiled with
 * stack protection). Every trap from ring 3 restores it. */
void cpu_restore_fs(void);

/* ---- sensors, where the silicon has them ----------------------------------------------------- */
/* Package temperature in millidegrees Celsius; INT32_MIN = no sensor (QEMU has none). */
int32_t cpu_temperature_mc(void);

#endif
