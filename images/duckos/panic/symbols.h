/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of functions, for back-traces. The image is linked twice: the first link tells where each
 * function lies (symbols.cmake), the second one holds the list at the end of the constants, where
 * it moves no code.
 */
#ifndef DUCKOS_SYMBOLS_H
#define DUCKOS_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

/* The function that holds `address`, and how far behind its start; NULL = not our code. */
const char *symbol_of(uint64_t address, uint64_t *inside);

/* The same in any list of this form; pure. */
const char *symbol_find(const uint8_t *list, size_t bytes, uint32_t offset, uint32_t *start);

#endif
