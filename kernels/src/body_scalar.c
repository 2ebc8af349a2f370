/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference body: one weight at a time, straight from the layout of fp9.h. Every other body must
 * give the same bits.
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

typedef float (*weight_function)(const uint8_t *panel, uint32_t row, uint32_t column);

/* Columns of group g. */
static uint32_t group_columns(const struct duck_run *run, uint32_t g, uint32_t start) {
    uint32_t left = run->columns - start;
    if (g == 0) return run->first_columns;
    return left < DUCK_BLOCK ? left : DUCK_BLOCK;
}

static float inner_product(const struct duck_run *run, weight_function weight, const uint8_t *panel,
                           const float *scale, uint32_t row, const float *x) {
    float total = 0.0f;
    uint32_t start = 0;
    for (uint32_t g = 0; g < run->groups; g++) {
        uint32_t columns = group_columns(run, g, start);
        float sum = 0.0f;
        for (uint32_t k = 0; k < columns; k++) {
            sum = __builtin_fmaf(weight(panel, row, start + k), x[k], sum);
        }
        total = __builtin_fmaf(sum, scale[g], total);
        start += columns;
        x += run->x_group_stride;
    }
    return total;
}

static void run_scalar(const struct duck_run *run, weight_function weight, uint64_t panel_bytes) {
    for (uint32_t p = 0; p < run->panels; p++) {
        const uint8_t *panel = run->codes + p * panel_bytes;
        uint32_t scale_row = (run->first_panel + p) / 4 - run->first_panel / 4;
        for (uint32_t e = 0; e < run->entries; e++) {
            const float *x = run->x + (uint64_t)run->x_row[e] * DUCK_BLOCK;
            uint32_t out_row = run->out_row != NULL ? run->out_row[e] : e;
            float *out = run->out + out_row * run->out_stride + p * DUCK_PANEL_ROWS;
            for (uint32_t row = 0; row < DUCK_PANEL_ROWS; row++) {
                out[row] =
                    inner_product(run, weight, panel, run->scale + scale_row * run->groups, row, x);
            }
        }
    }
}

static void run_fp8(const struct duck_run *run) {
    run_scalar(run, fp8_weight, duck_panel_bytes(DUCK_FORMAT_FP8, run->columns));
}

static void run_fp9(const struct duck_run *run) {
    run_scalar(run, fp9_weight, duck_panel_bytes(DUCK_FORMAT_FP9, run->columns));
}

const struct duck_body duck_bodies[] = {
    {"scalar", DUCK_FORMAT_FP8, 1.0f, run_fp8, false},
    {"scalar", DUCK_FORMAT_FP9, 1.0f, run_fp9, false},
    {NULL, 0, 0.0f, NULL, false},
};
