/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory planner. Firmware maps come unsorted, with overlaps and with ranges of zero bytes;
 * where a usable and a reserved range overlap, reserved wins.
 */
#include "memory/map.h"

#include <string.h>

#define KIB_4 4096ull
#define MIB_1 (1ull << 20)
#define MIB_2 (2ull << 20)
#define GIB_4 (4ull << 30)
/* A start page is named by one byte of the SIPI; pages 0..7 are the BIOS' and the handover's. */
#define START_PAGE_FIRST 0x8000ull
#define START_PAGE_END 0x9f000ull

static uint64_t end_of(const struct memory_range *range) { return range->base + range->bytes; }
static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
static uint64_t round_down(uint64_t value, uint64_t unit) { return value / unit * unit; }

void memory_ranges_add(struct memory_ranges *ranges, uint64_t base, uint64_t bytes) {
    if (base >= MEMORY_BYTES_MAX || bytes == 0) return;
    if (bytes > MEMORY_BYTES_MAX - base) bytes = MEMORY_BYTES_MAX - base;
    if (ranges->count != 0) {
        struct memory_range *last = &ranges->range[ranges->count - 1];
        if (end_of(last) == base) {
            last->bytes += bytes;
            return;
        }
    }
    if (ranges->count == MEMORY_RANGES_MAX) {
        ranges->dropped++;
        return;
    }
    ranges->range[ranges->count++] = (struct memory_range){base, bytes};
}

static void sort_by_base(struct memory_ranges *ranges) {
    for (uint32_t i = 1; i < ranges->count; i++) {
        struct memory_range moving = ranges->range[i];
        uint32_t at = i;
        for (; at > 0 && ranges->range[at - 1].base > moving.base; at--)
            ranges->range[at] = ranges->range[at - 1];
        ranges->range[at] = moving;
    }
}

static void join_neighbours(struct memory_ranges *ranges) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct memory_range *range = &ranges->range[i];
        struct memory_range *last = kept == 0 ? NULL : &ranges->range[kept - 1];
        if (last == NULL || range->base > end_of(last))
            ranges->range[kept++] = *range;
        else if (end_of(range) > end_of(last))
            last->bytes = end_of(range) - last->base;
    }
    ranges->count = kept;
}

static void remove_at(struct memory_ranges *ranges, uint32_t index) {
    ranges->count--;
    memmove(&ranges->range[index], &ranges->range[index + 1],
            (ranges->count - index) * sizeof ranges->range[0]);
}

/* Without a place for it the range is lost, which is safe. */
static void insert_at(struct memory_ranges *ranges, uint32_t index, struct memory_range range) {
    if (ranges->count == MEMORY_RANGES_MAX) {
        ranges->dropped++;
        return;
    }
    memmove(&ranges->range[index + 1], &ranges->range[index],
            (ranges->count - index) * sizeof ranges->range[0]);
    ranges->range[index] = range;
    ranges->count++;
}

/* Takes [base, end) out of sorted ranges. */
static void cut(struct memory_ranges *ranges, uint64_t base, uint64_t end) {
    for (uint32_t i = 0; i < ranges->count;) {
        struct memory_range *range = &ranges->range[i];
        uint64_t range_end = end_of(range);
        if (end <= range->base || base >= range_end) {
            i++;
            continue;
        }
        struct memory_range tail = {end, end < range_end ? range_end - end : 0};
        range->bytes = base > range->base ? base - range->base : 0;
        if (range->bytes == 0)
            remove_at(ranges, i);
        else
            i++;
        if (tail.bytes != 0) insert_at(ranges, i++, tail);
    }
}

void memory_ranges_clean(struct memory_ranges *usable, const struct memory_ranges *reserved) {
    sort_by_base(usable);
    join_neighbours(usable);
    for (uint32_t i = 0; i < reserved->count; i++)
        cut(usable, round_down(reserved->range[i].base, KIB_4),
            round_up(end_of(&reserved->range[i]), KIB_4));
}

static uint64_t find_start_page(const struct memory_ranges *usable) {
    for (uint32_t i = 0; i < usable->count; i++) {
        uint64_t page = round_up(usable->range[i].base, KIB_4);
        if (page < START_PAGE_FIRST) page = START_PAGE_FIRST;
        if (page < START_PAGE_END && page + KIB_4 <= end_of(&usable->range[i])) return page;
    }
    return 0;
}

/* The smallest range below 4 GiB that holds `bytes` from a 2 MiB boundary on: large ones are for
 * the window. Returns the address, or 0. */
static uint64_t find_arena(const struct memory_ranges *usable, uint64_t bytes) {
    const struct memory_range *best = NULL;
    for (uint32_t i = 0; i < usable->count; i++) {
        const struct memory_range *range = &usable->range[i];
        uint64_t base = round_up(range->base, MIB_2);
        if (base + bytes > end_of(range) || base + bytes > GIB_4) continue;
        if (best == NULL || range->bytes < best->bytes) best = range;
    }
    return best == NULL ? 0 : round_up(best->base, MIB_2);
}

static enum memory_plan_result place_arena(struct memory_ranges *usable, struct memory_plan *plan) {
    uint64_t bytes = round_up(plan->usable_bytes / 8, MIB_2);
    if (bytes > MEMORY_ARENA_BYTES_MAX) bytes = MEMORY_ARENA_BYTES_MAX;
    if (bytes < MEMORY_ARENA_BYTES_MIN) bytes = MEMORY_ARENA_BYTES_MIN;
    for (; bytes >= MEMORY_ARENA_BYTES_MIN; bytes -= MIB_2) {
        uint64_t base = find_arena(usable, bytes);
        if (base == 0) continue;
        plan->arena = (struct memory_range){base, bytes};
        cut(usable, base, base + bytes);
        return MEMORY_PLAN_OK;
    }
    return MEMORY_PLAN_NO_ARENA;
}

/* Keeps the largest parts, sorted by size; of two equal ones the lower comes first. */
static void add_part(struct memory_plan *plan, struct memory_range part) {
    uint32_t at = plan->part_count;
    while (at > 0 && plan->part[at - 1].bytes < part.bytes) at--;
    if (at == MEMORY_PARTS_MAX) return;
    if (plan->part_count < MEMORY_PARTS_MAX) plan->part_count++;
    memmove(&plan->part[at + 1], &plan->part[at],
            (plan->part_count - at - 1) * sizeof plan->part[0]);
    plan->part[at] = part;
}

enum memory_plan_result memory_plan_make(struct memory_ranges *usable,
                                         const struct memory_ranges *reserved,
                                         struct memory_plan *plan) {
    memset(plan, 0, sizeof *plan);
    if (reserved->dropped != 0) return MEMORY_PLAN_TOO_LONG;
    memory_ranges_clean(usable, reserved);
    for (uint32_t i = 0; i < usable->count; i++) plan->usable_bytes += usable->range[i].bytes;
    plan->start_page = find_start_page(usable);
    cut(usable, 0, MIB_1);
    enum memory_plan_result result = place_arena(usable, plan);
    if (result != MEMORY_PLAN_OK) return result;
    for (uint32_t i = 0; i < usable->count; i++) {
        uint64_t base = round_up(usable->range[i].base, MIB_2);
        uint64_t end = round_down(end_of(&usable->range[i]), MIB_2);
        if (base < end) add_part(plan, (struct memory_range){base, end - base});
    }
    for (uint32_t i = 0; i < plan->part_count; i++) plan->window_bytes += plan->part[i].bytes;
    plan->unused_bytes = plan->usable_bytes - plan->window_bytes - plan->arena.bytes;
    return plan->part_count == 0 ? MEMORY_PLAN_NO_WINDOW : MEMORY_PLAN_OK;
}
