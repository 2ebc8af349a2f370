/* SPDX-License-Identifier: Apache-2.0 */
#include "net/random.h"

static uint64_t state;

/* Marsaglia's xorshift with a multiplication at the end ("xorshift64*", Vigna 2016, equation 3). */
uint32_t net_random(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(state * 0x2545f4914f6cdd1dull >> 32);
}

void net_random_seed(uint64_t seed) {
    state = seed != 0 ? seed : 1; /* zero would stay zero */
    for (unsigned skip = 0; skip < 16; skip++) (void)net_random();
}
