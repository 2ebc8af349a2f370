/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers that differ between ducks and starts: transaction ids and jitter. Not for keys.
 */
#ifndef DUCKOS_NET_RANDOM_H
#define DUCKOS_NET_RANDOM_H

#include <stdint.h>

void net_random_seed(uint64_t seed);
uint32_t net_random(void);

#endif
