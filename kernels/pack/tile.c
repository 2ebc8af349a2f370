/* SPDX-License-Identifier: Apache-2.0 */
#include "tile.h"

#include <smmintrin.h>
#include <string.h>

/* ---- E4M3 source ----------------------------------------------------------------------------- */

/* Upper eight bits of the fp9 codes of the eight magnitudes below E4M3's first normal: m * 2^-9,
 * m = 0..7. Halves have exponents to spare, so all become normal numbers; their last mantissa bit
 * is always 0. */
static const _Alignas(16) uint8_t subnormal_top[16] = {0x00, 0x18, 0x1C, 0x1E,
                                                       0x20, 0x21, 0x22, 0x23};

static bool any_nan_code(const struct tile *tile) {
    const __m128i all_ones = _mm_set1_epi8(0x7F);
    __m128i found = _mm_setzero_si128();
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        for (uint32_t k = 0; k < tile->columns; k += 16) {
            __m128i codes = _mm_load_si128((const __m128i *)&tile->plane[0][r][k]);
            codes = _mm_and_si128(codes, all_ones);
            found = _mm_or_si128(found, _mm_cmpeq_epi8(codes, all_ones));
        }
    }
    return _mm_movemask_epi8(found) != 0;
}

/* s eeee mmm -> s eeeee mm | m. Normals: the exponent bias grows by 8; the others from a table. */
static void e4m3_to_fp9(struct tile *tile) {
    const __m128i small_top = _mm_load_si128((const __m128i *)subnormal_top);
    const __m128i sign_bit = _mm_set1_epi8((char)0x80);
    const __m128i magnitude_bits = _mm_set1_epi8(0x7F);
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        for (uint32_t k = 0; k < tile->columns; k += 16) {
            __m128i code = _mm_load_si128((const __m128i *)&tile->plane[0][r][k]);
            __m128i magnitude = _mm_and_si128(code, magnitude_bits);
            __m128i half = _mm_and_si128(_mm_srli_epi16(magnitude, 1), _mm_set1_epi8(0x3F));
            __m128i top = _mm_add_epi8(half, _mm_set1_epi8(8 << 2));
            __m128i low = _mm_and_si128(code, _mm_set1_epi8(1));
            __m128i is_small = _mm_cmplt_epi8(magnitude, _mm_set1_epi8(8));
            top = _mm_blendv_epi8(top, _mm_shuffle_epi8(small_top, magnitude), is_small);
            low = _mm_andnot_si128(is_small, low);
            top = _mm_or_si128(top, _mm_and_si128(code, sign_bit));
            _mm_store_si128((__m128i *)&tile->plane[0][r][k], top);
            _mm_store_si128((__m128i *)&tile->plane[1][r][k], low);
        }
    }
}

bool tile_from_e4m3(struct tile *tile, uint32_t format, const struct tile_source *source) {
    const uint8_t *data = source->data;
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        memcpy(tile->plane[0][r], data + r * source->stride, tile->columns);
    }
    if (any_nan_code(tile)) return false;
    if (format == DUCK_FORMAT_FP9) e4m3_to_fp9(tile);
    return true;
}

/* ---- panel order ----------------------------------------------------------------------------- */

/* 16 x 16 bytes: out[k] byte i = in[i] byte k. Each round interleaves the two halves; four rounds
 * rotate the eight index bits by four, which swaps row and column. */
static void transpose_16(__m128i x[16]) {
    for (int round = 0; round < 4; round++) {
        __m128i y[16];
        for (int i = 0; i < 8; i++) {
            y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
            y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
        }
        for (int i = 0; i < 16; i++) x[i] = y[i];
    }
}

/* Row whose code is byte b of an 8-bit panel column. */
static inline uint32_t row_of_byte(uint32_t b) { return 8 * (3 - b % 4) + b / 4; }

/* Columns of 32 bytes, `column_stride(k)` apart by way of `out`: byte b of column k is row
 * `natural ? b : row_of_byte(b)`. */
static void store_columns(const uint8_t plane[TILE_ROWS][TILE_COLUMNS], uint32_t columns,
                          bool natural, uint32_t group_bytes, uint32_t group_skip, uint8_t *panel) {
    for (uint32_t k = 0; k < columns; k += 16) {
        for (uint32_t half = 0; half < 2; half++) {
            __m128i x[16];
            for (uint32_t i = 0; i < 16; i++) {
                uint32_t b = 16 * half + i;
                x[i] = _mm_load_si128((const __m128i *)&plane[natural ? b : row_of_byte(b)][k]);
            }
            transpose_16(x);
            for (uint32_t i = 0; i < 16; i++) {
                uint32_t column = k + i;
                if (column % 8 * 32 + group_skip >= group_bytes) continue; /* fp7 has no eighth */
                uint8_t *out = panel + column / 8 * group_bytes + group_skip + column % 8 * 32;
                _mm_storeu_si128((__m128i *)(out + 16 * half), x[i]);
            }
        }
    }
}

/* Bit planes of fp9: byte r of a group of 8 columns has row r's last bits, column j in bit j. */
static void store_low_bits(const uint8_t plane[TILE_ROWS][TILE_COLUMNS], uint32_t columns,
                           uint8_t *panel) {
    const __m128i first_group = _mm_set1_epi16(0xFF);
    for (uint32_t k = 0; k < columns; k += 16) {
        _Alignas(16) uint16_t bits[TILE_ROWS]; /* of 16 columns: two groups */
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            __m128i low = _mm_load_si128((const __m128i *)&plane[r][k]);
            bits[r] = (uint16_t)_mm_movemask_epi8(_mm_slli_epi16(low, 7));
        }
        uint8_t *out = panel + k / 8 * DUCK_FP9_GROUP_BYTES;
        for (uint32_t r = 0; r < TILE_ROWS; r += 16) {
            __m128i a = _mm_load_si128((const __m128i *)&bits[r]);
            __m128i b = _mm_load_si128((const __m128i *)&bits[r + 8]);
            __m128i first =
                _mm_packus_epi16(_mm_and_si128(a, first_group), _mm_and_si128(b, first_group));
            __m128i second = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
            _mm_storeu_si128((__m128i *)(out + r), first);
            _mm_storeu_si128((__m128i *)(out + DUCK_FP9_GROUP_BYTES + r), second);
        }
    }
}

/* ---- fp7 ------------------------------------------------------------------------------------- */

/* The eighth column of each group lies in the last bits of the seven others. */
static void tile_store_fp7(struct tile *tile, uint8_t *panel) {
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        uint8_t *code = tile->plane[0][r];
        for (uint32_t k = 0; k < tile->columns; k += 8) {
            uint32_t last = code[k + 7];
            for (uint32_t j = 0; j < 7; j++) {
                code[k + j] = (uint8_t)(code[k + j] << 1 | (last >> j & 1u));
            }
        }
    }
    store_columns(tile->plane[0], tile->columns, false, DUCK_FP7_GROUP_BYTES, 0, panel);
}

void tile_store(struct tile *tile, uint32_t format, uint8_t *panel) {
    switch (format) {
    case DUCK_FORMAT_FP9:
        store_low_bits(tile->plane[1], tile->columns, panel);
        store_columns(tile->plane[0], tile->columns, true, DUCK_FP9_GROUP_BYTES, 32, panel);
        break;
    case DUCK_FORMAT_FP8:
        store_columns(tile->plane[0], tile->columns, false, 8 * DUCK_PANEL_ROWS, 0, panel);
        break;
    case DUCK_FORMAT_FP7: tile_store_fp7(tile, panel); break;
    default: tile_store_integers(tile, format, panel); break;
    }
}
