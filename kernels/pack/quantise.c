/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding float32 values to codes.
 */
#include <math.h>
#include <smmintrin.h>
#include <string.h>

#include "tile.h"

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

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_bf16(const struct tile_source *source, uint32_t columns, tile_values values) {
    const uint16_t *data = source->data;
    uint32_t largest = 0;
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        const uint16_t *row = data + r * source->stride;
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t bits = (uint32_t)row[k] << 16;
            uint32_t magnitude = bits & 0x7FFFFFFFu;
            largest = magnitude > largest ? magnitude : largest;
            values[r][k] = bits_float(bits);
        }
    }
    return largest < 0x7F800000u;
}

static bool read_e4m3(const struct tile_source *source, uint32_t columns, tile_values values) {
    const uint8_t *data = source->data;
    uint32_t largest = 0;
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        const uint8_t *row = data + r * source->stride;
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t magnitude = row[k] & 0x7Fu;
            float normal = bits_float((magnitude << 20) + ((127u - 7u) << 23));
            float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
            float value = (magnitude < 8 ? subnormal : normal) * source->scale;
            largest = magnitude > largest ? magnitude : largest;
            values[r][k] = bits_float(float_bits(value) | (row[k] & 0x80u) << 24);
        }
    }
    return largest < 0x7Fu;
}

bool tile_read(const struct tile_source *source, uint32_t columns, tile_values values) {
    return source->is_bf16 ? read_bf16(source, columns, values)
                           : read_e4m3(source, columns, values);
}

/* ---- small floats ---------------------------------------------------------------------------- */

/* A small float format inside float32: where its codes are in a float's bits, and its limits. */
struct small_float {
    uint32_t bias_difference; /* subtracted from float32 bits >> 20 to get the code */
    uint32_t code_max;
    float normal_min;
    float subnormal_magic; /* adding it rounds to a multiple of the smallest subnormal */
};
static const struct small_float e4m3_float = {(127 - 7) << 3, 0x7E, 0x1p-6f, 0x1p14f};
static const struct small_float fp9_float = {(127 - 15) << 3, 0xF7, 0x1p-14f, 0x1p6f};
static const struct small_float fp7_float = {129 << 3, 0x3F, 8.0f, 0x1p23f};

/* Codes of four magnitudes, rounded to nearest even, and their values. */
static inline __m128i encode_four(const struct small_float *format, __m128 magnitude,
                                  __m128 *rounded) {
    const __m128i bias = _mm_set1_epi32((int)format->bias_difference);
    const __m128i code_max = _mm_set1_epi32((int)format->code_max);
    const __m128 magic = _mm_set1_ps(format->subnormal_magic);
    __m128i bits = _mm_castps_si128(magnitude);
    __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 20), _mm_set1_epi32(1));
    __m128i carried = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFFF)), odd);
    __m128i normal = _mm_sub_epi32(_mm_srli_epi32(carried, 20), bias);
    normal = _mm_min_epi32(normal, code_max);
    __m128 normal_value = _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(normal, bias), 20));
    __m128 shifted = _mm_add_ps(magnitude, magic);
    __m128i subnormal = _mm_sub_epi32(_mm_castps_si128(shifted), _mm_castps_si128(magic));
    __m128 is_normal = _mm_cmpge_ps(magnitude, _mm_set1_ps(format->normal_min));
    *rounded = _mm_blendv_ps(_mm_sub_ps(shifted, magic), normal_value, is_normal);
    return _mm_castps_si128(
        _mm_blendv_ps(_mm_castsi128_ps(subnormal), _mm_castsi128_ps(normal), is_normal));
}

/* Sums of a row, four lanes each. */
struct row_sums {
    __m128 error, square;
};

/* One row: code[k] = sign << 15 | code of the magnitude. */
static void encode_row(const struct small_float *format, const float *value, float scale,
                       uint32_t columns, uint16_t *code, struct row_sums *sums) {
    const __m128 sign_bit = _mm_set1_ps(-0.0f);
    const __m128 scales = _mm_set1_ps(scale);
    /* Values under a scale of 0 are all 0, and so are their codes. */
    const __m128 divisors = _mm_set1_ps(scale == 0.0f ? 1.0f : scale);
    for (uint32_t k = 0; k < columns; k += 8) {
        __m128i part[2];
        for (uint32_t i = 0; i < 2; i++) {
            __m128 v = _mm_loadu_ps(value + k + 4 * i);
            __m128 magnitude = _mm_andnot_ps(sign_bit, v);
            __m128 rounded;
            __m128i codes = encode_four(format, _mm_div_ps(magnitude, divisors), &rounded);
            __m128 error = _mm_sub_ps(magnitude, _mm_mul_ps(rounded, scales));
            sums->error = _mm_add_ps(sums->error, _mm_mul_ps(error, error));
            sums->square = _mm_add_ps(sums->square, _mm_mul_ps(v, v));
            __m128i sign = _mm_srli_epi32(_mm_castps_si128(_mm_and_ps(v, sign_bit)), 16);
            part[i] = _mm_or_si128(codes, sign);
        }
        _mm_storeu_si128((__m128i *)(code + k), _mm_packus_epi32(part[0], part[1]));
    }
}

static double sum_lanes(__m128 lanes) {
    float lane[4];
    _mm_storeu_ps(lane, lanes);
    return (double)lane[0] + (double)lane[1] + (double)lane[2] + (double)lane[3];
}

static void quantise_floats(struct tile *tile, uint32_t format, tile_values values, float scale,
                            struct tile_error *error) {
    const struct small_float *target = format == DUCK_FORMAT_FP9   ? &fp9_float
                                       : format == DUCK_FORMAT_FP8 ? &e4m3_float
                                                                   : &fp7_float;
    uint32_t sign_at = format == DUCK_FORMAT_FP7 ? 9 : 8; /* fp7 codes have their sign in bit 6 */
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        uint16_t code[TILE_COLUMNS];
        struct row_sums sums = {_mm_setzero_ps(), _mm_setzero_ps()};
        uint8_t *top = tile->plane[0][r];
        encode_row(target, values[r], scale, tile->columns, code, &sums);
        error->squared_error += sum_lanes(sums.error);
        error->squared_sum += sum_lanes(sums.square);
        if (format == DUCK_FORMAT_FP9) {
            for (uint32_t k = 0; k < tile->columns; k++) {
                top[k] = (uint8_t)((code[k] >> 8 & 0x80) | (code[k] & 0xFF) >> 1);
                tile->plane[1][r][k] = (uint8_t)(code[k] & 1);
            }
        } else {
            for (uint32_t k = 0; k < tile->columns; k++) {
                uint32_t sign = (uint32_t)(code[k] & 0x8000) >> sign_at;
                top[k] = (uint8_t)(sign | (code[k] & 0x7Fu));
            }
        }
    }
}

/* ---- integers with a row scale --------------------------------------------------------------- */

/* Half precision of a value in the halves' range, rounded to nearest even, and back. */
static uint16_t to_half(float value) {
    uint32_t bits = float_bits(fabsf(value));
    uint32_t sign = float_bits(value) >> 16 & 0x8000u;
    if (bits < 0x38800000u) { /* below 2^-14: a subnormal half */
        float shifted = bits_float(bits) + 0x1p-1f;
        return (uint16_t)(sign | (float_bits(shifted) - float_bits(0x1p-1f)));
    }
    uint32_t half = (bits + 0xFFFu + (bits >> 13 & 1u) - 0x38000000u) >> 13;
    return (uint16_t)(sign | (half < 0x7BFFu ? half : 0x7BFFu));
}

float tile_half_value(uint16_t half) {
    uint32_t magnitude = half & 0x7FFFu;
    float value = magnitude < 0x400u ? (float)(int32_t)magnitude * 0x1p-24f
                                     : bits_float((magnitude << 13) + 0x38000000u);
    return (half & 0x8000u) != 0 ? -value : value;
}

/* Integers of 32 values for one row scale; returns the squared error. */
static float round_chunk(const float *value, float row_scale, int32_t lowest, uint8_t *code) {
    const float shift = 0x1.8p23f;
    float inverse = row_scale != 0.0f ? 1.0f / row_scale : 0.0f;
    float error_sum = 0.0f;
    float low = (float)lowest;
    float high = (float)(-lowest - 1);
#pragma omp simd reduction(+ : error_sum)
    for (uint32_t k = 0; k < 32; k++) {
        float rounded = (value[k] * inverse + shift) - shift;
        rounded = rounded < low ? low : rounded;
        rounded = rounded > high ? high : rounded;
        float error = value[k] - rounded * row_scale;
        error_sum += error * error;
        code[k] = (uint8_t)((int32_t)rounded - lowest);
    }
    return error_sum;
}

/* The row scale is tried from "the largest value is the lowest integer" down to `TRIES` steps less:
 * clipping a few values is paid for by finer steps for all. */
#define TRIES 8
static void quantise_chunk(const float *value, int32_t lowest, uint8_t *code, uint16_t *row_scale,
                           float *squared_error) {
    float step = lowest == -8 ? 0.05f : 0.02f;
    float extreme = 0.0f;
    for (uint32_t k = 0; k < 32; k++) {
        extreme = fabsf(value[k]) > fabsf(extreme) ? value[k] : extreme;
    }
    float best = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        uint8_t trial[32];
        uint16_t half = to_half(extreme / (float)lowest * (1.0f - step * (float)i));
        float error = round_chunk(value, tile_half_value(half), lowest, trial);
        if (error < best) {
            best = error;
            *row_scale = half;
            memcpy(code, trial, sizeof(trial));
        }
    }
    *squared_error = best;
}

static void quantise_integers(struct tile *tile, uint32_t format, tile_values values, float scale,
                              struct tile_error *error) {
    int32_t lowest = format == DUCK_FORMAT_Q4 ? -8 : -32;
    double block = (double)scale * (double)scale;
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        for (uint32_t c = 0; c < tile->columns / 32; c++) {
            float scaled[32];
            float chunk_error;
            for (uint32_t k = 0; k < 32; k++) {
                scaled[k] = scale > 0.0f ? values[r][32 * c + k] / scale : 0.0f;
            }
            quantise_chunk(scaled, lowest, &tile->plane[0][r][32 * c], &tile->row_scale[c][r],
                           &chunk_error);
            error->squared_error += (double)chunk_error * block;
            for (uint32_t k = 0; k < 32; k++) {
                error->squared_sum += (double)scaled[k] * (double)scaled[k] * block;
            }
        }
    }
}

void tile_quantise(struct tile *tile, uint32_t format, tile_values values, float scale,
                   struct tile_error *error) {
    if (format <= DUCK_FORMAT_Q6) {
        quantise_integers(tile, format, values, scale, error);
    } else {
        quantise_floats(tile, format, values, scale, error);
    }
}

/* ---- scales ---------------------------------------------------------------------------------- */

float tile_scale(uint32_t format, float amax) {
    if (amax == 0.0f) return 1.0f;
    uint32_t exponent = float_bits(amax) >> 23; /* amax = 1.m * 2^(exponent - 127) */
    if (format == DUCK_FORMAT_FP9) return bits_float((exponent > 15 ? exponent - 14 : 1) << 23);
    if (format == DUCK_FORMAT_FP7) {
        float unit = bits_float((exponent > 10 ? exponent - 9 : 1) << 23);
        return amax / unit > 976.0f ? 2.0f * unit : unit;
    }
    float scale = amax / 448.0f;
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}

float tile_fp7_unit(uint8_t code_max) {
    uint32_t exponent = code_max >> 3; /* the code is (8 + m) * 2^(exponent - 10) */
    return ldexpf(1.0f, (int)(exponent == 0 ? 1 : exponent) - 16);
}
