/* SPDX-License-Identifier: Apache-2.0
 *
 * A duck whose main loop hangs reboots: nobody stands beside it. Core 0's timer looks every few
 * seconds whether the loop has come round; WATCHDOG_LIMIT_NS without that is a panic: a reboot.
 */
#ifndef DUCKOS_WATCHDOG_H
#define DUCKOS_WATCHDOG_H

#include <stdint.h>

extern uint64_t watchdog_rounds; /* only through the functions below */

void watchdog_start(void); /* the option watchdog=off leaves it out */

/* The main loop is alive: one store, called every round. */
static inline void watchdog_pet(void) {
    __atomic_store_n(&watchdog_rounds, watchdog_rounds + 1, __ATOMIC_RELAXED);
}

#endif
