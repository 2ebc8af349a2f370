/* SPDX-License-Identifier: Apache-2.0 */
#include "ranges.h"

#include <string.h>

void bits_clear(uint64_t *bits, uint32_t count) {
    memset(bits, 0, ((size_t)count + 63) / 64 * sizeof *bits);
}

bool bits_test(const uint64_t *bits, uint32_t index) {
    return (bits[index / 64] >> (index % 64) & 1) != 0;
}

void bits_set(uint64_t *bits, uint32_t index) { bits[index / 64] |= UINT64_C(1) << (index % 64); }

/* The next index >= from whose bit equals `value`, or count. Whole words are skipped at once. */
static uint32_t next_bit(const uint64_t *bits, uint32_t from, uint32_t count, bool value) {
    const uint64_t flat = value ? 0 : UINT64_MAX;
    while (from < count) {
        if (from % 64 == 0 && bits[from / 64] == flat) {
            from += 64;
            continue;
        }
        if (bits_test(bits, from) == value) return from;
        from++;
    }
    return count;
}

uint32_t bits_missing(const uint64_t *bits, uint32_t count, struct duck_nack_range *ranges,
                      uint32_t ranges_max) {
    uint32_t found = 0;
    uint32_t at = next_bit(bits, 0, count, false);
    while (at < count && found < ranges_max) {
        uint32_t end = next_bit(bits, at, count, true);
        ranges[found++] = (struct duck_nack_range){.begin = at, .end = end};
        at = next_bit(bits, end, count, false);
    }
    return found;
}

void ranges_clear(struct byte_ranges *set) { set->count = 0; }

/* Replace ranges [first, last) by `with` (count of them: 0, 1 or 2). */
static void splice(struct byte_ranges *set, uint32_t first, uint32_t last,
                   const struct byte_range *with, uint32_t count) {
    memmove(&set->range[first + count], &set->range[last],
            (set->count - last) * sizeof set->range[0]);
    for (uint32_t i = 0; i < count; i++) set->range[first + i] = with[i];
    set->count = set->count - (last - first) + count;
}

bool ranges_add(struct byte_ranges *set, uint64_t begin, uint64_t end) {
    if (begin >= end) return true;
    struct byte_range merged = {begin, end};
    uint32_t first = 0;
    while (first < set->count && set->range[first].end < begin) first++;
    uint32_t last = first;
    while (last < set->count && set->range[last].begin <= end) {
        if (set->range[last].begin < merged.begin) merged.begin = set->range[last].begin;
        if (set->range[last].end > merged.end) merged.end = set->range[last].end;
        last++;
    }
    if (first == last && set->count == RANGES_MAX) return false;
    splice(set, first, last, &merged, 1);
    return true;
}

/* The first range that ends behind `at`, or count. */
static uint32_t first_behind(const struct byte_ranges *set, uint64_t at) {
    uint32_t low = 0, high = set->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (set->range[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool ranges_touch(const struct byte_ranges *set, uint64_t begin, uint64_t end) {
    uint32_t first = first_behind(set, begin);
    return begin < end && first < set->count && set->range[first].begin < end;
}

void ranges_remove(struct byte_ranges *set, uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    uint32_t first = first_behind(set, begin);
    uint32_t last = first;
    struct byte_range rest[2];
    uint32_t rests = 0;
    for (; last < set->count && set->range[last].begin < end; last++) {
        const struct byte_range *range = &set->range[last];
        if (range->begin < begin) rest[rests++] = (struct byte_range){range->begin, begin};
        if (range->end > end) rest[rests++] = (struct byte_range){end, range->end};
    }
    if (set->count - (last - first) + rests > RANGES_MAX) rests = 1;
    splice(set, first, last, rest, rests);
}

uint64_t ranges_first_gap(const struct byte_ranges *set, uint64_t bytes) {
    if (set->count == 0 || set->range[0].begin > 0) return 0;
    return set->range[0].end < bytes ? set->range[0].end : bytes;
}
