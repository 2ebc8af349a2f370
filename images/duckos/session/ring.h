/* SPDX-License-Identifier: Apache-2.0
 *
 * Crossing between ring 0 and ring 3. ring_enter goes to ring 3 and returns when ring 3 comes back:
 * by SYSCALL (cheap: only what a called function must keep is saved) or because a trap or interrupt
 * ended its stay (ring_leave). So a session's code in the OS is an ordinary loop around ring_enter.
 *
 * GS belongs to ring 3 except for the first instructions behind SYSCALL, where KERNEL_GS_BASE leads
 * to this core's struct ring_cpu: SYSCALL changes neither stack nor any register that the OS could
 * start from (SDM volume 2, SYSCALL).
 */
#ifndef DUCKOS_RING_H
#define DUCKOS_RING_H

/* Offsets for ring.S; checked below. */
#define RING_CPU_USER_RSP 0
#define RING_CPU_KERNEL_RSP 8
#define RING_CPU_RING 16
#define RING_FULL 176
#define RING_MXCSR 180
#define RING_HAS_AVX 184
#define FRAME_R15 0
#define FRAME_R14 8
#define FRAME_R13 16
#define FRAME_R12 24
#define FRAME_RBP 64
#define FRAME_RDI 72
#define FRAME_RSI 80
#define FRAME_RBX 104
#define FRAME_RAX 112
#define FRAME_RIP 136
#define FRAME_RSP 160

#define RING_CAME_BY_CALL 0
#define RING_CAME_BY_TRAP 1 /* the frame tells which */

#define RING_USER_FLAGS 0x202 /* interrupts on, all else clear */

#ifndef __ASSEMBLER__
#include "cpu/trap.h"

#include <stdbool.h>

/* One core's ring-3 state while it is in ring 0. */
struct ring {
    struct trap_frame user;
    uint32_t full; /* 1: all of `user` and the vector registers count; 0: left by SYSCALL */
    uint32_t mxcsr;
    uint32_t has_avx;
    uint32_t reserved;
};
static_assert(offsetof(struct ring, full) == RING_FULL, "ring.S");
static_assert(offsetof(struct ring, mxcsr) == RING_MXCSR, "ring.S");
static_assert(offsetof(struct ring, has_avx) == RING_HAS_AVX, "ring.S");
static_assert(offsetof(struct trap_frame, rbp) == FRAME_RBP, "ring.S");
static_assert(offsetof(struct trap_frame, rdi) == FRAME_RDI, "ring.S");
static_assert(offsetof(struct trap_frame, rsi) == FRAME_RSI, "ring.S");
static_assert(offsetof(struct trap_frame, rbx) == FRAME_RBX, "ring.S");
static_assert(offsetof(struct trap_frame, rax) == FRAME_RAX, "ring.S");
static_assert(offsetof(struct trap_frame, rip) == FRAME_RIP, "ring.S");
static_assert(offsetof(struct trap_frame, rsp) == FRAME_RSP, "ring.S");

struct ring_cpu {
    uint64_t user_rsp;   /* for the length of a few instructions */
    uint64_t kernel_rsp; /* inside ring_enter */
    struct ring *ring;   /* of the running ring_enter */
};
static_assert(offsetof(struct ring_cpu, kernel_rsp) == RING_CPU_KERNEL_RSP, "ring.S");
static_assert(offsetof(struct ring_cpu, ring) == RING_CPU_RING, "ring.S");

/* SYSCALL on this core from now on leads to ring_enter's return. Once per core, at boot. */
void ring_prepare_cpu(struct ring_cpu *cpu);

/* RING_CAME_BY_... With `full` set, the vector registers must hold ring 3's values already. */
uint32_t ring_enter(struct ring *ring, struct ring_cpu *cpu);
/* In a trap handler: give up the handler's stack and return from ring_enter. */
_Noreturn void ring_leave(struct ring_cpu *cpu);

void ring_syscall_entry(void); /* where SYSCALL arrives */

#endif
#endif
