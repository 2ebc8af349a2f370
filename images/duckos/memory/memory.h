/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory after boot. It has two parts:
 *
 *   arena   8 MB to 48 MB below 4 GiB, identity-mapped (pointer == physical address), for the
 *           OS itself: rings, buffers, tables. Taken at boot, never given back.
 *   window  all the rest: one virtually contiguous block, mapped read-write for the OS at
 *           MEMORY_WINDOW with the largest pages possible. The largest physical part comes first;
 *           holes in the physical memory (PCI below 4 GiB, firmware's tables) do not show. The
 *           session carves weights, kernel, calls and scratch out of it. A pointer into the window
 *           is NOT a physical address.
 *
 * Nothing else is mapped: not page 0, not the image through a second address, not free memory.
 */
#ifndef DUCKOS_MEMORY_H
#define DUCKOS_MEMORY_H

#include "memory/paging.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void memory_init(void);

/* Zeroed, identity-mapped, below 4 GiB, never freed; panics when the arena is empty. `align` is a
 * power of two, at least 1. Only during boot, from core 0. */
void *memory_take(size_t bytes, size_t align);
uint64_t memory_arena_left(void);

/* A stack with an unmapped guard page below: returns its top, 16-byte aligned. */
uint8_t *memory_take_stack(size_t bytes);

/* Device registers, uncached, at their physical address (pointer == physical address). */
volatile void *memory_map_device(uint64_t physical, uint64_t bytes);

/* The same for pixels: writes may be combined and come late. */
volatile void *memory_map_frame_buffer(uint64_t physical, uint64_t bytes);

/* Tables of the firmware, read-only, at their physical address. */
const void *memory_map_firmware(uint64_t physical, uint64_t bytes);

/* The page below 1 MiB in which other cores start: writable until it is filled, then executable.
 * NULL = there is none. */
uint8_t *memory_start_page(void);
void memory_start_page_filled(void);

/* The window. */
uint8_t *memory_window(void);
uint64_t memory_window_bytes(void);            /* a multiple of 2 MiB */
uint64_t memory_window_contiguous_bytes(void); /* of its first part, physically contiguous */

/* Map `bytes` of the window from `offset` on into `space` at `virtual`, all multiples of 4 KiB.
 * With virtual == memory_window() + offset, modulo 1 GiB, the pages are as large as they can be. */
enum paging_result memory_map_window(struct paging_space *space, uint64_t virtual, uint64_t offset,
                                     uint64_t bytes, uint32_t flags);

uint64_t memory_total_bytes(void); /* what the firmware reported as usable */

#endif
