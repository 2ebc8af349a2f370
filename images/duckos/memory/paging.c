/* SPDX-License-Identifier: Apache-2.0
 *
 * Building page tables (SDM volume 3, 4.5). Tables lie in the arena, so a table's physical address
 * is its pointer, before and after the OS runs on its own tables.
 *
 *   63  62..52   51..M  M-1..12            11..9    8  7   6  5  4    3    2  1  0
 *   NX  ignored  0      physical address   ignored  G  PS  D  A  PCD  PWT  U  W  P
 */
#include "memory/paging.h"

#include "cpu/cpu.h"
#include "memory/arena.h"

#include <string.h>

#define ENTRY_PRESENT (1ull << 0)
#define ENTRY_WRITE (1ull << 1)
#define ENTRY_USER (1ull << 2)
#define ENTRY_PWT (1ull << 3)
#define ENTRY_PCD (1ull << 4)
#define ENTRY_LARGE (1ull << 7)
#define ENTRY_GLOBAL (1ull << 8)
#define ENTRY_NO_EXECUTE (1ull << 63)
#define ENTRY_ADDRESS 0x000ffffffffff000ull
#define ENTRIES 512u

static struct paging_space kernel; /* root 0 until paging_init */
static uint64_t pool_first;        /* linked through the first word of each free page */
static uint32_t pool_count;
static bool large_1g;

static uint64_t *table_of(uint64_t entry) { return (uint64_t *)(entry & ENTRY_ADDRESS); }

static bool is_kernel(const struct paging_space *space) { return space->root == kernel.root; }

/* ---- page-table pages ------------------------------------------------------------------------ */

static void pool_give(uint64_t page) {
    *(uint64_t *)page = pool_first;
    pool_first = page;
    pool_count++;
}

/* A zeroed page, or 0. The OS's own tables come from the arena itself and are never given back. */
static uint64_t take_table(struct paging_space *space) {
    uint64_t page = 0;
    if (is_kernel(space)) {
        page = (uint64_t)arena_take(PAGE_BYTES, PAGE_BYTES);
    } else if (pool_count != 0) {
        page = pool_first;
        pool_first = *(uint64_t *)page;
        pool_count--;
        memset((void *)page, 0, PAGE_BYTES);
    }
    if (page != 0) space->table_count++;
    return page;
}

void paging_init(uint32_t pool_pages, bool has_1g) {
    large_1g = has_1g;
    kernel.root = (uint64_t)arena_take(PAGE_BYTES, PAGE_BYTES);
    kernel.table_count = 1;
    for (uint32_t i = 0; i < pool_pages; i++) {
        void *page = arena_take(PAGE_BYTES, PAGE_BYTES);
        if (page != NULL) pool_give((uint64_t)page);
    }
}

/* ---- walking --------------------------------------------------------------------------------- */

/* Level 1 = pages of 4 KiB, 2 = 2 MiB, 3 = 1 GiB, 4 = PML4. */
static uint64_t level_bytes(uint32_t level) { return PAGE_BYTES << 9u * (level - 1); }
static uint32_t index_at(uint64_t virtual, uint32_t level) {
    return (uint32_t)(virtual >> (12u + 9u * (level - 1))) % ENTRIES;
}

/* The entry of `virtual` at `level`, making tables on the way when `make`; NULL: none, or a large
 * page is in the way (*blocked). */
static uint64_t *entry_of(struct paging_space *space, uint64_t virtual, uint32_t level, bool make,
                          bool *blocked) {
    uint64_t *table = table_of(space->root);
    for (uint32_t at = 4; at > level; at--) {
        uint64_t *entry = &table[index_at(virtual, at)];
        if ((*entry & ENTRY_PRESENT) == 0) {
            uint64_t page = make ? take_table(space) : 0;
            if (page == 0) return NULL;
            /* Rights are decided by the last level; above, everything is allowed. */
            *entry = page | ENTRY_PRESENT | ENTRY_WRITE | (is_kernel(space) ? 0 : ENTRY_USER);
        } else if ((*entry & ENTRY_LARGE) != 0) {
            *blocked = true;
            return NULL;
        }
        table = table_of(*entry);
    }
    return &table[index_at(virtual, level)];
}

static uint64_t entry_bits(const struct paging_space *space, uint32_t flags) {
    uint64_t bits = ENTRY_PRESENT;
    if ((flags & PAGE_WRITE) != 0) bits |= ENTRY_WRITE;
    if ((flags & PAGE_EXECUTE) == 0) bits |= ENTRY_NO_EXECUTE;
    if ((flags & PAGE_USER) != 0) bits |= ENTRY_USER;
    if ((flags & PAGE_UNCACHED) != 0) bits |= ENTRY_PCD | ENTRY_PWT;
    if ((flags & PAGE_COMBINE) != 0) bits |= ENTRY_PWT;
    if (is_kernel(space)) bits |= ENTRY_GLOBAL;
    return bits;
}

static uint32_t flags_of(uint64_t entry) {
    uint32_t flags = 0;
    if ((entry & ENTRY_WRITE) != 0) flags |= PAGE_WRITE;
    if ((entry & ENTRY_NO_EXECUTE) == 0) flags |= PAGE_EXECUTE;
    if ((entry & ENTRY_USER) != 0) flags |= PAGE_USER;
    if ((entry & ENTRY_PCD) != 0) flags |= PAGE_UNCACHED;
    if ((entry & (ENTRY_PCD | ENTRY_PWT)) == ENTRY_PWT) flags |= PAGE_COMBINE;
    return flags;
}

/* ---- mapping --------------------------------------------------------------------------------- */

static bool canonical(uint64_t virtual, uint64_t bytes) {
    const uint64_t low_end = 1ull << 47, high_first = ~0ull << 47;
    if (virtual < low_end) return bytes <= low_end - virtual;
    return virtual >= high_first && bytes - 1 <= ~virtual;
}

static bool allowed(const struct paging_space *space, uint64_t virtual, uint64_t physical,
                    uint64_t bytes, uint32_t flags) {
    if ((virtual | physical | bytes) % PAGE_BYTES != 0 || bytes == 0) return false;
    if (!canonical(virtual, bytes) || (physical & ~ENTRY_ADDRESS) != 0) return false;
    if ((flags & PAGE_WRITE) != 0 && (flags & PAGE_EXECUTE) != 0) return false;
    if (is_kernel(space)) return (flags & PAGE_USER) == 0;
    return virtual >= PAGING_USER_FIRST && virtual < PAGING_USER_END &&
           bytes <= PAGING_USER_END - virtual;
}

static uint32_t largest_level(uint64_t virtual, uint64_t physical, uint64_t bytes) {
    for (uint32_t level = large_1g ? 3 : 2; level > 1; level--)
        if ((virtual | physical) % level_bytes(level) == 0 && bytes >= level_bytes(level))
            return level;
    return 1;
}

enum paging_result paging_map(struct paging_space *space, uint64_t virtual, uint64_t physical,
                              uint64_t bytes, uint32_t flags) {
    if (!allowed(space, virtual, physical, bytes, flags)) return PAGING_REFUSED;
    uint64_t bits = entry_bits(space, flags);
    while (bytes != 0) {
        uint32_t level = largest_level(virtual, physical, bytes);
        bool blocked = false;
        uint64_t *entry = entry_of(space, virtual, level, true, &blocked);
        if (entry == NULL) return blocked ? PAGING_OCCUPIED : PAGING_NO_TABLES;
        if ((*entry & ENTRY_PRESENT) != 0) return PAGING_OCCUPIED;
        *entry = physical | bits | (level > 1 ? ENTRY_LARGE : 0);
        virtual += level_bytes(level);
        physical += level_bytes(level);
        bytes -= level_bytes(level);
    }
    return PAGING_OK;
}

/* The present entry that maps `virtual`, whatever its level; NULL = not mapped. */
static uint64_t *mapping_of(const struct paging_space *space, uint64_t virtual, uint32_t *level) {
    uint64_t *table = table_of(space->root);
    for (*level = 4; *level >= 1; --*level) {
        uint64_t *entry = &table[index_at(virtual, *level)];
        if ((*entry & ENTRY_PRESENT) == 0) return NULL;
        if (*level == 1 || (*entry & ENTRY_LARGE) != 0) return entry;
        table = table_of(*entry);
    }
    return NULL;
}

enum paging_result paging_unmap(struct paging_space *space, uint64_t virtual, uint64_t bytes) {
    if ((virtual | bytes) % PAGE_BYTES != 0 || !canonical(virtual, bytes)) return PAGING_REFUSED;
    while (bytes != 0) {
        uint32_t level;
        uint64_t *entry = mapping_of(space, virtual, &level);
        uint64_t step = entry == NULL ? PAGE_BYTES : level_bytes(level);
        if (virtual % step != 0 || bytes < step) return PAGING_REFUSED; /* part of a large page */
        if (entry != NULL) *entry = 0;
        cpu_flush_page(virtual);
        virtual += step;
        bytes -= step;
    }
    return PAGING_OK;
}

bool paging_look(const struct paging_space *space, uint64_t virtual, uint64_t *physical,
                 uint32_t *flags) {
    uint32_t level;
    const uint64_t *entry = mapping_of(space, virtual, &level);
    if (entry == NULL) return false;
    uint64_t inside = virtual % level_bytes(level);
    *physical = ((*entry & ENTRY_ADDRESS) & ~(level_bytes(level) - 1)) + inside;
    *flags = flags_of(*entry);
    return true;
}

/* ---- spaces ---------------------------------------------------------------------------------- */

enum paging_result paging_new_space(struct paging_space *space) {
    memset(space, 0, sizeof *space);
    space->root = UINT64_MAX; /* not the kernel's: the root comes from the pool */
    uint64_t root = take_table(space);
    space->root = root;
    if (root == 0) return PAGING_NO_TABLES;
    const uint64_t *from = table_of(kernel.root);
    for (uint32_t slot = 0; slot < ENTRIES; slot++)
        if (slot < PAGING_USER_FIRST_SLOT || slot >= ENTRIES / 2) table_of(root)[slot] = from[slot];
    return PAGING_OK;
}

static void free_tables(uint64_t entry, uint32_t level) {
    if (level > 1)
        for (uint32_t i = 0; i < ENTRIES; i++) {
            uint64_t below = table_of(entry)[i];
            if ((below & ENTRY_PRESENT) != 0 && (below & ENTRY_LARGE) == 0)
                free_tables(below, level - 1);
        }
    pool_give(entry & ENTRY_ADDRESS);
}

void paging_free_space(struct paging_space *space) {
    if (space->root == 0) return;
    uint64_t *root = table_of(space->root);
    for (uint32_t slot = PAGING_USER_FIRST_SLOT; slot < ENTRIES / 2; slot++)
        if ((root[slot] & ENTRY_PRESENT) != 0) free_tables(root[slot], 3);
    pool_give(space->root);
    memset(space, 0, sizeof *space);
}

struct paging_space *paging_kernel_space(void) { return &kernel; }
uint32_t paging_pool_left(void) { return pool_count; }
bool paging_has_1g(void) { return large_1g; }

void paging_switch(const struct paging_space *space) { cpu_use_tables(space->root); }
