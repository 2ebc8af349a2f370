/* SPDX-License-Identifier: Apache-2.0
 *
 * Two kinds of "what is there": a bitmap of received fragments, and an ordered list of committed
 * byte ranges.
 */
#ifndef DUCK_RANGES_H
#define DUCK_RANGES_H

#include <duck/wire.h>
#include <stdbool.h>

/* ---- fragments ------------------------------------------------------------------------------- */
void bits_clear(uint64_t *bits, uint32_t count);
bool bits_test(const uint64_t *bits, uint32_t index);
void bits_set(uint64_t *bits, uint32_t index);
/* The first `ranges_max` runs of zero bits among the first `count`, ascending; returns how many. */
uint32_t bits_missing(const uint64_t *bits, uint32_t count, struct duck_nack_range *ranges,
                      uint32_t ranges_max);

/* ---- byte ranges ----------------------------------------------------------------------------- */
#define RANGES_MAX 1024u

struct byte_range {
    uint64_t begin, end;
};
/* Ascending, disjoint, never touching each other. */
struct byte_ranges {
    uint32_t count;
    struct byte_range range[RANGES_MAX];
};

void ranges_clear(struct byte_ranges *set);
bool ranges_add(struct byte_ranges *set, uint64_t begin,
                uint64_t end); /* false: the list is full */
/* Is any byte of [begin, end) covered? Quick even in a full list. */
bool ranges_touch(const struct byte_ranges *set, uint64_t begin, uint64_t end);
/* Forget [begin, end). When a hole would need one range too many, the part behind it is forgotten
 * too. */
void ranges_remove(struct byte_ranges *set, uint64_t begin, uint64_t end);
/* The first byte of [0, bytes) that is not covered, or `bytes`. */
uint64_t ranges_first_gap(const struct byte_ranges *set, uint64_t bytes);

#endif
