/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck's life on bare metal; main.c calls duck_main as its last line.
 */
#ifndef DUCKOS_DUCK_MAIN_H
#define DUCKOS_DUCK_MAIN_H

#include "core.h"

_Noreturn void duck_main(void);

/* platform.c: lines of the console from now on go to this log too, those so far at once. */
void platform_follow_console(struct core_log *log);
/* platform_random.c: before the first plat_random. */
void platform_random_init(void);

#endif
