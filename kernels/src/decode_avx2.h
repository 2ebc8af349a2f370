/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes of the float formats to float32, 8 columns at a time. A body is a `kind`; everything that
 * takes one is inlined with a constant.
 */
#ifndef DUCK_DECODE_AVX2_H
#define DUCK_DECODE_AVX2_H

#include <immintrin.h>

#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))

enum kind {
    KIND_FP7_INT,
    KIND_FP7_CVT,
    KIND_FP8_INT,
    KIND_FP8_CVT,
    KIND_FP9_NARROW,
    KIND_FP9_WIDE
};

INLINE bool is_fp7(const enum kind kind) { return kind == KIND_FP7_INT || kind == KIND_FP7_CVT; }
INLINE bool is_fp9(const enum kind kind) {
    return kind == KIND_FP9_NARROW || kind == KIND_FP9_WIDE;
}
INLINE bool is_int(const enum kind kind) { return kind == KIND_FP7_INT || kind == KIND_FP8_INT; }
INLINE bool is_cvt(const enum kind kind) { return kind == KIND_FP7_CVT || kind == KIND_FP8_CVT; }

INLINE uint32_t kind_group_bytes(const enum kind kind) { /* of 8 columns */
    return is_fp9(kind) ? DUCK_FP9_GROUP_BYTES : is_fp7(kind) ? DUCK_FP7_GROUP_BYTES : 256;
}

/* What the block sums are multiplied with to undo the body's powers of two. */
INLINE float kind_sum_scale(const enum kind kind) {
    switch (kind) {
    case KIND_FP7_INT: return 0x1p43f;
    case KIND_FP7_CVT: return 0x1p17f;
    case KIND_FP8_INT: return 0x1p34f;
    case KIND_FP8_CVT: return 0x1p8f;
    default: return 1.0f;
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* What 8 columns share. fp9: the bit plane. fp7: the eighth column, gathered from the seven others
 * as they come by. As one register or as two halves, whichever the kind works with. */
struct group_state {
    __m256i bits;
    __m128i part[2];
};

/* The codes of one column. */
struct column {
    __m256i codes;
    __m128i part[2];
};

INLINE struct group_state load_group(const enum kind kind, const uint8_t *group) {
    struct group_state state = {_mm256_setzero_si256(), {_mm_setzero_si128(), _mm_setzero_si128()}};
    if (kind == KIND_FP9_WIDE) state.bits = _mm256_loadu_si256((const __m256i *)group);
    if (kind == KIND_FP9_NARROW) {
        state.part[0] = _mm_loadu_si128((const __m128i *)group);
        state.part[1] = _mm_loadu_si128((const __m128i *)(group + 16));
    }
    return state;
}

/* Columns must be loaded in order: fp7's last is made of the bits of the others. */
INLINE struct column load_column(const enum kind kind, const uint8_t *group,
                                 struct group_state *state, const int j) {
    struct column c = {state->bits, {state->part[0], state->part[1]}};
    if (is_fp7(kind) && j == 7) return c;
    const uint8_t *codes = group + (is_fp9(kind) ? 32 : 0) + 32 * j;
    if (is_int(kind) || kind == KIND_FP9_WIDE) {
        c.codes = _mm256_loadu_si256((const __m256i *)codes);
    } else {
        c.part[0] = _mm_loadu_si128((const __m128i *)codes);
        c.part[1] = _mm_loadu_si128((const __m128i *)(codes + 16));
    }
    if (kind == KIND_FP7_INT) {
        __m256i bit = _mm256_and_si256(c.codes, _mm256_set1_epi8(1));
        state->bits = _mm256_or_si256(state->bits, _mm256_slli_epi16(bit, j + 1));
    }
    if (kind == KIND_FP7_CVT) {
        for (int i = 0; i < 2; i++) {
            __m128i bit = _mm_and_si128(c.part[i], _mm_set1_epi8(1));
            state->part[i] = _mm_or_si128(state->part[i], _mm_slli_epi16(bit, j + 1));
        }
    }
    return c;
}

INLINE int int_shift(const enum kind kind) { return kind == KIND_FP7_INT ? 5 : 4; }
INLINE __m256i int_mask(const enum kind kind) {
    return _mm256_set1_epi32((int)(kind == KIND_FP7_INT ? 0x83F00000u : 0x87F00000u));
}

/* `int`: a code's sign and the rest move to float32's bit 31 and its lowest exponent and highest
 * mantissa bits. fp8 (s eeee mmm): the value is weight * 2^-120, because the bias is 7 instead of
 * 127. fp7 (s eee mmm 0): units * 2^-129. The formats' subnormals are float32's.
 *     lane: | row l  | row 8+l | row 16+l | row 24+l |       row v: shift left by 8 v, then
 *           s eeee mmm ...                                   arithmetically right, and mask */
INLINE void decode_int(const enum kind kind, const __m256i w, const int half, __m256 f[2]) {
    const int shift = int_shift(kind);
    const __m256i mask = int_mask(kind);
    __m256i a = half == 0 ? w : _mm256_slli_epi32(w, 16);
    __m256i b = _mm256_slli_epi32(w, half == 0 ? 8 : 24);
    f[0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(a, shift), mask));
    f[1] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(b, shift), mask));
}

/* All 32 rows with three shifts instead of seven. Two rows at a time, in 16-bit lanes: the upper
 * bytes by an arithmetic shift, the lower ones by a signed product of bytes (code * 2^(8 - shift) +
 * other * 0). Both give sssss eeee mmm 0000: the upper lane is a float after masking, the lower one
 * also moves up. A product takes a port from the FMAs: next to more than four it does not pay. */
INLINE void decode_int_rows(const enum kind kind, const __m256i w, __m256 f[4]) {
    const __m256i factor = _mm256_set1_epi16((short)(256 >> int_shift(kind)));
    const __m256i pair[2] = {_mm256_srai_epi16(w, int_shift(kind)),
                             _mm256_maddubs_epi16(factor, w)};
    for (int i = 0; i < 2; i++) {
        __m256i low = _mm256_slli_epi32(pair[i], 16);
        f[i] = _mm256_castsi256_ps(_mm256_and_si256(pair[i], int_mask(kind)));
        f[2 + i] = _mm256_castsi256_ps(_mm256_and_si256(low, int_mask(kind)));
    }
}

/* `cvt`: the upper (half 0) or lower (half 1) byte of each 16-bit word moves to a half's sign and
 * the bits from 7 up; fp8: weight * 2^-8, fp7: units * 2^-17. Rows come out interleaved:
 * half 0: f[0] = 16 0 17 1 18 2 19 3, f[1] = 20 4 ...; half 1: 24 8 25 9 ..., 28 12 ... */
INLINE void decode_cvt(const enum kind kind, const __m128i part[2], const int half, __m256 f[2]) {
    const int shift = kind == KIND_FP7_CVT ? 2 : 1;
    const __m128i mask = _mm_set1_epi16((short)(kind == KIND_FP7_CVT ? 0x9F80 : 0xBF80));
    for (int i = 0; i < 2; i++) {
        __m128i w = half == 0 ? part[i] : _mm_slli_epi16(part[i], 8);
        f[i] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(w, shift), mask));
    }
}

/* fp9, 128 bits at a time: half h is rows 16 h .. 16 h + 15 in order. */
INLINE void decode_fp9_narrow(const __m128i high, const __m128i bits, const int j, __m256 f[2]) {
    __m128i low = _mm_and_si128(_mm_slli_epi16(bits, 7 - j), _mm_set1_epi8((char)0x80));
    f[0] = _mm256_cvtph_ps(_mm_unpacklo_epi8(low, high));
    f[1] = _mm256_cvtph_ps(_mm_unpackhi_epi8(low, high));
}

/* fp9, 256 bits at a time: half 0 is rows 0..7 and 16..23, half 1 rows 8..15 and 24..31. */
INLINE void decode_fp9_wide(const __m256i high, const __m256i bits, const int j, const int half,
                            __m256 f[2]) {
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(bits, 7 - j), _mm256_set1_epi8((char)0x80));
    __m256i halves = half == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high);
    f[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    f[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

INLINE void decode_half(const enum kind kind, const struct column *c,
                        const struct group_state *state, const int j, const int half, __m256 f[2]) {
    if (is_int(kind)) decode_int(kind, c->codes, half, f);
    if (is_cvt(kind)) decode_cvt(kind, c->part, half, f);
    if (kind == KIND_FP9_NARROW) decode_fp9_narrow(c->part[half], state->part[half], j, f);
    if (kind == KIND_FP9_WIDE) decode_fp9_wide(c->codes, state->bits, j, half, f);
}

/* Write a half's 16 totals to their rows. */
INLINE void store_half(const enum kind kind, const int half, const __m256 total[2], float *out) {
    if (is_cvt(kind)) {
        __m256 odd = _mm256_shuffle_ps(total[0], total[1], 0xDD);
        __m256 even = _mm256_shuffle_ps(total[0], total[1], 0x88);
        _mm256_storeu_ps(out + 8 * half,
                         _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xD8)));
        _mm256_storeu_ps(out + 8 * half + 16,
                         _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xD8)));
    } else if (kind == KIND_FP9_WIDE) {
        _mm256_storeu_ps(out + 8 * half, total[0]);
        _mm256_storeu_ps(out + 8 * half + 16, total[1]);
    } else {
        _mm256_storeu_ps(out + 16 * half, total[0]);
        _mm256_storeu_ps(out + 16 * half + 8, total[1]);
    }
}

#endif
