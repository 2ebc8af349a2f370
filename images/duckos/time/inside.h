/* SPDX-License-Identifier: Apache-2.0
 *
 * What the timer, the watchdog and the cores know of each other.
 */
#ifndef DUCKOS_TIME_INSIDE_H
#define DUCKOS_TIME_INSIDE_H

#include "cpu/trap.h"

#include <stdint.h>

void timer_init_this(void); /* on each further core */
void timer_interrupted(const struct trap_frame *frame);
void timer_watchdog_at(uint64_t at_ns); /* core 0's second alarm */

uint64_t watchdog_look(const struct trap_frame *frame); /* returns when to look again */

#endif
