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

/* ---- bf16 source ----------------------------------------------------------------------------- */

/* A small float format inside float32: where its codes are in a float's bits, and its limits. */
struct small_float {
    uint32_t bias_difference; /* subtracted from float32 bits >> 20 to get the code */
    uint32_t code_max;
    float normal_min;
    float subnormal_magic; /* adding it rounds to a multiple of the smallest subnormal */
};
static const struct small_float e4m3_float = {(127 - 7) << 3, 0x7E, 0x1p-6f, 0x1p14f};
static const struct small_float fp9_float = {(127 - 15) << 3, 0xF7, 0x1p-14f, 0x1p6f};

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Code of a magnitude, rounded to nearest even; *rounded is its value. No branches: the loops over
 * a row become vector code. */
static inline uint32_t encode_magnitude(const struct small_float *format, float magnitude,
                                        float *rounded) {
    uint32_t bits = float_bits(magnitude);
    uint32_t carried = bits + 0x7FFFFu + ((bits >> 20) & 1u);
    uint32_t normal = (carried >> 20) - format->bias_difference;
    uint32_t code_max_bits = (format->code_max + format->bias_difference) << 20;
    float shifted = magnitude + format->subnormal_magic;
    uint32_t subnormal = float_bits(shifted) - float_bits(format->subnormal_magic);
    bool is_normal = magnitude >= format->normal_min;
    bool is_above = is_normal && normal > format->code_max;
    float normal_value = bits_float(is_above ? code_max_bits : carried & 0xFFF00000u);
    *rounded = is_normal ? normal_value : shifted - format->subnormal_magic;
    return is_normal ? (is_above ? format->code_max : normal) : subnormal;
}

/* One row of bf16 into one or two planes. Returns the exponent bits of the largest magnitude. */
static uint32_t encode_row(const struct small_float *format, const uint16_t *value, float scale,
                           uint32_t columns, uint8_t *top, uint8_t *low, float sums[2]) {
    uint32_t largest = 0;
    float error_sum = 0.0f;
    float square_sum = 0.0f;
    bool two_planes = low != NULL;
    uint16_t code[TILE_COLUMNS];
#pragma omp simd reduction(max : largest) reduction(+ : error_sum, square_sum)
    for (uint32_t k = 0; k < columns; k++) {
        uint32_t bits = (uint32_t)value[k] << 16;
        uint32_t magnitude_bits = bits & 0x7FFFFFFFu;
        float magnitude = bits_float(magnitude_bits);
        float rounded;
        uint32_t magnitude_code = encode_magnitude(format, magnitude / scale, &rounded);
        float error = magnitude - rounded * scale;
        largest = magnitude_bits > largest ? magnitude_bits : largest;
        error_sum += error * error;
        square_sum += magnitude * magnitude;
        code[k] = (uint16_t)(magnitude_code | (bits >> 31) << 15);
    }
    for (uint32_t k = 0; k < columns; k++) {
        uint32_t sign = (uint32_t)code[k] >> 8 & 0x80u;
        top[k] = (uint8_t)(sign | (two_planes ? (code[k] & 0xFFu) >> 1 : code[k] & 0x7Fu));
    }
    if (two_planes) {
        for (uint32_t k = 0; k < columns; k++) low[k] = (uint8_t)(code[k] & 1u);
    }
    sums[0] += error_sum;
    sums[1] += square_sum;
    return largest;
}

bool tile_from_bf16(struct tile *tile, uint32_t format, const struct tile_source *source,
                    struct tile_error *error) {
    const struct small_float *target = format == DUCK_FORMAT_FP9 ? &fp9_float : &e4m3_float;
    const uint16_t *data = source->data;
    uint32_t largest = 0;
    float sums[2] = {0.0f, 0.0f};
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        uint8_t *low = format == DUCK_FORMAT_FP9 ? tile->plane[1][r] : NULL;
        uint32_t row_largest = encode_row(target, data + r * source->stride, source->scale,
                                          tile->columns, tile->plane[0][r], low, sums);
        largest = row_largest > largest ? row_largest : largest;
    }
    error->squared_error += (double)sums[0];
    error->squared_sum += (double)sums[1];
    return largest < 0x7F800000u;
}

float tile_scale(uint32_t format, float amax) {
    if (amax == 0.0f) return 1.0f;
    if (format == DUCK_FORMAT_FP9) {
        /* amax = 1.m * 2^e gets scale 2^(e - 14), kept normal. */
        uint32_t exponent = float_bits(amax) >> 23;
        return bits_float((exponent > 14 + 1 ? exponent - 14 : 1) << 23);
    }
    float scale = amax / 448.0f;
    return scale > 0x1p-126f ? scale : 0x1p-126f;
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

void tile_store(const struct tile *tile, uint32_t format, uint8_t *panel) {
    if (format == DUCK_FORMAT_FP9) {
        store_low_bits(tile->plane[1], tile->columns, panel);
        store_columns(tile->plane[0], tile->columns, true, DUCK_FP9_GROUP_BYTES, 32, panel);
    } else {
        store_columns(tile->plane[0], tile->columns, false, 8 * DUCK_PANEL_ROWS, 0, panel);
    }
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static float small_float_value(uint32_t code, uint32_t sign, const struct small_float *format) {
    uint32_t exponent = code >> 3;
    float value = exponent == 0 ? (float)code * (format->normal_min / 8.0f)
                                : bits_float((code << 20) + (format->bias_difference << 20));
    return sign != 0 ? -value : value;
}

static float fp8_value(const uint8_t *panel, uint32_t row, uint32_t column) {
    uint8_t code = panel[column * DUCK_PANEL_ROWS + 4 * (row % 8) + (3 - row / 8)];
    return small_float_value(code & 0x7Fu, code >> 7, &e4m3_float);
}

static float fp9_value(const uint8_t *panel, uint32_t row, uint32_t column) {
    const uint8_t *group = panel + column / DUCK_FP9_COLUMNS * DUCK_FP9_GROUP_BYTES;
    uint32_t low = group[row] >> column % DUCK_FP9_COLUMNS & 1u;
    uint32_t top = group[32 + column % DUCK_FP9_COLUMNS * 32 + row];
    return small_float_value((top & 0x7Fu) << 1 | low, top >> 7, &fp9_float);
}

void tile_unpack(const uint8_t *panel, uint32_t format, uint32_t columns, float scale, float *value,
                 uint64_t stride) {
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        for (uint32_t k = 0; k < columns; k++) {
            float code_value =
                format == DUCK_FORMAT_FP9 ? fp9_value(panel, r, k) : fp8_value(panel, r, k);
            value[r * stride + k] = code_value * scale;
        }
    }
}
