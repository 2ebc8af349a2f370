/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of a weights region: one set of checks, used by the kernels and by the packer.
 */
#ifndef DUCK_DIRECTORY_H
#define DUCK_DIRECTORY_H

#include <stdbool.h>

#include "text.h"
#include <duck/fp9.h>

#define DUCK_HIDDEN_MAX 32768u
#define DUCK_ROWS_MAX 32768u

/* The shape rules shared by slices and directories. False: `text` says what is wrong. */
bool duck_check_shape(uint32_t format, uint32_t hidden, uint32_t moe_intermediate_size,
                      uint32_t first_row, uint32_t rows, struct duck_text *text);

/* True when every field of the directory is in range and adds up within `region_bytes`. */
bool duck_check_directory(const struct duck_directory *directory, uint64_t region_bytes,
                          struct duck_text *text);

/* Index of a model layer's segment, or -1. */
int duck_find_layer(const struct duck_directory *directory, uint32_t layer);

#endif
