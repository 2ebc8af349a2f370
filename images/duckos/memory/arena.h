/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of memory/: building the OS's space before it runs in it.
 */
#ifndef DUCKOS_ARENA_H
#define DUCKOS_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed arena memory at its physical address, or NULL when the arena is used up. */
void *arena_take(size_t bytes, size_t align);

void paging_init(uint32_t pool_pages, bool has_1g);

/* Plans the memory and builds the OS's space from handover; on failure returns a text. Then
 * *root, *stack are ready for early_jump. */
const char *memory_build(uint64_t *root, uint8_t **stack);

#endif
