/* SPDX-License-Identifier: Apache-2.0
 *
 * Panel order of q4 and q6, and the values of packed codes: plain loops, as close to fp9.h's words
 * as possible.
 */
#include <math.h>
#include <string.h>

#include "tile.h"

/* ---- q4 and q6 ------------------------------------------------------------------------------- */

enum { CHUNK_SCALES = 64, CHUNK_NIBBLES = 512 };

static void store_chunk(const struct tile *tile, uint32_t format, uint32_t c, uint8_t *chunk) {
    memcpy(chunk, tile->row_scale[c], CHUNK_SCALES);
    uint8_t *nibbles = chunk + CHUNK_SCALES;
    uint8_t *upper = nibbles + CHUNK_NIBBLES;
    if (format == DUCK_FORMAT_Q6) memset(upper, 0, 2 * 128);
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        const uint8_t *code = &tile->plane[0][r][32 * c];
        uint32_t lane = 32 * (r / 8) + 4 * (r % 8);
        for (uint32_t k = 0; k < 32; k += 8) {
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t low = code[k + i] & 15u;
                uint32_t high = code[k + 4 + i] & 15u;
                nibbles[16 * k + lane + i] = (uint8_t)(low | high << 4);
            }
        }
        for (uint32_t k = 0; k < 32 && format == DUCK_FORMAT_Q6; k++) {
            uint32_t bits = (uint32_t)code[k] >> 4 << 2 * (k % 16 / 4);
            upper[128 * (k / 16) + lane + k % 4] |= (uint8_t)bits;
        }
    }
}

void tile_store_integers(const struct tile *tile, uint32_t format, uint8_t *panel) {
    for (uint32_t c = 0; c < tile->columns / 32; c++) {
        store_chunk(tile, format, c, panel);
        panel += duck_chunk_bytes(format);
    }
}

static float integer_value(const uint8_t *panel, uint32_t format, uint32_t row, uint32_t column) {
    const uint8_t *chunk = panel + (uint64_t)(column / 32) * duck_chunk_bytes(format);
    const uint8_t *nibbles = chunk + CHUNK_SCALES;
    uint32_t k = column % 32;
    uint32_t lane = 32 * (row / 8) + 4 * (row % 8);
    uint16_t half;
    memcpy(&half, chunk + 2 * row, sizeof(half));
    int32_t code = nibbles[16 * (k / 8 * 8) + lane + k % 4] >> (k % 8 < 4 ? 0 : 4) & 15;
    if (format == DUCK_FORMAT_Q6) {
        uint32_t upper = nibbles[CHUNK_NIBBLES + 128 * (k / 16) + lane + k % 4];
        code |= (int32_t)(upper >> 2 * (k % 16 / 4) & 3u) << 4;
    }
    return (float)(code - (format == DUCK_FORMAT_Q6 ? 32 : 8)) * tile_half_value(half);
}

/* ---- small floats ---------------------------------------------------------------------------- */

/* (8 + m) * 2^(e - 1) units, or m units when e is 0. */
static float in_units(uint32_t magnitude, float unit) {
    uint32_t exponent = magnitude >> 3;
    float mantissa = (float)(magnitude & 7u);
    return exponent == 0 ? mantissa * unit : ldexpf(8.0f + mantissa, (int)exponent - 1) * unit;
}

static float signed_value(float magnitude, uint32_t sign) {
    return sign != 0 ? -magnitude : magnitude;
}

static float fp8_value(const uint8_t *panel, uint32_t row, uint32_t column) {
    uint8_t code = panel[column * DUCK_PANEL_ROWS + 4 * (row % 8) + (3 - row / 8)];
    return signed_value(in_units(code & 0x7Fu, 0x1p-9f), code >> 7);
}

static float fp9_value(const uint8_t *panel, uint32_t row, uint32_t column) {
    const uint8_t *group = panel + column / DUCK_FP9_COLUMNS * DUCK_FP9_GROUP_BYTES;
    uint32_t low = group[row] >> column % DUCK_FP9_COLUMNS & 1u;
    uint32_t top = group[32 + column % DUCK_FP9_COLUMNS * 32 + row];
    return signed_value(in_units((top & 0x7Fu) << 1 | low, 0x1p-17f), top >> 7);
}

static float fp7_value(const uint8_t *panel, uint32_t row, uint32_t column) {
    const uint8_t *group = panel + column / 8 * DUCK_FP7_GROUP_BYTES;
    uint32_t at = 4 * (row % 8) + (3 - row / 8);
    uint32_t code = 0;
    if (column % 8 < 7) {
        code = group[column % 8 * 32 + at] >> 1;
    } else {
        for (uint32_t j = 0; j < 7; j++) code |= (group[32 * j + at] & 1u) << j;
    }
    return signed_value(in_units(code & 0x3Fu, 1.0f), code >> 6);
}

static float code_value(const uint8_t *panel, uint32_t format, uint32_t row, uint32_t column) {
    switch (format) {
    case DUCK_FORMAT_FP9: return fp9_value(panel, row, column);
    case DUCK_FORMAT_FP8: return fp8_value(panel, row, column);
    case DUCK_FORMAT_FP7: return fp7_value(panel, row, column);
    default: return integer_value(panel, format, row, column);
    }
}

void tile_unpack(const uint8_t *panel, uint32_t format, uint32_t columns, float scale, float *value,
                 uint64_t stride) {
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        for (uint32_t k = 0; k < columns; k++) {
            value[r * stride + k] = code_value(panel, format, r, k) * scale;
        }
    }
}
