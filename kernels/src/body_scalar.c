/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference body: one weight at a time, straight from the layout of fp9.h. Every other body
 * must give the same bits.
 */
#include "kernel.h"

static float power_of_two(int exponent) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = (uint32_t)(exponent + 127) << 23};
    return u.value;
}

/* A float of 1 sign, `exponent_bits` and 3 mantissa bits. */
static float small_float(uint32_t sign, uint32_t magnitude, int bias) {
    int exponent = (int)(magnitude >> 3);
    float mantissa = (float)(magnitude & 7u) + (exponent == 0 ? 0.0f : 8.0f);
    float value = mantissa * power_of_two((exponent == 0 ? 1 : exponent) - bias - 3);
    return sign != 0 ? -value : value;
}

static float fp8_weight(const uint8_t *panel, uint32_t row, uint32_t column) {
    uint32_t code = panel[column * DUCK_PANEL_ROWS + 4 * (row % 8) + 3 - row / 8];
    return small_float(code >> 7, code & 0x7Fu, 7);
}

static float fp9_weight(const uint8_t *panel, uint32_t row, uint32_t column) {
    const uint8_t *group = panel + column / DUCK_FP9_COLUMNS * DUCK_FP9_GROUP_BYTES;
    uint32_t last = group[row] >> column % DUCK_FP9_COLUMNS & 1u;
    uint32_t top = group[DUCK_PANEL_ROWS * (1 + column % DUCK_FP9_COLUMNS) + row];
    return small_float(top >> 7, (top & 0x7Fu) << 1 | last, 15);
}

/* In units of the block scale: exponent 1 is the smallest normal. */
static float fp7_weight(const uint8_t *panel, uint32_t row, uint32_t column) {
    const uint8_t *group = panel + column / 8 * DUCK_FP7_GROUP_BYTES;
    uint32_t at = 4 * (row % 8) + 3 - row / 8;
    uint32_t code = 0;
    if (column % 8 < 7) {
        code = group[column % 8 * DUCK_PANEL_ROWS + at] >> 1;
    } else {
        for (uint32_t j = 0; j < 7; j++) code |= (group[DUCK_PANEL_ROWS * j + at] & 1u) << j;
    }
    return small_float(code >> 6, code & 0x3Fu, -2);
}

typedef float (*weight_function)(const uint8_t *panel, uint32_t row, uint32_t column);

/* Sum over the columns of one scale block, which begins at column `start` of the panel. */
static float float_sum(weight_function weight, const uint8_t *panel, uint32_t row, uint32_t start,
                       uint32_t columns, const float *x) {
    float sum = 0.0f;
    for (uint32_t k = 0; k < columns; k++) {
        sum = __builtin_fmaf(weight(panel, row, start + k), x[k], sum);
    }
    return sum;
}

/* ---- q4 and q6 ------------------------------------------------------------------------------- */

static float half_value(uint32_t half) {
    float value = (half & 0x7C00u) == 0 ? (float)(int32_t)(half & 0x3FFu) * 0x1p-24f
                                        : (float)(int32_t)(1024 + (half & 0x3FFu)) *
                                              power_of_two((int)(half >> 10 & 31u) - 25);
    return (half & 0x8000u) != 0 ? -value : value;
}

/* Code of chunk column k (0..31), without its offset. */
static int32_t integer_code(const uint8_t *chunk, uint32_t format, uint32_t row, uint32_t k) {
    const uint8_t *nibbles = chunk + 64 + 32 * (row / 8) + 4 * (row % 8);
    uint32_t code = nibbles[128 * (k / 8) + k % 4] >> (k % 8 < 4 ? 0 : 4) & 15u;
    if (format == DUCK_FORMAT_Q6) {
        code |= (uint32_t)(nibbles[512 + 128 * (k / 16) + k % 4] >> 2 * (k % 16 / 4) & 3) << 4;
    }
    return (int32_t)code;
}

/* Per 32 columns an exact integer sum, then one fma with the product of both scales. */
static float integer_sum(uint32_t format, const uint8_t *panel, uint32_t row, uint32_t start,
                         uint32_t columns, const struct duck_int8_block *x) {
    float sum = 0.0f;
    for (uint32_t c = 0; c < columns / 32; c++) {
        const uint8_t *chunk = panel + (start / 32 + c) * duck_chunk_bytes(format);
        int32_t products = 0;
        for (uint32_t k = 0; k < 32; k++) {
            products += integer_code(chunk, format, row, k) * x->x[32 * c + k];
        }
        products -= (format == DUCK_FORMAT_Q6 ? 32 : 8) * x->sum[c];
        float row_scale = half_value((uint32_t)(chunk[2 * row] | chunk[2 * row + 1] << 8));
        sum = __builtin_fmaf((float)products, row_scale * x->scale[c], sum);
    }
    return sum;
}

/* ---- all formats ----------------------------------------------------------------------------- */

static float block_sum(uint32_t format, const uint8_t *panel, uint32_t row, uint32_t start,
                       uint32_t columns, const float *x) {
    switch (format) {
    case DUCK_FORMAT_FP9: return float_sum(fp9_weight, panel, row, start, columns, x);
    case DUCK_FORMAT_FP8: return float_sum(fp8_weight, panel, row, start, columns, x);
    case DUCK_FORMAT_FP7: return float_sum(fp7_weight, panel, row, start, columns, x);
    default:
        return integer_sum(format, panel, row, start, columns, (const struct duck_int8_block *)x);
    }
}

/* Columns of group g. */
static uint32_t group_columns(const struct duck_run *run, uint32_t g, uint32_t start) {
    uint32_t left = run->columns - start;
    if (g == 0) return run->first_columns;
    return left < DUCK_BLOCK ? left : DUCK_BLOCK;
}

static float inner_product(const struct duck_run *run, uint32_t format, const uint8_t *panel,
                           const float *scale, uint32_t row, const float *x) {
    float total = 0.0f;
    uint32_t start = 0;
    for (uint32_t g = 0; g < run->groups; g++) {
        uint32_t columns = group_columns(run, g, start);
        total = __builtin_fmaf(block_sum(format, panel, row, start, columns, x), scale[g], total);
        start += columns;
        x += run->x_group_stride;
    }
    return total;
}

static void run_scalar(const struct duck_run *run, uint32_t format) {
    for (uint32_t p = 0; p < run->panels; p++) {
        const uint8_t *panel = run->codes + p * duck_panel_bytes(format, run->columns);
        const float *scale = duck_scale_row(run, p);
        for (uint32_t e = 0; e < run->entries; e++) {
            const float *x = run->x + (uint64_t)run->x_row[e] * DUCK_BLOCK;
            uint32_t out_row = run->out_row != NULL ? run->out_row[e] : e;
            float *out = run->out + out_row * run->out_stride + p * run->out_panel_stride;
            for (uint32_t row = 0; row < DUCK_PANEL_ROWS; row++) {
                out[row] = inner_product(run, format, panel, scale, row, x);
            }
        }
    }
}

static void run_q4(const struct duck_run *run) { run_scalar(run, DUCK_FORMAT_Q4); }
static void run_q6(const struct duck_run *run) { run_scalar(run, DUCK_FORMAT_Q6); }
static void run_fp7(const struct duck_run *run) { run_scalar(run, DUCK_FORMAT_FP7); }
static void run_fp8(const struct duck_run *run) { run_scalar(run, DUCK_FORMAT_FP8); }
static void run_fp9(const struct duck_run *run) { run_scalar(run, DUCK_FORMAT_FP9); }

const struct duck_body duck_bodies[] = {
    {"scalar", DUCK_FORMAT_Q4, 0.0f, run_q4, false},
    {"scalar", DUCK_FORMAT_Q6, 0.0f, run_q6, false},
    {"scalar", DUCK_FORMAT_FP7, 1.0f, run_fp7, false},
    {"scalar", DUCK_FORMAT_FP8, 1.0f, run_fp8, false},
    {"scalar", DUCK_FORMAT_FP9, 1.0f, run_fp9, false},
    {NULL, 0, 0.0f, NULL, false},
};
