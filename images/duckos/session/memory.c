/* SPDX-License-Identifier: Apache-2.0
 *
 * The regions in the window (areas.c says where), and clearing memory with all cores.
 */
#include "session/session.h"
#include "time/watchdog.h"

#include <string.h>

#define CLEAR_ALONE_BYTES (32ull << 20) /* less is cleared by core 0 alone */
#define CLEAR_UNIT_BYTES (2ull << 20)

static struct areas areas;
static uint8_t *region[DUCK_REGION_COUNT];
static uint64_t region_bytes[DUCK_REGION_COUNT];

void regions_init(uint64_t limit_bytes) { areas_init(&areas, memory_window_bytes(), limit_bytes); }

struct areas *regions_areas(void) { return &areas; }

uint8_t *regions_kernel(uint64_t *bytes) {
    *bytes = region_bytes[DUCK_REGION_KERNEL];
    return region[DUCK_REGION_KERNEL];
}

/* ---- clearing -------------------------------------------------------------------------------- */

static struct {
    uint8_t *memory;
    uint64_t bytes;
    uint64_t next; /* where the next unit begins; every core takes from here */
} clearing;

static void clear_units(void *unused) {
    (void)unused;
    for (;;) {
        uint64_t at = __atomic_fetch_add(&clearing.next, CLEAR_UNIT_BYTES, __ATOMIC_RELAXED);
        if (at >= clearing.bytes) return;
        uint64_t left = clearing.bytes - at;
        if (cpu_index() == 0) watchdog_pet();
        memset(clearing.memory + at, 0, left < CLEAR_UNIT_BYTES ? left : CLEAR_UNIT_BYTES);
    }
}

/* When memory is provided no session runs, so the other cores are idle and help; one that is not
 * (yet) is simply left out. */
void regions_clear(uint8_t *memory, uint64_t bytes) {
    bool helps[CPU_MAX] = {false};
    clearing.memory = memory;
    clearing.bytes = bytes;
    __atomic_store_n(&clearing.next, 0, __ATOMIC_RELEASE);
    if (bytes > CLEAR_ALONE_BYTES)
        for (uint32_t cpu = 1; cpu < cpu_count(); cpu++)
            helps[cpu] = cpu_run(cpu, clear_units, NULL);
    clear_units(NULL);
    for (uint32_t cpu = 1; cpu < cpu_count(); cpu++)
        while (helps[cpu] && !cpu_idle(cpu)) __builtin_ia32_pause();
}

static bool is_zero(const uint64_t *words, uint64_t count) {
    uint64_t any = 0;
    for (uint64_t i = 0; i < count; i++) any |= words[i];
    return any == 0;
}

uint64_t regions_used_bytes(uint64_t offset, uint64_t bytes) {
    uint64_t used = 0;
    for (uint64_t at = 0; at < bytes; at += LAYOUT_PAGE_BYTES) {
        watchdog_pet();
        const uint64_t *page = (const uint64_t *)(const void *)(memory_window() + offset + at);
        if (!is_zero(page, LAYOUT_PAGE_BYTES / sizeof *page)) used += LAYOUT_PAGE_BYTES;
    }
    return used;
}

/* ---- platform.h ------------------------------------------------------------------------------ */

uint64_t plat_region_bytes_max(uint32_t which) { return areas_region_bytes_max(&areas, which); }

uint8_t *plat_region_provide(uint32_t which, uint64_t bytes) {
    uint64_t offset = areas_take_region(&areas, which, bytes);
    if (offset == AREAS_NONE) return NULL;
    region[which] = memory_window() + offset;
    region_bytes[which] = bytes;
    /* Weights are as large as the memory: what lies there stays until it is written or committed;
     * only the read-ahead behind them is the same for all. */
    uint64_t kept = which == DUCK_REGION_WEIGHTS ? bytes : 0;
    regions_clear(region[which] + kept, areas.region_bytes[which] - kept);
    return region[which];
}

void plat_region_release(uint32_t which) {
    areas_give_region(&areas, which);
    region[which] = NULL;
    region_bytes[which] = 0;
}

/* What stays for call buffers and scratch when the ELF, the stacks and the runtime have theirs. */
uint64_t plat_session_bytes_max(void) {
    struct elf_plan plan;
    uint64_t most = areas_session_bytes_max(&areas);
    uint64_t fixed = (uint64_t)cpu_count() * DUCK_KERNEL_STACK_BYTES + 4 * AREAS_UNIT_BYTES;
    if (region[DUCK_REGION_KERNEL] != NULL &&
        elf_check(region[DUCK_REGION_KERNEL], region_bytes[DUCK_REGION_KERNEL], &plan) == ELF_OK)
        fixed += plan.span;
    return most > fixed ? most - fixed : 0;
}
