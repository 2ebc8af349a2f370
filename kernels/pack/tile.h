/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile is the part of a panel that shares one block scale: 32 rows, up to 128 columns. Packing
 * and unpacking go tile by tile, so everything in flight stays in the first-level cache.
 */
#ifndef DUCK_TILE_H
#define DUCK_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include <duck/fp9.h>

enum { TILE_ROWS = 32, TILE_COLUMNS = 128 };

/* Codes row by row. fp8 uses plane 0; fp9 has the upper eight bits in plane 0, the last mantissa
 * bit (0 or 1) in plane 1. Only `columns` (a multiple of 32) of each row are in use. */
struct tile {
    uint32_t columns;
    _Alignas(64) uint8_t plane[2][TILE_ROWS][TILE_COLUMNS];
};

/* Where a tile's source values are: row r begins at data + r * stride (in elements). */
struct tile_source {
    const void *data;
    uint64_t stride;
    float scale;
};

struct tile_error {
    double squared_error;
    double squared_sum;
};

/* Read E4M3 codes. False when there is a NaN code among them. */
bool tile_from_e4m3(struct tile *tile, uint32_t format, const struct tile_source *source);

/* Round bf16 values / scale to the nearest code, ties to even. False when there is a NaN or
 * infinity among them. */
bool tile_from_bf16(struct tile *tile, uint32_t format, const struct tile_source *source,
                    struct tile_error *error);

/* Write the tile's codes in panel order (fp9.h) at `panel`: columns * 32 * bits / 8 bytes. */
void tile_store(const struct tile *tile, uint32_t format, uint8_t *panel);

/* The reverse, to float32: value[r * stride + k] = code value * scale. */
void tile_unpack(const uint8_t *panel, uint32_t format, uint32_t columns, float scale, float *value,
                 uint64_t stride);

/* Block scale for values up to `amax`. fp8: amax / 448. fp9: the power of two that puts amax into
 * [2^14, 2^15), so that the codes' whole exponent range lies below it. 1 when amax is 0. */
float tile_scale(uint32_t format, float amax);

#endif
