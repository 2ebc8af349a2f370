/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile is the part of a panel that shares one block scale: 32 rows, up to 128 columns. Packing
 * and unpacking go tile by tile, so everything in flight stays in the first-level cache.
 *
 *   source -> tile_from_e4m3 (fp8, fp9: codes pass through exactly)          -> tile_store
 *   source -> tile_read (float32 values) -> tile_quantise (rounds, measures) -> tile_store
 */
#ifndef DUCK_TILE_H
#define DUCK_TILE_H

#include <duck/fp9.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    TILE_ROWS = 32,
    TILE_COLUMNS = 128,
    TILE_CHUNKS = TILE_COLUMNS / 32,
    TILE_PACKED_BYTES_MAX = TILE_ROWS * TILE_COLUMNS * 9 / 8,
};

/* Codes row by row, one per byte, without a sign extension. fp9 has the upper eight bits in plane 0
 * and the last mantissa bit (0 or 1) in plane 1; the other formats use plane 0 only. Only `columns`
 * (a multiple of 32) of each row are in use. */
struct tile {
    uint32_t columns;
    _Alignas(64) uint8_t plane[2][TILE_ROWS][TILE_COLUMNS];
    uint16_t row_scale[TILE_CHUNKS][TILE_ROWS]; /* q4, q6: half precision, per 32 columns */
};

/* Where a tile's source values are: row r begins at data + r * stride (in elements). */
struct tile_source {
    const void *data;
    uint64_t stride;
    bool is_bf16; /* otherwise E4M3 codes */
    float scale;  /* E4M3: of the block */
};

struct tile_error {
    double squared_error;
    double squared_sum;
};

typedef float tile_values[TILE_ROWS][TILE_COLUMNS];

/* True when the packing of E4M3 codes in this format loses nothing. */
static inline bool format_is_lossless(uint32_t format) { return format >= DUCK_FORMAT_FP8; }

/* Read E4M3 codes as fp8 or fp9. False when there is a NaN code among them. */
bool tile_from_e4m3(struct tile *tile, uint32_t format, const struct tile_source *source);

/* Source values in float32, code value * scale. False when one is not finite. */
bool tile_read(const struct tile_source *source, uint32_t columns, tile_values values);

/* Round values / scale to the nearest code (ties to even; q4 and q6: with the row scale that gives
 * the least squared error of a few), and add up what that costs. */
void tile_quantise(struct tile *tile, uint32_t format, tile_values values, float scale,
                   struct tile_error *error);

/* Write the tile's codes in panel order (fp9.h) at `panel`. Uses the tile up. */
void tile_store(struct tile *tile, uint32_t format, uint8_t *panel);

/* q4 and q6 of tile_store. */
void tile_store_integers(const struct tile *tile, uint32_t format, uint8_t *panel);

/* The reverse, to float32: value[r * stride + k] = code value [* row scale] * scale. */
void tile_unpack(const uint8_t *panel, uint32_t format, uint32_t columns, float scale, float *value,
                 uint64_t stride);

/* Half precision (a row scale) in float32. */
float tile_half_value(uint16_t half);

/* Block scale for bf16 values up to `amax`; 1 when amax is 0.
 *   fp8, q4, q6   amax / 448
 *   fp9           the power of two that puts amax into [2^14, 2^15), so that the codes' whole
 *                 exponent range lies below it
 *   fp7           the power of two that puts amax into [488, 976]: the largest code is 960 */
float tile_scale(uint32_t format, float amax);

/* What an E4M3 block's scale is multiplied with for fp7, so that its largest code, `code_max`
 * without sign, gets the highest exponent: the unit in terms of code values. */
float tile_fp7_unit(uint8_t code_max);

#endif
