/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise arithmetic. One source for every ELF: each element goes through the same IEEE
 * operations in the same order, whether the compiler makes vectors of it or not.
 */
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernel.h"

/* Limits on activations, so that bodies may scale by powers of two without rounding (all weights
 * are multiples of 2^-17 below 2^16): smaller magnitudes count as 0, larger ones as infinite. */
#define X_MIN 0x1p-60f
#define X_LIMIT 0x1p42f
#define X_OVERFLOW 0x1p86f /* times X_LIMIT: 2^128 */

static inline float bits_float(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = bits};
    return u.value;
}

static inline uint32_t float_bits(float value) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = value};
    return u.bits;
}

/* times `factor`, a power of two. NaN passes: the comparison is false. The products are exact, or
 * overflow from X_LIMIT on. */
static inline float limit(float x, float factor) {
    float kept = __builtin_fabsf(x) < X_MIN ? 0.0f : x;
    return kept * X_OVERFLOW * (factor * (1.0f / X_OVERFLOW));
}

void duck_widen(const void *restrict activation, uint8_t dtype, uint32_t blocks, float factor,
                float *restrict x, uint64_t stride) {
    for (uint32_t b = 0; b < blocks; b++, x += stride) {
        if (dtype == DUCK_DTYPE_BF16) {
            const uint16_t *in = (const uint16_t *)activation + b * DUCK_BLOCK;
            for (uint32_t i = 0; i < DUCK_BLOCK; i++) {
                x[i] = limit(bits_float((uint32_t)in[i] << 16), factor);
            }
        } else {
            const float *in = (const float *)activation + b * DUCK_BLOCK;
#pragma GCC unroll 4
            for (uint32_t i = 0; i < DUCK_BLOCK; i++) x[i] = limit(in[i], factor);
        }
    }
}

/* E4M3 (s eeee mmm, bias 7) is a float's top bits with another bias: moved there and multiplied by
 * 2^(127 - 7) it is exact, subnormals too. The code without a number (all ones) stays one. */
static inline float e4m3_float(uint8_t code) {
    uint32_t magnitude = code & 0x7Fu;
    float value = bits_float(magnitude << 20) * 0x1p120f;
    uint32_t bits = magnitude == 0x7Fu ? 0x7FC00000u : float_bits(value);
    return bits_float(bits | (uint32_t)(code & 0x80u) << 24);
}

void duck_widen_fp8(const uint8_t *restrict in, const uint8_t *restrict scales, uint32_t blocks,
                    float factor, float *restrict x, uint64_t stride) {
    for (uint32_t b = 0; b < blocks; b++, in += DUCK_BLOCK, x += stride) {
        float scale;
        __builtin_memcpy(&scale, scales + b * sizeof scale, sizeof scale);
        for (uint32_t i = 0; i < DUCK_BLOCK; i++) x[i] = limit(e4m3_float(in[i]) * scale, factor);
    }
}

/* 32 values to int8: scale = largest / 127, rounded to nearest even. With a NaN or infinity the
 * scale is one too, and so are the results. */
static void place_int8(const float *restrict x, uint32_t place,
                       struct duck_int8_block *restrict block) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t magnitude = float_bits(x[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const float shift = 0x1.8p23f;
    float amax = bits_float(largest);
    float inverse = largest == 0 ? 0.0f : 127.0f / amax;
    int32_t sum = 0;
    int8_t *restrict out = block->x + place;
    for (uint32_t i = 0; i < 32; i++) {
        float shifted = __builtin_fmaf(x[i], inverse, shift);
        int32_t value = (int32_t)(float_bits(shifted) - float_bits(shift));
        value = value > 127 ? 127 : value;
        value = value < -127 ? -127 : value;
        out[i] = (int8_t)value;
        sum += value;
    }
    block->scale[place / 32] = amax / 127.0f;
    block->sum[place / 32] = sum;
}

/* Put 32 limited values into columns place .. place + 31 of an activation block. */
void duck_place(const float *restrict x, uint32_t place, float x_scale, float *restrict block) {
    if (x_scale == 0.0f) {
        place_int8(x, place, (struct duck_int8_block *)block);
    } else {
        float *restrict out = block + place;
        for (uint32_t i = 0; i < 32; i++) out[i] = x[i] * x_scale;
    }
}

/* e^t for t limited to [-87, 88]; relative error below 2^-22.5 (tests/kernels measure it).
 * t = n ln 2 + r with |r| <= ln 2 / 2 and n an integer found by adding 1.5 * 2^23; e^r by its
 * Taylor polynomial of degree 7, whose remainder is below 2^-27. */
static inline float exp_limited(float t) {
    const float shift = 0x1.8p23f;
    t = t > 88.0f ? 88.0f : t;
    t = t < -87.0f ? -87.0f : t;
    float shifted = __builtin_fmaf(t, 0x1.715476p0f, shift);
    float n = shifted - shift;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, t); /* ln 2 in two parts; the first has few bits */
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f;
    p = __builtin_fmaf(p, r, 0x1.6c16c2p-10f);
    p = __builtin_fmaf(p, r, 0x1.111112p-7f);
    p = __builtin_fmaf(p, r, 0x1.555556p-5f);
    p = __builtin_fmaf(p, r, 0x1.555556p-3f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    uint32_t exponent = float_bits(shifted) + 127u - float_bits(shift);
    return p * bits_float(exponent << 23);
}

void duck_activate(const float *restrict gate, const float *restrict up, uint32_t count,
                   float *restrict h) {
    for (uint32_t i = 0; i < count; i++) {
        float silu = gate[i] / (1.0f + exp_limited(-gate[i]));
        h[i] = limit(silu * up[i], 1.0f);
    }
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t to_bf16(float value) {
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded);
}

/* The sums of duck_combine: registers, where the compiler would keep an array of them in memory. */
#ifdef __AVX2__
typedef __m256 lanes;
static inline lanes zero_lanes(void) { return _mm256_setzero_ps(); }
static inline lanes fma_lanes(float weight, const float *x, lanes sum) {
    return _mm256_fmadd_ps(_mm256_set1_ps(weight), _mm256_loadu_ps(x), sum);
}
static inline void store_lanes(lanes sum, float *to) { _mm256_storeu_ps(to, sum); }
#else
typedef struct {
    float of[8];
} lanes;
static inline lanes zero_lanes(void) { return (lanes){{0.0f}}; }
static inline lanes fma_lanes(float weight, const float *x, lanes sum) {
    for (int i = 0; i < 8; i++) sum.of[i] = __builtin_fmaf(weight, x[i], sum.of[i]);
    return sum;
}
static inline void store_lanes(lanes sum, float *to) {
    for (int i = 0; i < 8; i++) to[i] = sum.of[i];
}
#endif

static void store_bf16(const float *restrict y, uint16_t *restrict out) {
    for (uint32_t i = 0; i < DUCK_PANEL_ROWS; i++) out[i] = to_bf16(y[i]);
}

void duck_combine(const float *weight, const uint16_t *expert, uint32_t top_k,
                  const float *restrict sums, uint8_t dtype, void *restrict output) {
    static_assert(DUCK_PANEL_ROWS == 32, "four registers");
    lanes y0 = zero_lanes(), y1 = y0, y2 = y0, y3 = y0;
    for (uint32_t j = 0; j < top_k; j++, sums += DUCK_PANEL_ROWS) {
        if (expert[j] == DUCK_EXPERT_NONE) continue;
        y0 = fma_lanes(weight[j], sums, y0);
        y1 = fma_lanes(weight[j], sums + 8, y1);
        y2 = fma_lanes(weight[j], sums + 16, y2);
        y3 = fma_lanes(weight[j], sums + 24, y3);
    }
    float rounded[DUCK_PANEL_ROWS];
    float *out = dtype == DUCK_DTYPE_BF16 ? rounded : output;
    store_lanes(y0, out);
    store_lanes(y1, out + 8);
    store_lanes(y2, out + 16);
    store_lanes(y3, out + 24);
    if (dtype == DUCK_DTYPE_BF16) store_bf16(rounded, output);
}
