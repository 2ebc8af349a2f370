/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen that the firmware left: VGA text, or 32-bit pixels. Scrolls by starting again at the
 * top, since reading video memory is slow.
 */
#ifndef DUCKOS_SCREEN_H
#define DUCKOS_SCREEN_H

#include "boot/handover.h"

#include <stddef.h>

void screen_init(const struct handover_screen *screen);
void screen_line(const char *line, size_t bytes);
void screen_off(void);

#endif
