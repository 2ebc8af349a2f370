/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the parts of the image begin, as offsets from image_start: right before and after paging.
 */
#ifndef DUCKOS_IMAGE_H
#define DUCKOS_IMAGE_H

#include <stdint.h>

#define IMAGE_BASE 0xffffffff80000000ull /* duckos.ld */

extern const uint8_t image_start[], _text_end[], _rodata_end[], _file_end[], _image_end[];

/* The first page holds file headers and real-mode code, and is not loaded by all loaders. */
static inline uint64_t image_offset_text(void) { return 0x1000; }
static inline uint64_t image_offset_rodata(void) { return (uint64_t)(_text_end - image_start); }
static inline uint64_t image_offset_data(void) { return (uint64_t)(_rodata_end - image_start); }
static inline uint64_t image_offset_end(void) { return (uint64_t)(_image_end - image_start); }

#endif
