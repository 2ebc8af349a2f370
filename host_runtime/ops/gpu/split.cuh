/* Inputs of FP8 products as three halves, by whoever makes them (codes.cuh says how they are used).
 *
 * Each 128 columns of x are moved by a power of two so that their largest element lies in
 * [2^14, 2^15), and split into high, middle and low halves: 33 bits from there down, so that
 * nothing of an element that is at least 2^-15 of the largest one is lost, and of smaller ones
 * only what is below 2^-40 of it.
 */
#pragma once
#include "support.cuh"

constexpr int PARTS_OF_X = 3;
constexpr int CHUNK = 256;                          /* columns */
constexpr int CHUNK_UNITS = CHUNK / 8 * PARTS_OF_X; /* of 16 bytes */

struct HalfPieces {
    uint4 part[PARTS_OF_X]; /* 8 columns each */
};

/* Two floats as three pairs of halves. */
__device__ __forceinline__ void split_2(float a, float b, u32 &high, u32 &middle, u32 &low) {
    float a1, b1;
    high = half2_bits(a, b);
    unpack_half2(high, a1, b1);
    a -= a1;
    b -= b1;
    middle = half2_bits(a, b);
    unpack_half2(middle, a1, b1);
    low = half2_bits(a - a1, b - b1);
}

__device__ __forceinline__ float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* The power of two by which a block with this largest element is moved. */
__device__ __forceinline__ u32 block_exponent(float most) {
    return min(max(__float_as_uint(most) >> 23, 20u), 254u);
}

__device__ __forceinline__ float scale_up(u32 exponent) { /* 2^(141 - exponent) */
    return __uint_as_float((268 - exponent) << 23);
}

__device__ __forceinline__ float scale_back(u32 exponent) {
    return __uint_as_float((exponent - 14) << 23);
}

/* The unit of 16 bytes that holds part 0 of the 8 columns around `at`; the other parts' are 4 and 8
 * units further. Within a chunk: [64 of 128][half of 16][which 128][part][16 of 64], so that the
 * lanes that read at once hit all banks. */
__device__ __forceinline__ int piece_unit(int at) {
    int row = at / CHUNK * 8 + at / 64 % 2 * 4 + at / 8 % 2 * 2 + at / 128 % 2;
    return row * PARTS_OF_X * 4 + at / 16 % 4;
}

/* A warp's 128 columns, 4 a lane from `at` on, split into `pieces`; their scale. */
__device__ __forceinline__ void split_block(uint4 *pieces, float *scales, int at, float4 v) {
    float most = largest_of(v);
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    }
    u32 exponent = block_exponent(most);
    float up = scale_up(exponent);
    uint2 part[PARTS_OF_X];
    split_2(v.x * up, v.y * up, part[0].x, part[1].x, part[2].x);
    split_2(v.z * up, v.w * up, part[0].y, part[1].y, part[2].y);
    uint2 *to = (uint2 *)(pieces + piece_unit(at)) + at / 4 % 2;
#pragma unroll
    for (int i = 0; i < PARTS_OF_X; i++) to[i * 8] = part[i];
    if (threadIdx.x % LANES == 0) scales[at / 128] = scale_back(exponent);
}
