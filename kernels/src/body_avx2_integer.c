/* SPDX-License-Identifier: Apache-2.0
 *
 * AVX2 inner products of q4 and q6 with int8 activations. Per 32 columns the sum of code * x is an
 * exact integer: bytes are multiplied in pairs to 16 bits (vpmaddubsw), then added up in 32 bits;
 * one fma with both scales follows. All 32 rows at once, four vectors of 8 rows.
 *
 * Room in 16 bits: q4 adds up 8 pairs of at most 2 * 15 * 127, 30,480; q6 2 pairs of at most
 * 2 * 63 * 127, 32,004.
 */
#include "body_avx2.h"

/* These bodies fetch to the second-level cache: to the first one a core has too few requests open
 * for their speed, and the lines fetched push each other out. What cannot be read is not
 * fetched. */
#define READ_AHEAD_FAR 16384u
#define TILE_TOKENS_MAX 4u
#define BY_COLUMN_TOKENS_MAX 2u
#define SCALE_BYTES 64u
#define NIBBLE_BYTES 512u

INLINE uint32_t chunk_bytes(const uint32_t format) { return duck_chunk_bytes(format); }

/* A chunk's activations of one token, four neighbours in every lane of a vector: memory operands
 * of the multiplications, so that they need no registers. */
struct spread {
    __m256i x[8];
};

INLINE void spread_x(const int8_t *x, struct spread *spread) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        spread->x[i] = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x + 4 * i)));
    }
    /* Keeps the compiler from holding them in registers after all, and spilling others. */
    __asm__ volatile("" : : "r"(spread) : "memory");
}

/* Upper two bits of q6's columns 8 c + 4 h .. + 3 at bits 5 and 4 of their bytes. */
INLINE __m256i upper_bits(const uint8_t *upper, const int c, const int h) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)(upper + 128 * (c / 2)));
    const int place = 2 * (c % 2) + h; /* which two bits of each byte */
    if (place == 0) bits = _mm256_slli_epi32(bits, 4);
    if (place == 1) bits = _mm256_slli_epi32(bits, 2);
    if (place == 3) bits = _mm256_srli_epi32(bits, 2);
    return _mm256_and_si256(bits, _mm256_set1_epi8(0x30));
}

/* Integer sums of 8 rows (vector i of the panel) over 32 columns, for `tokens` tokens. */
INLINE void chunk_products(const uint32_t format, const int tokens, const uint8_t *chunk,
                           const int i, const struct spread *x, __m256i product[]) {
    const __m256i low_half = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t *nibbles = chunk + SCALE_BYTES + 32 * i;
    __m256i pairs[TILE_TOKENS_MAX];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(nibbles + 128 * c));
        __m256i code[2] = {_mm256_and_si256(v, low_half),
                           _mm256_and_si256(_mm256_srli_epi32(v, 4), low_half)};
        if (format == DUCK_FORMAT_Q6) {
            code[0] = _mm256_or_si256(code[0], upper_bits(nibbles + NIBBLE_BYTES, c, 0));
            code[1] = _mm256_or_si256(code[1], upper_bits(nibbles + NIBBLE_BYTES, c, 1));
        }
#pragma GCC unroll 4
        for (int t = 0; t < tokens; t++) {
            __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(code[0], x[t].x[2 * c]),
                                           _mm256_maddubs_epi16(code[1], x[t].x[2 * c + 1]));
            if (format == DUCK_FORMAT_Q6) {
                sum = _mm256_madd_epi16(sum, ones);
                product[t] = c == 0 ? sum : _mm256_add_epi32(product[t], sum);
            } else {
                pairs[t] = c == 0 ? sum : _mm256_add_epi16(pairs[t], sum);
                if (c == 3) product[t] = _mm256_madd_epi16(pairs[t], ones);
            }
        }
    }
}

/* Four neighbours of an activation in every lane: a load, no arithmetic. */
INLINE __m256i broadcast_x(const int8_t *x) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)x));
}

/* All 32 rows over 32 columns, column by column: few tokens leave room for the sums of all rows,
 * and then an activation is loaded once for four vectors of rows. */
INLINE void chunk_products_by_column(const uint32_t format, const int tokens, const uint8_t *chunk,
                                     const int8_t *const *x,
                                     __m256i product[][BY_COLUMN_TOKENS_MAX]) {
    const __m256i low_half = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m256i x_low[BY_COLUMN_TOKENS_MAX], x_high[BY_COLUMN_TOKENS_MAX];
#pragma GCC unroll 2
        for (int t = 0; t < tokens; t++) {
            x_low[t] = broadcast_x(x[t] + 8 * c);
            x_high[t] = broadcast_x(x[t] + 8 * c + 4);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const uint8_t *nibbles = chunk + SCALE_BYTES + 32 * i;
            __m256i v = _mm256_loadu_si256((const __m256i *)(nibbles + 128 * c));
            __m256i low = _mm256_and_si256(v, low_half);
            __m256i high = _mm256_and_si256(_mm256_srli_epi32(v, 4), low_half);
            if (format == DUCK_FORMAT_Q6) {
                low = _mm256_or_si256(low, upper_bits(nibbles + NIBBLE_BYTES, c, 0));
                high = _mm256_or_si256(high, upper_bits(nibbles + NIBBLE_BYTES, c, 1));
            }
#pragma GCC unroll 2
            for (int t = 0; t < tokens; t++) {
                __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low, x_low[t]),
                                               _mm256_maddubs_epi16(high, x_high[t]));
                if (format == DUCK_FORMAT_Q6) sum = _mm256_madd_epi16(sum, ones);
                if (c == 0) {
                    product[i][t] = sum;
                } else if (format == DUCK_FORMAT_Q6) {
                    product[i][t] = _mm256_add_epi32(product[i][t], sum);
                } else {
                    product[i][t] = _mm256_add_epi16(product[i][t], sum);
                }
                /* Here and now: the compiler would add up at the end, and spill until then. */
                __asm__("" : "+x"(product[i][t]));
            }
        }
    }
    if (format == DUCK_FORMAT_Q6) return;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 2
        for (int t = 0; t < tokens; t++) product[i][t] = _mm256_madd_epi16(product[i][t], ones);
    }
}

/* One scale block of a panel for one or two tokens: sum[t][i] of 8 rows each. */
INLINE void block_sums_by_column(const uint32_t format, const int tokens, const uint8_t *codes,
                                 uint32_t columns, const uint8_t *ahead,
                                 const struct duck_int8_block *const *x, __m256 sum[][4]) {
    const int offset = format == DUCK_FORMAT_Q6 ? 32 : 8;
    for (uint32_t c = 0; c < columns / 32; c++) {
        __m256i product[4][BY_COLUMN_TOKENS_MAX];
        const int8_t *values[BY_COLUMN_TOKENS_MAX];
        for (int t = 0; t < tokens; t++) values[t] = x[t]->x + 32 * c;
        for (uint32_t line = 0; line < chunk_bytes(format); line += 64) {
            _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
        }
        chunk_products_by_column(format, tokens, codes, values, product);
#pragma GCC unroll 2
        for (int t = 0; t < tokens; t++) {
            __m256i correction = _mm256_set1_epi32(offset * x[t]->sum[c]);
            __m256 x_scale = _mm256_broadcast_ss(&x[t]->scale[c]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __m256 row_scale =
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(codes + 16 * i)));
                __m256 exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(product[i][t], correction));
                sum[t][i] = _mm256_fmadd_ps(exact, _mm256_mul_ps(row_scale, x_scale), sum[t][i]);
            }
        }
        codes += chunk_bytes(format);
        ahead += chunk_bytes(format);
    }
}

/* One scale block of a panel: sum[t][i] of 8 rows each, for tokens t. */
INLINE void block_sums(const uint32_t format, const int tokens, const uint8_t *codes,
                       uint32_t columns, const uint8_t *ahead,
                       const struct duck_int8_block *const *x, __m256 sum[][4]) {
    const int offset = format == DUCK_FORMAT_Q6 ? 32 : 8;
    for (uint32_t c = 0; c < columns / 32; c++) {
        struct spread values[TILE_TOKENS_MAX];
        __m256 x_scale[TILE_TOKENS_MAX];
        __m256i correction[TILE_TOKENS_MAX];
        for (int t = 0; t < tokens; t++) {
            spread_x(x[t]->x + 32 * c, &values[t]);
            x_scale[t] = _mm256_broadcast_ss(&x[t]->scale[c]);
            correction[t] = _mm256_set1_epi32(offset * x[t]->sum[c]);
        }
        for (uint32_t line = 0; line < chunk_bytes(format); line += 64) {
            _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m256i product[TILE_TOKENS_MAX];
            chunk_products(format, tokens, codes, i, values, product);
            __m256 row_scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(codes + 16 * i)));
#pragma GCC unroll 4
            for (int t = 0; t < tokens; t++) {
                __m256 exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(product[t], correction[t]));
                sum[t][i] = _mm256_fmadd_ps(exact, _mm256_mul_ps(row_scale, x_scale[t]), sum[t][i]);
            }
        }
        codes += chunk_bytes(format);
        ahead += chunk_bytes(format);
    }
}

/* `tokens` entries from `first` on, panel p. */
INLINE void run_tile(const uint32_t format, const int tokens, const struct duck_run *run,
                     uint32_t first, uint32_t p) {
    __m256 total[TILE_TOKENS_MAX][4];
    const float *scale = duck_scale_row(run, p);
    uint64_t panel_bytes = (uint64_t)(run->columns / 32) * chunk_bytes(format);
    uint64_t run_bytes = run->panels * panel_bytes;
    uint64_t at = p * panel_bytes;
    uint64_t read_ahead = run_bytes < READ_AHEAD_FAR ? READ_AHEAD : READ_AHEAD_FAR;
    uint32_t start = 0;
    for (int t = 0; t < tokens; t++) {
        for (int i = 0; i < 4; i++) total[t][i] = _mm256_setzero_ps();
    }
    for (uint32_t g = 0; g < run->groups; g++) {
        uint32_t left = run->columns - start;
        uint32_t columns = g == 0 ? run->first_columns : left < DUCK_BLOCK ? left : DUCK_BLOCK;
        uint64_t ahead = at + read_ahead;
        const struct duck_int8_block *x[TILE_TOKENS_MAX];
        __m256 sum[TILE_TOKENS_MAX][4];
        for (int t = 0; t < tokens; t++) {
            x[t] = (const struct duck_int8_block *)(run->x + g * run->x_group_stride +
                                                    (uint64_t)run->x_row[first + (uint32_t)t] *
                                                        DUCK_BLOCK);
            for (int i = 0; i < 4; i++) sum[t][i] = _mm256_setzero_ps();
        }
        const uint8_t *next =
            ahead < run_bytes ? run->codes + ahead : run->next + (ahead - run_bytes);
        if (tokens <= (int)BY_COLUMN_TOKENS_MAX) {
            block_sums_by_column(format, tokens, run->codes + at, columns, next, x, sum);
        } else {
            block_sums(format, tokens, run->codes + at, columns, next, x, sum);
        }
        __m256 block_scale = _mm256_broadcast_ss(scale + g);
        for (int t = 0; t < tokens; t++) {
            for (int i = 0; i < 4; i++) {
                total[t][i] = _mm256_fmadd_ps(sum[t][i], block_scale, total[t][i]);
            }
        }
        start += columns;
        at += (uint64_t)(columns / 32) * chunk_bytes(format);
    }
    for (int t = 0; t < tokens; t++) {
        uint32_t entry = first + (uint32_t)t;
        uint32_t row = run->out_row != NULL ? run->out_row[entry] : entry;
        float *out = run->out + row * run->out_stride + p * run->out_panel_stride;
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(out + 8 * i, total[t][i]);
    }
}

INLINE void run_integers(const uint32_t format, const struct duck_run *run) {
    for (uint32_t p = 0; p < run->panels; p++) {
        uint32_t first = 0;
        for (; run->entries - first >= TILE_TOKENS_MAX; first += TILE_TOKENS_MAX) {
            run_tile(format, 4, run, first, p);
        }
        switch (run->entries - first) {
        case 3: run_tile(format, 3, run, first, p); break;
        case 2: run_tile(format, 2, run, first, p); break;
        case 1: run_tile(format, 1, run, first, p); break;
        default: break;
        }
    }
}

void duck_run_q4(const struct duck_run *run) { run_integers(DUCK_FORMAT_Q4, run); }
void duck_run_q6(const struct duck_run *run) { run_integers(DUCK_FORMAT_Q6, run); }
