/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory: the arena, the window, stacks, devices; and the OS's own space, which is built
 * once, before paging (memory_build), and then only grows by devices and stacks.
 *
 *   0x0000000000001000  start page for cores, executable, 4 KiB; page 0 is not mapped
 *   arena               identity, read-write
 *   devices             identity, uncached; firmware tables: identity, read-only
 *   0xffff800000000000  window
 *   0xfffffffe00000000  stacks, each with a guard page below
 *   0xffffffff80000000  image: text r-x, rodata r--, data and bss rw-
 */
#include "memory/memory.h"

#include "boot/handover.h"
#include "console/console.h"
#include "cpu/cpu.h"
#include "memory/arena.h"
#include "memory/image.h"
#include "panic/panic.h"

#include <string.h>

#define MEMORY_WINDOW 0xffff800000000000ull
#define MEMORY_STACKS 0xfffffffe00000000ull

static struct memory_plan plan;
static uint64_t arena_used;
static uint64_t window_first; /* virtual; the first part keeps its place within a GiB */
static uint64_t stacks_end = MEMORY_STACKS;

/* ---- arena ----------------------------------------------------------------------------------- */

void *arena_take(size_t bytes, size_t align) {
    uint64_t at = (plan.arena.base + arena_used + align - 1) & ~((uint64_t)align - 1);
    uint64_t used = at - plan.arena.base + bytes;
    if (used > plan.arena.bytes || bytes > plan.arena.bytes) return NULL;
    arena_used = used;
    memset((void *)at, 0, bytes);
    return (void *)at;
}

void *memory_take(size_t bytes, size_t align) {
    void *memory = arena_take(bytes, align);
    if (memory == NULL)
        panic("arena: %zu bytes asked for, %zu of %zu left", bytes, (size_t)memory_arena_left(),
              (size_t)plan.arena.bytes);
    return memory;
}

uint64_t memory_arena_left(void) { return plan.arena.bytes - arena_used; }

/* ---- the OS's space, before paging ----------------------------------------------------------- */

static bool map_image(void) {
    struct paging_space *space = paging_kernel_space();
    const struct {
        uint64_t first, end;
        uint32_t flags;
    } part[] = {{image_offset_text(), image_offset_rodata(), PAGE_EXECUTE},
                {image_offset_rodata(), image_offset_data(), PAGE_READ},
                {image_offset_data(), image_offset_end(), PAGE_WRITE}};
    for (uint32_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (paging_map(space, IMAGE_BASE + part[i].first, handover.image_physical + part[i].first,
                       part[i].end - part[i].first, part[i].flags) != PAGING_OK)
            return false;
    /* The code that loads the new tables runs at its physical address. */
    return paging_map(space, handover.image_physical + image_offset_text(),
                      handover.image_physical + image_offset_text(), PAGE_BYTES,
                      PAGE_EXECUTE) == PAGING_OK;
}

static bool map_window(void) {
    struct paging_space *space = paging_kernel_space();
    window_first = MEMORY_WINDOW + plan.part[0].base % PAGE_1G_BYTES;
    uint64_t virtual = window_first;
    for (uint32_t i = 0; i < plan.part_count; i++) {
        if (paging_map(space, virtual, plan.part[i].base, plan.part[i].bytes, PAGE_WRITE) !=
            PAGING_OK)
            return false;
        virtual += plan.part[i].bytes;
    }
    return true;
}

static uint8_t *map_stack(size_t bytes) {
    uint64_t rounded = (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    void *memory = arena_take(rounded, PAGE_BYTES);
    uint64_t first = stacks_end + PAGE_BYTES;
    if (memory == NULL || paging_map(paging_kernel_space(), first, (uint64_t)memory, rounded,
                                     PAGE_WRITE) != PAGING_OK)
        return NULL;
    stacks_end = first + rounded;
    return (uint8_t *)stacks_end;
}

static uint32_t pool_pages(void) {
    uint64_t pages = plan.arena.bytes / 16 / PAGE_BYTES;
    if (pages < PAGING_POOL_PAGES_MIN) pages = PAGING_POOL_PAGES_MIN;
    return pages > PAGING_POOL_PAGES_MAX ? PAGING_POOL_PAGES_MAX : (uint32_t)pages;
}

const char *memory_build(uint64_t *root, uint8_t **stack) {
    memory_ranges_add(&handover.reserved, handover.image_physical, image_offset_end());
    switch (memory_plan_make(&handover.usable, &handover.reserved, &plan)) {
    case MEMORY_PLAN_NO_ARENA: return "no 8 MiB of free memory in one piece below 4 GiB";
    case MEMORY_PLAN_NO_WINDOW: return "no free memory for sessions";
    case MEMORY_PLAN_TOO_LONG: return "the firmware's memory map has too many entries";
    case MEMORY_PLAN_OK: break;
    }
    paging_init(pool_pages(), cpu_has_1g_pages());
    bool built = map_image() && map_window() &&
                 paging_map(paging_kernel_space(), plan.arena.base, plan.arena.base,
                            plan.arena.bytes, PAGE_WRITE) == PAGING_OK;
    *stack = built ? map_stack(CPU_STACK_BYTES) : NULL;
    *root = paging_kernel_space()->root;
    return *stack == NULL ? "the arena is too small for the page tables" : NULL;
}

/* ---- after paging ---------------------------------------------------------------------------- */

void memory_init(void) {
    if (paging_unmap(paging_kernel_space(), handover.image_physical + image_offset_text(),
                     PAGE_BYTES) != PAGING_OK)
        panic("memory: the first page of the image can't be unmapped");
    klog("memory: %zu MB usable; window %zu MB (%zu contiguous, %u parts, %s pages), arena %zu MB",
         (size_t)(plan.usable_bytes >> 20), (size_t)(plan.window_bytes >> 20),
         (size_t)(memory_window_contiguous_bytes() >> 20), plan.part_count,
         paging_has_1g() ? "1 GiB" : "2 MiB", (size_t)(plan.arena.bytes >> 20));
    if (plan.unused_bytes >> 20 != 0 || handover.usable.dropped + handover.reserved.dropped != 0)
        klog("memory: %zu KB unused; %u ranges of the firmware's map did not fit",
             (size_t)(plan.unused_bytes >> 10),
             handover.usable.dropped + handover.reserved.dropped);
}

uint8_t *memory_take_stack(size_t bytes) {
    uint8_t *top = map_stack(bytes);
    if (top == NULL) panic("memory: no stack of %zu bytes", bytes);
    return top;
}

/* Maps page by page what is not mapped yet: several devices may share a page. */
static void map_identity(uint64_t physical, uint64_t bytes, uint32_t flags) {
    struct paging_space *space = paging_kernel_space();
    uint64_t first = physical & ~(PAGE_BYTES - 1);
    uint64_t end = (physical + bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    enum paging_result result = paging_map(space, first, first, end - first, flags);
    for (uint64_t at = first; result == PAGING_OCCUPIED && at < end; at += PAGE_BYTES) {
        uint64_t there;
        uint32_t its_flags;
        if (!paging_look(space, at, &there, &its_flags)) {
            if (paging_map(space, at, at, PAGE_BYTES, flags) != PAGING_OK) break;
        } else if (its_flags != flags) {
            break;
        }
        if (at + PAGE_BYTES == end) result = PAGING_OK;
    }
    if (result != PAGING_OK)
        panic("memory: can't map %p, %zu bytes, flags %u: result %d", (void *)physical,
              (size_t)bytes, flags, result);
}

volatile void *memory_map_device(uint64_t physical, uint64_t bytes) {
    map_identity(physical, bytes, PAGE_WRITE | PAGE_UNCACHED);
    return (volatile void *)physical;
}

volatile void *memory_map_frame_buffer(uint64_t physical, uint64_t bytes) {
    map_identity(physical, bytes, PAGE_WRITE | PAGE_COMBINE);
    return (volatile void *)physical;
}

const void *memory_map_firmware(uint64_t physical, uint64_t bytes) {
    map_identity(physical, bytes, PAGE_READ);
    return (const void *)physical;
}

uint8_t *memory_window(void) { return (uint8_t *)window_first; }
uint64_t memory_window_bytes(void) { return plan.window_bytes; }
uint64_t memory_window_contiguous_bytes(void) { return plan.part[0].bytes; }
uint64_t memory_total_bytes(void) { return plan.usable_bytes; }

enum paging_result memory_map_window(struct paging_space *space, uint64_t virtual, uint64_t offset,
                                     uint64_t bytes, uint32_t flags) {
    if (offset > plan.window_bytes || bytes > plan.window_bytes - offset) return PAGING_REFUSED;
    uint64_t part_first = 0;
    for (uint32_t i = 0; i < plan.part_count && bytes != 0; i++) {
        uint64_t part_end = part_first + plan.part[i].bytes;
        if (offset < part_end) {
            uint64_t step = bytes < part_end - offset ? bytes : part_end - offset;
            uint64_t physical = plan.part[i].base + (offset - part_first);
            enum paging_result result = paging_map(space, virtual, physical, step, flags);
            if (result != PAGING_OK) return result;
            virtual += step;
            offset += step;
            bytes -= step;
        }
        part_first = part_end;
    }
    return PAGING_OK;
}

uint8_t *memory_start_page(void) {
    if (plan.start_page == 0) return NULL;
    map_identity(plan.start_page, PAGE_BYTES, PAGE_WRITE);
    return (uint8_t *)plan.start_page;
}

void memory_start_page_filled(void) {
    struct paging_space *space = paging_kernel_space();
    if (paging_unmap(space, plan.start_page, PAGE_BYTES) != PAGING_OK ||
        paging_map(space, plan.start_page, plan.start_page, PAGE_BYTES, PAGE_EXECUTE) != PAGING_OK)
        panic("memory: start page %p", (void *)plan.start_page);
}
