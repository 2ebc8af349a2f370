/* SPDX-License-Identifier: Apache-2.0
 *
 * Time: the TSC, calibrated once against CPUID, the HPET, the ACPI timer or the PIT; and one
 * one-shot interrupt per core from its local APIC timer.
 */
#ifndef DUCKOS_TIMER_H
#define DUCKOS_TIMER_H

#include <stdbool.h>
#include <stdint.h>

void timer_init(void); /* after acpi_init */

static inline uint64_t timer_cycles(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
uint64_t timer_now_ns(void); /* monotonic, since timer_init; the same on all cores */
uint64_t timer_tsc_hz(void);
uint64_t timer_ns_of_cycles(uint64_t cycles);
uint64_t timer_cycles_of_ns(uint64_t ns);
void timer_wait_ns(uint64_t ns); /* spins */

/* One interrupt on this core at or soon after `at_ns` (of timer_now_ns); replaces the one before.
 * UINT64_MAX: none. In ring 3 it arrives as trap_user with TRAP_TIMER; in ring 0 it only ends a
 * halt. The watchdog shares the timer of core 0 without disturbing this. */
void timer_interrupt_at(uint64_t at_ns);

/* Sleep (hlt) until `at_ns`, an interrupt or cpu_wake. */
void timer_sleep_until(uint64_t at_ns);

#endif
