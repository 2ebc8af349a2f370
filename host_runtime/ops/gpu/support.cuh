/* What the CUDA C++ kernels share: decoding, warp sums, bf16. */
#pragma once
#include "machine.cuh"

#define INFINITE __uint_as_float(0x7F800000u)

__device__ __forceinline__ void add_4(float4 &a, float4 b) {
    a = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/* Sum over the warp in a fixed order; every lane gets it. */
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) {
        value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    }
    return value;
}

/* 16 E4M3 codes, to be multiplied by CODE_FACTOR. */
__device__ __forceinline__ void decode_16(uint4 codes, float *out) {
    u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 low, high;
        halves_of_4(words[i], low, high);
        unpack_half2(low, out[4 * i], out[4 * i + 1]);
        unpack_half2(high, out[4 * i + 2], out[4 * i + 3]);
    }
}

/* sum[i] += factor * code i */
__device__ __forceinline__ void add_codes_times(uint4 codes, float factor, float *sum) {
    float w[16];
    decode_16(codes, w);
#pragma unroll
    for (int i = 0; i < 16; i++) sum[i] = fmaf(w[i], factor, sum[i]);
}

/* bf16 of a float: to nearest, ties to even. */
__device__ __forceinline__ u32 bf16_bits(float value) {
    u32 bits = __float_as_uint(value);
    if (value != value) return 0x7FC0;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
