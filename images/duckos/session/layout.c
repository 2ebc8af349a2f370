/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#define LARGE_PAGE_BYTES (2ull << 20)
#define GIANT_PAGE_BYTES (1ull << 30)
#define SCRATCH_FENCE_BYTES (1ull << 30)

static uint64_t page_down(uint64_t bytes) { return bytes & ~(LAYOUT_PAGE_BYTES - 1); }
static uint64_t page_up(uint64_t bytes) { return page_down(bytes + LAYOUT_PAGE_BYTES - 1); }

static void add(struct layout *layout, struct layout_range range) {
    if (range.bytes != 0) layout->range[layout->range_count++] = range;
}

/* The next part of the session's block; parts of at least 2 MiB begin at large pages. */
static uint64_t take(struct layout *layout, uint64_t block, uint64_t bytes) {
    if (bytes >= LARGE_PAGE_BYTES)
        layout->bytes = (layout->bytes + LARGE_PAGE_BYTES - 1) & ~(LARGE_PAGE_BYTES - 1);
    uint64_t offset = block + layout->bytes;
    layout->bytes += bytes;
    return offset;
}

/* An address in a slot that allows the largest pages for this offset of the window. */
static uint64_t place(uint64_t slot, uint64_t offset) { return slot + offset % GIANT_PAGE_BYTES; }

static void add_runtime(struct layout *layout, uint64_t block) {
    uint64_t offset = take(layout, block, LAYOUT_PAGES * LAYOUT_PAGE_BYTES);
    for (uint32_t page = 0; page < LAYOUT_PAGES; page++)
        add(layout, (struct layout_range){
                        .virtual = layout_page((enum layout_page)page),
                        .offset = offset + page * LAYOUT_PAGE_BYTES,
                        .bytes = LAYOUT_PAGE_BYTES,
                        .writable = page == LAYOUT_MAILBOX,
                        .executable = page == LAYOUT_STUB,
                    });
}

/* Pages between segments stay unmapped. */
static void add_segments(struct layout *layout, const struct elf_plan *plan) {
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        const struct elf_segment *segment = &plan->segment[i];
        uint64_t begin = page_down(segment->address);
        add(layout, (struct layout_range){
                        .virtual = layout->elf_base + begin,
                        .offset = layout->elf_offset + begin,
                        .bytes = page_up(segment->address + segment->memory_bytes) - begin,
                        .writable = segment->writable,
                        .executable = segment->executable,
                    });
    }
}

static void add_stacks(struct layout *layout) {
    for (uint32_t core = 0; core < layout->core_count; core++)
        add(layout, (struct layout_range){
                        .virtual = layout_stack_top(core) - DUCK_KERNEL_STACK_BYTES,
                        .offset = layout->stacks_offset + core * DUCK_KERNEL_STACK_BYTES,
                        .bytes = DUCK_KERNEL_STACK_BYTES,
                        .writable = 1,
                    });
}

void layout_make(struct layout *layout, const struct elf_plan *plan,
                 const struct plat_session_request *request, uint64_t block, uint64_t weights) {
    uint64_t calls_bytes = page_up(request->calls_bytes);
    /* Without scratch or weights there is one page, respectively the read-ahead, as in duckd. */
    uint64_t scratch_bytes =
        request->scratch_bytes != 0 ? page_up(request->scratch_bytes) : LAYOUT_PAGE_BYTES;
    uint64_t weights_bytes = page_up(request->weights_bytes + DUCK_KERNEL_READ_AHEAD);
    *layout = (struct layout){.core_count = request->core_count, .scratch_bytes = scratch_bytes};
    add_runtime(layout, block);
    layout->elf_offset = take(layout, block, plan->span);
    layout->elf_span = plan->span;
    layout->elf_base = place(LAYOUT_ELF, layout->elf_offset);
    layout->entry = layout->elf_base + plan->entry;
    add_segments(layout, plan);
    layout->stacks_offset =
        take(layout, block, (uint64_t)request->core_count * DUCK_KERNEL_STACK_BYTES);
    add_stacks(layout);
    layout->calls_offset = take(layout, block, calls_bytes);
    layout->calls = place(LAYOUT_CALLS, layout->calls_offset);
    add(layout, (struct layout_range){layout->calls, layout->calls_offset, calls_bytes, 1, 0});
    layout->scratch_offset = take(layout, block, scratch_bytes);
    layout->scratch = place(LAYOUT_SCRATCH, layout->scratch_offset);
    add(layout,
        (struct layout_range){layout->scratch, layout->scratch_offset, scratch_bytes, 1, 0});
    if (request->weights_bytes == 0) weights = take(layout, block, weights_bytes);
    layout->weights = place(LAYOUT_WEIGHTS, weights);
    add(layout, (struct layout_range){layout->weights, weights, weights_bytes, 0, 0});
}

uint64_t layout_offset(const struct layout *layout, uint64_t virtual, uint64_t bytes) {
    for (uint32_t i = 0; i < layout->range_count; i++) {
        const struct layout_range *range = &layout->range[i];
        if (virtual < range->virtual || virtual - range->virtual >= range->bytes) continue;
        uint64_t within = virtual - range->virtual;
        return bytes <= range->bytes - within ? range->offset + within : UINT64_MAX;
    }
    return UINT64_MAX;
}

bool layout_in_stack_guard(const struct layout *layout, uint64_t address) {
    if (address < LAYOUT_STACKS) return false;
    uint64_t within = address - LAYOUT_STACKS;
    return within < layout->core_count * LAYOUT_STACK_PITCH &&
           within % LAYOUT_STACK_PITCH < LAYOUT_STACK_PITCH - DUCK_KERNEL_STACK_BYTES;
}

bool layout_behind_scratch(const struct layout *layout, uint64_t address) {
    return address - layout->scratch - layout->scratch_bytes < SCRATCH_FENCE_BYTES;
}
