/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKOS_FONT_H
#define DUCKOS_FONT_H

#include <stdint.h>

#define FONT_FIRST 32
#define FONT_COUNT 95
#define FONT_ROWS 7
#define FONT_COLUMNS 5

extern const uint8_t font[FONT_COUNT][FONT_ROWS];

#endif
