/* SPDX-License-Identifier: Apache-2.0
 *
 * From what the CPU says about a trap in ring 3 to the verdict that the host reads: the same kinds,
 * addresses and words as duckd gives for the signals that Linux makes of these traps. Pure, tested
 * on the host.
 */
#ifndef DUCKOS_VERDICT_H
#define DUCKOS_VERDICT_H

#include "session/layout.h"

#define VERDICT_CODE_BYTES 4u

struct verdict_trap {
    uint32_t core;   /* of the session */
    uint64_t vector; /* SDM volume 3, 6.15 */
    uint64_t error;
    uint64_t address;     /* CR2, of a page fault */
    uint64_t instruction; /* RIP */
    uint64_t number;      /* RAX: of a system call */
    uint32_t code_bytes;  /* 0 when the instruction can't be read */
    uint8_t code[VERDICT_CODE_BYTES];
};

void verdict_of_trap(const struct layout *layout, uint32_t run_mode,
                     const struct verdict_trap *trap, struct duck_fault *verdict);

/* SYSCALL from anywhere but the runtime's stub, or `int $0x80`. */
void verdict_of_call(const struct layout *layout, const struct verdict_trap *trap,
                     struct duck_fault *verdict);

/* The runtime was asked to look at memory that the kernel may not touch. */
void verdict_of_word(uint32_t core, uint64_t address, struct duck_fault *verdict);

/* Every core's entry has returned. */
void verdict_of_return(struct duck_fault *verdict);

#endif
