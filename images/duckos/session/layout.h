/* SPDX-License-Identifier: Apache-2.0
 *
 * A session's address space, planned before anything is mapped. Each kind of memory has a PML4 slot
 * of its own (512 GiB), so that what a kernel may not touch lies around everything that it may:
 *
 *   slot 128  runtime, 64 KiB apart: stub (execute), two contexts (read), mailbox (read, write)
 *   slot 129  the ELF's segments, each with its own rights
 *   slot 130  weights and their read-ahead (read)
 *   slot 131  call buffers (read, write)
 *   slot 132  scratch (read, write)
 *   slot 133  stacks (read, write), one per MiB, the rest of the MiB is its guard
 *
 * All but the weights lies in one block of the window, the session's. Pure arithmetic, tested on
 * the host.
 */
#ifndef DUCKOS_LAYOUT_H
#define DUCKOS_LAYOUT_H

#include "elf.h"
#include "platform.h"

#define LAYOUT_PAGE_BYTES 4096ull
#define LAYOUT_SLOT(number) ((uint64_t)(number) << 39)
#define LAYOUT_RUNTIME LAYOUT_SLOT(128)
#define LAYOUT_RUNTIME_PITCH (64ull << 10)
#define LAYOUT_ELF LAYOUT_SLOT(129)
#define LAYOUT_WEIGHTS LAYOUT_SLOT(130)
#define LAYOUT_CALLS LAYOUT_SLOT(131)
#define LAYOUT_SCRATCH LAYOUT_SLOT(132)
#define LAYOUT_STACKS LAYOUT_SLOT(133)
#define LAYOUT_STACK_PITCH (1ull << 20)

/* Pages of the runtime, in this order in the session's block. */
enum layout_page {
    LAYOUT_STUB = 0,
    LAYOUT_CONTEXT_POLLING = 1, /* for the core that also polls the NIC */
    LAYOUT_CONTEXT_OTHER = 2,
    LAYOUT_MAILBOX = 3,
    LAYOUT_PAGES = 4
};

#define LAYOUT_RANGES_MAX (LAYOUT_PAGES + ELF_SEGMENTS_MAX + 3 + DUCK_KERNEL_CORES_MAX)

struct layout_range {
    uint64_t virtual;
    uint64_t offset; /* in the window */
    uint64_t bytes;  /* whole pages */
    uint8_t writable, executable;
};

struct layout {
    uint64_t bytes;                                                   /* of the session's block */
    uint64_t elf_offset, calls_offset, scratch_offset, stacks_offset; /* in the window */
    uint64_t elf_base, elf_span, entry;                               /* virtual */
    uint64_t weights, calls, scratch;                                 /* virtual */
    uint64_t scratch_bytes;
    uint32_t core_count;
    uint32_t range_count;
    struct layout_range range[LAYOUT_RANGES_MAX];
};

/* Plan for a block at `block` (a multiple of 2 MiB) and weights at `weights` of the window; layout
 * and plan tell how large the block must be whatever its place. */
void layout_make(struct layout *layout, const struct elf_plan *plan,
                 const struct plat_session_request *request, uint64_t block, uint64_t weights);

/* Offset in the window of user memory [virtual, virtual + bytes), UINT64_MAX when not all of it is
 * mapped in one range. */
uint64_t layout_offset(const struct layout *layout, uint64_t virtual, uint64_t bytes);

static inline uint64_t layout_page(enum layout_page page) {
    return LAYOUT_RUNTIME + (uint64_t)page * LAYOUT_RUNTIME_PITCH;
}
static inline uint64_t layout_stack_top(uint32_t core) {
    return LAYOUT_STACKS + ((uint64_t)core + 1) * LAYOUT_STACK_PITCH;
}
bool layout_in_stack_guard(const struct layout *layout, uint64_t address);
/* Directly behind scratch: a kernel that comes here needs more memory than it was given. */
bool layout_behind_scratch(const struct layout *layout, uint64_t address);

#endif
