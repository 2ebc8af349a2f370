/* SPDX-License-Identifier: Apache-2.0
 *
 * Exceptions and interrupts. Inside the OS an exception is a panic. In ring 3 everything goes to
 * trap_user, which the session implements.
 *
 * Interrupts use stacks of their own (IST), because libbearssl.a is compiled with a red zone. Gates
 * clear IF, so handlers never nest, except by NMI, double fault and machine check.
 */
#ifndef DUCKOS_TRAP_H
#define DUCKOS_TRAP_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* Vectors. 0..31 are the CPU's exceptions (SDM volume 3, 6.3.1). */
enum trap_vector {
    TRAP_DIVIDE = 0,
    TRAP_DEBUG = 1,
    TRAP_NMI = 2,
    TRAP_BREAKPOINT = 3,
    TRAP_OVERFLOW = 4,
    TRAP_BOUND = 5,
    TRAP_INVALID_OPCODE = 6,
    TRAP_NO_FPU = 7,
    TRAP_DOUBLE_FAULT = 8,
    TRAP_STACK_SEGMENT = 12,
    TRAP_PROTECTION = 13,
    TRAP_PAGE_FAULT = 14,
    TRAP_X87 = 16,
    TRAP_ALIGNMENT = 17,
    TRAP_MACHINE_CHECK = 18,
    TRAP_SIMD = 19,
    TRAP_TIMER = 0x40, /* timer_interrupt_at */
    TRAP_WAKE = 0x41,  /* cpu_wake */
    TRAP_STOP = 0x42,  /* cpu_stop */
    TRAP_CALL = 0x80,  /* `int $0x80`, the one gate that ring 3 may use */
    TRAP_SPURIOUS = 0xFF,
};

struct trap_frame {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
    uint64_t vector, error;
    uint64_t rip, cs, rflags, rsp, ss; /* pushed by the CPU */
};
static_assert(sizeof(struct trap_frame) == 22 * 8, "trap_entry.S pushes this");

/* Implemented by the session. Called on the interrupted core with interrupts off, for every
 * exception and interrupt that hits ring 3 (the interrupt is acknowledged already, FS is the OS's
 * again). `fault_address` is CR2 for page faults, else 0. Returning resumes ring 3 with what then
 * stands in the frame; leaving for good (switching to a saved OS context) is allowed as well.
 * Vector registers still hold ring 3's values. */
void trap_user(struct trap_frame *frame, uint64_t fault_address);

const char *trap_name(uint64_t vector);
uint64_t trap_interrupt_count(void); /* interrupts on all cores since boot, for STATS */

/* ---- below: used inside images/duckos/cpu ---------------------------------------------------- */
void trap_init(void); /* builds the IDT */
void trap_load(void); /* on each core */
void trap_handle(struct trap_frame *frame);

static inline void interrupts_on(void) { __asm__ volatile("sti" ::: "memory"); }
static inline void interrupts_off(void) { __asm__ volatile("cli" ::: "memory"); }

#endif
