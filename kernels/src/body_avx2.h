/* SPDX-License-Identifier: Apache-2.0
 *
 * AVX2 + FMA + F16C inner products, written once for all codes and token counts. A body is a
 * `kind`; everything that takes a kind or a count is inlined with constants, so each body becomes
 * straight code. Few tokens: gemv_avx2.h. From run->gemm_entries on: each block is decoded once to
 * float32 (16 KB, first-level cache) and multiplied 16 rows x 6 tokens. Calibration chooses where
 * that begins to pay.
 */
#ifndef DUCK_BODY_AVX2_H
#define DUCK_BODY_AVX2_H

#include "gemv_avx2.h"

/* ---- GEMM: more tokens ----------------------------------------------------------------------- */

/* `cvt` would interleave the rows; for memory its bytes are decoded as `int` does. */
INLINE enum kind memory_kind(const enum kind kind) {
    return kind == KIND_FP8_CVT ? KIND_FP8_INT : kind == KIND_FP7_CVT ? KIND_FP7_INT : kind;
}

/* Decoded weights are multiplied by this, to leave float32's subnormal range, and the sums by the
 * other one: together with the activations' x_scale that makes 1. */
INLINE float kind_memory_factor(const enum kind kind) {
    switch (kind) {
    case KIND_FP7_INT: return 0x1p43f;
    case KIND_FP7_CVT: return 0x1p126f;
    case KIND_FP8_INT: return 0x1p34f;
    default: return 0x1p120f;
    }
}
INLINE float kind_memory_sum_scale(const enum kind kind) {
    return kind == KIND_FP7_CVT ? 8.0f : 1.0f;
}

/* Decode a block to w[column][32 rows in order]. */
INLINE void decode_block(const enum kind kind, const struct block *block, float *w) {
    const enum kind by = memory_kind(kind);
    const __m256 factor = _mm256_set1_ps(kind_memory_factor(kind));
    const uint8_t *group = block->codes;
    const uint8_t *ahead = block->ahead;
    for (uint32_t k = 0; k < block->columns; k += 8) {
        struct group_state state = load_group(by, group);
        prefetch_group(kind, ahead);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            struct column column = load_column(by, group, &state, j);
            float *to = w + (k + (uint32_t)j) * DUCK_PANEL_ROWS;
            __m256 f[4];
            if (is_int(by)) {
                decode_int_rows(by, column.codes, f);
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) f[v] = _mm256_mul_ps(f[v], factor);
            } else {
                decode_half(by, &column, &state, j, 0, f);
                decode_half(by, &column, &state, j, 1, f + 2);
            }
            store_half(by, 0, f, to);
            store_half(by, 1, f + 2, to);
        }
        group += kind_group_bytes(kind);
        ahead += kind_group_bytes(kind);
    }
}

/* out[t][row..row + 15] = fma(sum over columns of w * x, scale, out[t]) for 16 rows and `tokens`
 * tokens; the first block starts from 0. */
INLINE void multiply_tile(const int tokens, const int row, const float *w, uint64_t columns,
                          const float *const *x, float scale, bool is_first, float *const *out) {
    __m256 sum[GEMV_TOKENS_MAX][2];
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps();
    for (uint64_t k = 0; k < columns; k += 16) {
#pragma GCC unroll 16
        for (uint64_t j = 0; j < 16; j++) {
            __m256 a = _mm256_load_ps(w + (k + j) * DUCK_PANEL_ROWS + row);
            __m256 b = _mm256_load_ps(w + (k + j) * DUCK_PANEL_ROWS + row + 8);
            if (j == 0 && row != 0) {
                /* After the second half the next tile's turn: it is usually the next in memory. */
#pragma GCC unroll 6
                for (int t = 0; t < tokens; t++) {
                    _mm_prefetch((const char *)(x[t] + tokens * (int)DUCK_BLOCK + k), _MM_HINT_T0);
                }
            }
#pragma GCC unroll 6
            for (int t = 0; t < tokens; t++) {
                __m256 xk = _mm256_broadcast_ss(x[t] + k + j);
                sum[t][0] = add_product(sum[t][0], a, xk);
                sum[t][1] = add_product(sum[t][1], b, xk);
            }
        }
    }
    __m256 factor = _mm256_set1_ps(scale);
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m256 total = is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(out[t] + row + 8 * v);
            _mm256_storeu_ps(out[t] + row + 8 * v, _mm256_fmadd_ps(sum[t][v], factor, total));
        }
    }
}

/* Both halves of the panel's rows. A whole block gets a loop of constant length, whose end is
 * predicted: what a mispredicted one costs is a tenth of a tile. */
INLINE void multiply_halves(const int tokens, const float *w, const struct block *block,
                            const float *const *x, bool is_first, float *const *out) {
    if (block->columns == DUCK_BLOCK) {
        multiply_tile(tokens, 0, w, DUCK_BLOCK, x, block->scale, is_first, out);
        multiply_tile(tokens, 16, w, DUCK_BLOCK, x, block->scale, is_first, out);
        return;
    }
    multiply_tile(tokens, 0, w, block->columns, x, block->scale, is_first, out);
    multiply_tile(tokens, 16, w, block->columns, x, block->scale, is_first, out);
}

/* The decoded block times entries first .. first + tokens - 1. */
static void multiply_entries(const struct duck_run *run, uint32_t p, uint32_t g, const float *w,
                             const struct block *block, uint32_t first, uint32_t tokens) {
    const float *x[GEMV_TOKENS_MAX];
    float *out[GEMV_TOKENS_MAX];
    for (uint32_t t = 0; t < tokens; t++) {
        x[t] = run->x + g * run->x_group_stride + (uint64_t)run->x_row[first + t] * DUCK_BLOCK;
        out[t] = out_of(run, first + t, p);
    }
    switch (tokens) {
    case 1: multiply_halves(1, w, block, x, g == 0, out); break;
    case 2: multiply_halves(2, w, block, x, g == 0, out); break;
    case 3: multiply_halves(3, w, block, x, g == 0, out); break;
    case 4: multiply_halves(4, w, block, x, g == 0, out); break;
    case 5: multiply_halves(5, w, block, x, g == 0, out); break;
    default: multiply_halves(6, w, block, x, g == 0, out); break;
    }
}

/* Panels whose sums are carried from block to block together: for each of them the activations of
 * one block are read again, so these and the sums should stay in the second-level cache. */
#define GEMM_PANELS 8u

/* One column group of some panels. */
struct gemm_step {
    uint32_t panel, panels, group;
    uint64_t offset; /* of the group's codes within a panel */
    uint32_t columns;
};

/* Where the codes after panel p's block of this step are: the next panel's block, after the last
 * panel the first one's next block, and at the end of all groups `next`. */
INLINE const uint8_t *after_block(const enum kind kind, const struct duck_run *run,
                                  const struct gemm_step *step, uint32_t p, uint64_t panel_bytes) {
    const uint8_t *first = run->codes + step->panel * panel_bytes + step->offset;
    if (p + 1 < step->panels) return first + (p + 1) * panel_bytes;
    if (step->group + 1 < run->groups) return first + step->columns / 8 * kind_group_bytes(kind);
    if (step->panel + step->panels < run->panels) {
        return run->codes + (step->panel + step->panels) * panel_bytes;
    }
    return run->next;
}

INLINE void gemm_blocks(const enum kind kind, const struct duck_run *run,
                        const struct gemm_step *step, float *w) {
    uint64_t panel_bytes = (uint64_t)run->columns / 8 * kind_group_bytes(kind);
    uint32_t tiles = tile_count(run->entries), g = step->group;
    uint32_t least = run->entries / tiles, more = run->entries % tiles;
    for (uint32_t p = 0; p < step->panels; p++) {
        uint32_t panel = step->panel + p;
        struct block block = {
            .codes = run->codes + panel * panel_bytes + step->offset,
            .ahead = after_block(kind, run, step, p, panel_bytes),
            .columns = step->columns,
            .scale = duck_scale_row(run, panel)[g] * kind_memory_sum_scale(kind),
        };
        decode_block(kind, &block, w);
        for (uint32_t tile = 0, first = 0; tile < tiles; tile++) {
            uint32_t count = least + (tile < more ? 1 : 0);
            multiply_entries(run, panel, g, w, &block, first, count);
            first += count;
        }
    }
}

INLINE void run_gemm(const enum kind kind, const struct duck_run *run) {
    _Alignas(64) float w[DUCK_BLOCK * DUCK_PANEL_ROWS];
    for (uint32_t panel = 0; panel < run->panels; panel += GEMM_PANELS) {
        uint32_t left = run->panels - panel;
        struct gemm_step step = {.panel = panel, .panels = left < GEMM_PANELS ? left : GEMM_PANELS};
        uint32_t start = 0;
        for (uint32_t g = 0; g < run->groups; g++) {
            uint32_t rest = run->columns - start;
            step.group = g;
            step.columns = g == 0 ? run->first_columns : rest < DUCK_BLOCK ? rest : DUCK_BLOCK;
            gemm_blocks(kind, run, &step, w);
            step.offset += step.columns / 8 * kind_group_bytes(kind);
            start += step.columns;
        }
    }
}

/* A body's entry: each count gets code of its own. */
#define DUCK_DEFINE_RUN(name, kind)                                                                \
    static void name##_1(const struct duck_run *run) { run_one(kind, run); }                       \
    static void name##_2(const struct duck_run *run) { run_gemv(kind, 2, run); }                   \
    static void name##_3(const struct duck_run *run) { run_gemv(kind, 3, run); }                   \
    static void name##_4(const struct duck_run *run) { run_gemv(kind, 4, run); }                   \
    static void name##_5(const struct duck_run *run) { run_gemv(kind, 5, run); }                   \
    static void name##_6(const struct duck_run *run) { run_gemv(kind, 6, run); }                   \
    static void name##_direct(const struct duck_run *run) { run_direct(kind, run); }               \
    static void name##_gemm(const struct duck_run *run) { run_gemm(kind, run); }                   \
    void name(const struct duck_run *run) {                                                        \
        switch (run->entries) {                                                                    \
        case 1: name##_1(run); break;                                                              \
        case 2: name##_2(run); break;                                                              \
        case 3: name##_3(run); break;                                                              \
        case 4: name##_4(run); break;                                                              \
        case 5: name##_5(run); break;                                                              \
        case 6: name##_6(run); break;                                                              \
        default:                                                                                   \
            if (run->entries < run->gemm_entries && run->entries <= DIRECT_ENTRIES_MAX) {          \
                name##_direct(run);                                                                \
            } else {                                                                               \
                name##_gemm(run);                                                                  \
            }                                                                                      \
            break;                                                                                 \
        }                                                                                          \
    }

void duck_run_q4(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_q6(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp7_int(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp7_cvt(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp8_int(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp8_cvt(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp9_narrow(const struct duck_run *run) DUCK_HIDDEN;
void duck_run_fp9_wide(const struct duck_run *run) DUCK_HIDDEN;

#endif
