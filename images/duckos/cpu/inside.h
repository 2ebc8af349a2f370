/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of cpu/ and the timer know of each other.
 */
#ifndef DUCKOS_CPU_INSIDE_H
#define DUCKOS_CPU_INSIDE_H

#include "cpu/cpu.h"
#include "cpu/trap.h"

/* cpu.c */
void cpu_init_this(uint32_t core); /* control registers, GDT, TSS, IDT, FS, vector state, APIC */

/* segments.c: IST numbers of the stacks that each core's TSS names. */
enum { IST_DOUBLE_FAULT = 1, IST_NMI = 2, IST_MACHINE_CHECK = 3, IST_INTERRUPT = 4, IST_COUNT = 4 };
void segments_init(uint32_t core); /* stacks and descriptors, before the core runs */
void segments_load(uint32_t core); /* on the core itself */

/* apic.c */
void apic_find(void);
void apic_enable(void); /* on each core */
uint32_t apic_id(void);
void apic_end_interrupt(void);
void apic_send(uint32_t id, uint32_t vector);
void apic_send_nmi(uint32_t id);
void apic_send_init(uint32_t id);
void apic_send_start(uint32_t id, uint32_t page);
void apic_timer_start(uint32_t count); /* counts down once, at apic bus clock; 0 = stop */
void apic_timer_deadline(uint64_t tsc);
uint32_t apic_timer_left(void);
void apic_timer_mode(bool deadline);

/* smp.c */
bool cpu_is_halting(void); /* a panic stops the others */

#endif
