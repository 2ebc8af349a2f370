/* SPDX-License-Identifier: Apache-2.0
 *
 * Inner products straight from the codes, for few tokens of an expert.
 *
 *   1 token       32 rows at once; `int` with two blocks at a time
 *   2 tokens      32 rows at once: 4 sums per token, the decoded column is shared by the tokens
 *   3 to 6        two passes of 16 rows over the block in the first-level cache, no spills
 *   more          tiles of 3 to 6 tokens over each block, decoding it for each tile ("direct")
 *
 * "Half" h of a panel is the 16 rows that a pass works on; which ones they are depends on the kind
 * (see decode_half and store_half).
 */
#ifndef DUCK_GEMV_AVX2_H
#define DUCK_GEMV_AVX2_H

#include "decode_avx2.h"

#define GEMV_TOKENS_MAX 6u
#define READ_AHEAD 8192u /* bytes between a load and its prefetch; 512 would hurt */
static_assert(READ_AHEAD <= DUCK_KERNEL_READ_AHEAD, "prefetches stay within what is readable");

/* ---- where a run is -------------------------------------------------------------------------- */

struct block {
    const uint8_t *codes;
    const uint8_t *ahead; /* what to prefetch while reading the block */
    uint32_t columns;
    float scale; /* block scale x the kind's power of two */
};

struct walk {
    uint64_t offset, bytes; /* of the run's codes */
    uint32_t start;         /* column within the panel */
    uint32_t panel, group;  /* where next_panel_block is */
};

INLINE struct walk begin_walk(const enum kind kind, const struct duck_run *run) {
    uint64_t bytes = (uint64_t)run->panels * run->columns / 8 * kind_group_bytes(kind);
    return (struct walk){.bytes = bytes};
}

INLINE uint32_t block_columns(const struct duck_run *run, const struct walk *walk, uint32_t g) {
    uint32_t left = run->columns - walk->start;
    return g == 0 ? run->first_columns : left < DUCK_BLOCK ? left : DUCK_BLOCK;
}

INLINE struct block next_block(const enum kind kind, const struct duck_run *run, struct walk *walk,
                               uint32_t g, const float *scale) {
    uint32_t columns = block_columns(run, walk, g);
    uint64_t ahead = walk->offset + READ_AHEAD;
    struct block block = {
        .codes = run->codes + walk->offset,
        .ahead = ahead < walk->bytes ? run->codes + ahead : run->next + (ahead - walk->bytes),
        .columns = columns,
        .scale = scale[g] * kind_sum_scale(kind),
    };
    walk->start = g + 1 == run->groups ? 0 : walk->start + columns;
    walk->offset += columns / 8 * kind_group_bytes(kind);
    return block;
}

INLINE float *out_of(const struct duck_run *run, uint32_t entry, uint32_t p) {
    uint32_t row = run->out_row != NULL ? run->out_row[entry] : entry;
    return run->out + row * run->out_stride + p * run->out_panel_stride;
}

INLINE void prefetch_group(const enum kind kind, const uint8_t *ahead) {
    for (uint32_t line = 0; line < kind_group_bytes(kind); line += 64) {
        _mm_prefetch((const char *)ahead + line, _MM_HINT_T0);
    }
}

/* sum + a * b, in sum's own register: the compiler's choice of FMA forms moves sums around, which
 * costs copies in the inner loops. */
INLINE __m256 add_product(__m256 sum, const __m256 a, const __m256 b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

/* ---- GEMV: 1 to 6 tokens --------------------------------------------------------------------- */

/* Multiply 8 columns into the sums of `halves` halves (from `half`) of `tokens` tokens. */
INLINE void multiply_group(const enum kind kind, const int tokens, const int half, const int halves,
                           const uint8_t *group, const float *const *x, uint64_t k,
                           __m256 sum[][4]) {
    struct group_state state = load_group(kind, group);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m256 f[4];
        struct column column = load_column(kind, group, &state, j);
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) {
            decode_half(kind, &column, &state, j, half + h, f + 2 * h);
        }
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++) {
            __m256 xk = _mm256_broadcast_ss(x[t] + k + j);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * halves; v++) sum[t][v] = add_product(sum[t][v], f[v], xk);
        }
    }
}

/* One block: total[t][v] = fma(sum over the block's columns, scale, total[t][v]). */
INLINE void multiply_block(const enum kind kind, const int tokens, const int half, const int halves,
                           const struct block *block, const float *const *x, __m256 total[][4]) {
    __m256 sum[GEMV_TOKENS_MAX][4];
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < 2 * halves; v++) sum[t][v] = _mm256_setzero_ps();
    }
    /* One pointer runs: what to prefetch lies at a constant distance from it. */
    const uint64_t distance = (uint64_t)(uintptr_t)block->ahead - (uint64_t)(uintptr_t)block->codes;
    const uint8_t *end = block->codes + block->columns / 8 * kind_group_bytes(kind);
    uint64_t k = 0;
    const uint8_t *group = block->codes;
    do {
        if (half == 0) prefetch_group(kind, (const uint8_t *)((uintptr_t)group + distance));
        multiply_group(kind, tokens, half, halves, group, x, k, sum);
        group += kind_group_bytes(kind);
        k += 8;
        if (tokens > 1) continue;
        /* Columns come in multiples of 32: with one token, two groups per turn. */
        if (half == 0) prefetch_group(kind, (const uint8_t *)((uintptr_t)group + distance));
        multiply_group(kind, tokens, half, halves, group, x, k, sum);
        group += kind_group_bytes(kind);
        k += 8;
    } while (group != end);
    __m256 scale = _mm256_set1_ps(block->scale);
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (int v = 0; v < 2 * halves; v++) {
            __m256 *sum_total = &total[t][2 * half + v];
            *sum_total = _mm256_fmadd_ps(sum[t][v], scale, *sum_total);
        }
    }
}

/* ---- GEMV: 1 token, `int` -------------------------------------------------------------------- */

/* A block on its way to a panel's totals. */
struct panel_block {
    struct block block;
    const float *x;
    float *out; /* null: more blocks of the panel follow */
};

INLINE struct panel_block next_panel_block(const enum kind kind, const struct duck_run *run,
                                           struct walk *walk) {
    uint32_t p = walk->panel, g = walk->group;
    bool is_last = g + 1 == run->groups;
    struct panel_block next = {
        .block = next_block(kind, run, walk, g, duck_scale_row(run, p)),
        .x = run->x + (uint64_t)run->x_row[0] * DUCK_BLOCK + g * run->x_group_stride,
        .out = is_last ? out_of(run, 0, p) : NULL,
    };
    walk->group = is_last ? 0 : g + 1;
    walk->panel += is_last;
    return next;
}

/* One column of one block into its sums: decode_int_rows and four FMAs. One piece of assembler,
 * because the two blocks' sums leave six registers for all else, and the compiler's order of the
 * columns spilled some. */
INLINE void multiply_column(const enum kind kind, const uint8_t *group, const float *x,
                            struct group_state *state, const int j, __m256 sum[4]) {
    const int shift = int_shift(kind);
    const __m256i mask = int_mask(kind);
    const __m256i factor = _mm256_set1_epi16((short)(256 >> shift));
    __m256i high = load_column(kind, group, state, j).codes, low, row;
    __m256 xk;
    __asm__("vbroadcastss %[x], %[xk]\n\t"
            "vpmaddubsw %[high], %[factor], %[low]\n\t"
            "vpsraw %[shift], %[high], %[high]\n\t"
            "vpand %[high], %[mask], %[row]\n\t"
            "vpslld $16, %[high], %[high]\n\t"
            "vfmadd231ps %[row], %[xk], %[sum0]\n\t"
            "vpand %[low], %[mask], %[row]\n\t"
            "vpslld $16, %[low], %[low]\n\t"
            "vfmadd231ps %[row], %[xk], %[sum1]\n\t"
            "vpand %[high], %[mask], %[high]\n\t"
            "vpand %[low], %[mask], %[low]\n\t"
            "vfmadd231ps %[high], %[xk], %[sum2]\n\t"
            "vfmadd231ps %[low], %[xk], %[sum3]\n\t"
            : [high] "+&x"(high), [low] "=&x"(low), [row] "=&x"(row), [xk] "=&x"(xk),
              [sum0] "+x"(sum[0]), [sum1] "+x"(sum[1]), [sum2] "+x"(sum[2]), [sum3] "+x"(sum[3])
            : [x] "m"(x[j]), [factor] "x"(factor), [mask] "x"(mask), [shift] "i"(shift));
}

/* The sums of two neighbouring blocks of equal length. What follows both is prefetched as one
 * stream: two streams with a block between them were half as fast as one. */
INLINE void multiply_two(const enum kind kind, const struct panel_block *two, __m256 sum[2][4]) {
    for (int i = 0; i < 2; i++) {
        for (int v = 0; v < 4; v++) sum[i][v] = _mm256_setzero_ps();
    }
    const uint8_t *group = two[0].block.codes;
    const uint8_t *ahead = two[0].block.ahead;
    const float *x = two[0].x;
    const int64_t x_distance = two[1].x - x;
    const uint64_t distance = two[0].block.columns / 8 * kind_group_bytes(kind);
    const uint8_t *end = two[1].block.codes;
    do {
        struct group_state state[2] = {load_group(kind, group), load_group(kind, group)};
        prefetch_group(kind, ahead);
        prefetch_group(kind, ahead + kind_group_bytes(kind));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            multiply_column(kind, group, x, &state[0], j, sum[0]);
            multiply_column(kind, group + distance, x + x_distance, &state[1], j, sum[1]);
        }
        ahead += 2 * kind_group_bytes(kind);
        group += kind_group_bytes(kind);
        x += 8;
    } while (group != end);
}

/* After a panel's last block: write the totals and begin anew. */
INLINE void finish_block(const enum kind kind, const struct panel_block *block, __m256 total[4]) {
    if (block->out == NULL) return;
    store_half(kind, 0, &total[0], block->out);
    store_half(kind, 1, &total[2], block->out);
    for (int v = 0; v < 4; v++) total[v] = _mm256_setzero_ps();
}

/* Two blocks at once: a block's sums are chains of dependent FMAs, and with one block their latency
 * (4 cycles or more per column) would be the limit. */
INLINE void run_gemv_by_two(const enum kind kind, const struct duck_run *run) {
    struct walk walk = begin_walk(kind, run);
    __m256 total[1][4];
    for (int v = 0; v < 4; v++) total[0][v] = _mm256_setzero_ps();
    for (uint32_t left = run->panels * run->groups; left > 0; left--) {
        struct panel_block two[2];
        __m256 sum[2][4];
        two[0] = next_panel_block(kind, run, &walk);
        if (left == 1 || block_columns(run, &walk, walk.group) != two[0].block.columns) {
            multiply_block(kind, 1, 0, 2, &two[0].block, &two[0].x, total);
            finish_block(kind, &two[0], total[0]);
            continue;
        }
        two[1] = next_panel_block(kind, run, &walk);
        left--;
        __asm__("" : "+m"(total)); /* the loop needs all registers */
        multiply_two(kind, two, sum);
        for (int i = 0; i < 2; i++) {
            __m256 scale = _mm256_set1_ps(two[i].block.scale);
            for (int v = 0; v < 4; v++) {
                total[0][v] = _mm256_fmadd_ps(sum[i][v], scale, total[0][v]);
            }
            finish_block(kind, &two[i], total[0]);
        }
    }
}

INLINE void run_gemv(const enum kind kind, const int tokens, const struct duck_run *run) {
    struct walk walk = begin_walk(kind, run);
    for (uint32_t p = 0; p < run->panels; p++) {
        __m256 total[GEMV_TOKENS_MAX][4];
        const float *x[GEMV_TOKENS_MAX];
        for (int t = 0; t < tokens; t++) {
            for (int v = 0; v < 4; v++) total[t][v] = _mm256_setzero_ps();
            x[t] = run->x + (uint64_t)run->x_row[t] * DUCK_BLOCK;
        }
        for (uint32_t g = 0; g < run->groups; g++) {
            struct block block = next_block(kind, run, &walk, g, duck_scale_row(run, p));
            if (tokens <= 2) {
                multiply_block(kind, tokens, 0, 2, &block, x, total);
            } else {
                multiply_block(kind, tokens, 0, 1, &block, x, total);
                multiply_block(kind, tokens, 1, 1, &block, x, total);
            }
            for (int t = 0; t < tokens; t++) x[t] += run->x_group_stride;
        }
        for (int t = 0; t < tokens; t++) {
            float *out = out_of(run, (uint32_t)t, p);
            store_half(kind, 0, &total[t][0], out);
            store_half(kind, 1, &total[t][2], out);
        }
    }
}

INLINE void run_one(const enum kind kind, const struct duck_run *run) {
    if (is_int(kind)) {
        run_gemv_by_two(kind, run);
    } else {
        run_gemv(kind, 1, run);
    }
}

/* ---- direct: several tiles of 3 to 6 tokens -------------------------------------------------- */

#define DIRECT_ENTRIES_MAX 48u

/* Entries in nearly equal tiles of at most 6: 7 or more entries never give a tile below 3. */
INLINE uint32_t tile_count(uint32_t entries) {
    return (entries + GEMV_TOKENS_MAX - 1) / GEMV_TOKENS_MAX;
}

INLINE void multiply_block_halves(const enum kind kind, const int tokens, const struct block *block,
                                  const float *const *x, __m256 total[][4]) {
    multiply_block(kind, tokens, 0, 1, block, x, total);
    multiply_block(kind, tokens, 1, 1, block, x, total);
}

INLINE void run_direct(const enum kind kind, const struct duck_run *run) {
    struct walk walk = begin_walk(kind, run);
    uint32_t tiles = tile_count(run->entries);
    for (uint32_t p = 0; p < run->panels; p++) {
        __m256 total[DIRECT_ENTRIES_MAX][4];
        for (uint32_t t = 0; t < run->entries; t++) {
            for (int v = 0; v < 4; v++) total[t][v] = _mm256_setzero_ps();
        }
        for (uint32_t g = 0; g < run->groups; g++) {
            struct block block = next_block(kind, run, &walk, g, duck_scale_row(run, p));
            for (uint32_t tile = 0; tile < tiles; tile++) {
                uint32_t first = run->entries * tile / tiles;
                uint32_t tokens = run->entries * (tile + 1) / tiles - first;
                const float *x[GEMV_TOKENS_MAX];
                for (uint32_t t = 0; t < tokens; t++) {
                    x[t] = run->x + g * run->x_group_stride +
                           (uint64_t)run->x_row[first + t] * DUCK_BLOCK;
                }
                switch (tokens) {
                case 3: multiply_block_halves(kind, 3, &block, x, total + first); break;
                case 4: multiply_block_halves(kind, 4, &block, x, total + first); break;
                case 5: multiply_block_halves(kind, 5, &block, x, total + first); break;
                default: multiply_block_halves(kind, 6, &block, x, total + first); break;
                }
            }
        }
        for (uint32_t t = 0; t < run->entries; t++) {
            store_half(kind, 0, &total[t][0], out_of(run, t, p));
            store_half(kind, 1, &total[t][2], out_of(run, t, p));
        }
    }
}

#endif
