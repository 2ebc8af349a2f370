/* SPDX-License-Identifier: Apache-2.0
 *
 * Planning what physical memory is used for: pure, tested on the host. In: what the firmware says.
 * Out: one page for starting cores, the arena below 4 GiB, and the parts of the window.
 */
#ifndef DUCKOS_MAP_H
#define DUCKOS_MAP_H

#include "param.h"

#include <stdint.h>

struct memory_range {
    uint64_t base, bytes;
};

struct memory_ranges {
    uint32_t count;
    uint32_t dropped; /* ranges for which there was no place */
    struct memory_range range[MEMORY_RANGES_MAX];
};

struct memory_plan {
    uint64_t usable_bytes; /* all that the firmware gives, cleaned of overlaps */
    uint64_t start_page;   /* 4 KiB below 1 MiB, for starting cores; 0 = none */
    struct memory_range arena;
    uint32_t part_count;
    struct memory_range part[MEMORY_PARTS_MAX]; /* largest first, 2 MiB aligned */
    uint64_t window_bytes;                      /* of all parts */
    uint64_t unused_bytes; /* left out: too small, or below 1 MiB, or one part too many */
};

enum memory_plan_result {
    MEMORY_PLAN_OK = 0,
    MEMORY_PLAN_NO_ARENA = 1,  /* no MEMORY_ARENA_BYTES_MIN in one piece below 4 GiB */
    MEMORY_PLAN_NO_WINDOW = 2, /* nothing is left for sessions */
    MEMORY_PLAN_TOO_LONG = 3,  /* a reserved range found no place in its list */
};

/* Adds a range, joining it to the last one when they touch. Empty and wrapping ranges are ignored,
 * parts above MEMORY_BYTES_MAX are cut off. */
void memory_ranges_add(struct memory_ranges *ranges, uint64_t base, uint64_t bytes);

/* Sorts `usable` and joins what overlaps or touches; then takes `reserved` out of it. */
void memory_ranges_clean(struct memory_ranges *usable, const struct memory_ranges *reserved);

/* `usable` is cleaned and changed here; `reserved` holds the image, too. */
enum memory_plan_result memory_plan_make(struct memory_ranges *usable,
                                         const struct memory_ranges *reserved,
                                         struct memory_plan *plan);

#endif
