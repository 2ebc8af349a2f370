/* Choice of experts for one row, and its CALL message. References: router.py, ops/router.py. */
#pragma once
#include "support.cuh"

struct Route {
    const float *logits, *bias; /* [experts]; logits null: only the payload */
    short *ids;                 /* [top_k], as weights: may lie in pinned host memory */
    float *weights;
    const float *x, *gain; /* [size]: the payload is x, RMS-normed */
    void *payload;         /* [size] float32 or bf16, may lie there too; null: none */
    int *sequence, *flags; /* of the mailbox (mailbox.py); flags null: no call */
    int layer, experts, groups, chosen, top_k, normalise, size, payload_bf16;
    float scaling, eps;
};
static_assert(sizeof(Route) == ROUTE_BYTES, "product.py");

constexpr u32 ALL = 0xFFFFFFFFu;

/* Numbers that compare as the values do; NaN as the least but 0, which is none. */
__device__ __forceinline__ u32 ordered(float value) {
    u32 bits = __float_as_uint((value == value ? value : -INFINITE) + 0.0f); /* no -0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The index that goes with the largest value of the warp, of equal ones the lowest. */
__device__ __forceinline__ int warp_best(u32 value, int index) {
    return __reduce_min_sync(ALL, value == __reduce_max_sync(ALL, value) ? (u32)index : ALL);
}

/* All at multiples of 16 bytes, the size a multiple of 4. `sums`: a float per warp. */
__device__ __forceinline__ void write_payload(const Route &r, float *sums) {
    float squares = 0.0f;
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < r.size; at += blockDim.x * 4) {
        float4 v = load_4(r.x + at);
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = squares;
    __syncthreads();
    float total = 0.0f;
    for (int warp = 0; warp < blockDim.x / LANES; warp++) total += sums[warp];
    float factor = rsqrtf(total / r.size + r.eps);
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < r.size; at += blockDim.x * 4) {
        float4 v = load_4(r.x + at), g = *(const float4 *)(r.gain + at);
        v = {v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w};
        if (r.payload_bf16) {
            uint2 packed = {bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w)
                                                                                        << 16};
            *(uint2 *)((u16 *)r.payload + at) = packed;
        } else {
            *(float4 *)((float *)r.payload + at) = v;
        }
    }
}

/* Bit g is set if group g is one of the best; a group's score is the sum of its two best. */
__device__ __forceinline__ u32 best_groups(const Route &r, const float *biased) {
    int lane = threadIdx.x, size = r.experts / r.groups; /* a power of two */
    float first = -INFINITE, second = -INFINITE;
    if (lane < r.groups) {
#pragma unroll 8
        for (int j = 0; j < size; j++) {
            float value = biased[lane * size + ((j + lane) & (size - 1))]; /* all banks */
            second = fmaxf(second, fminf(first, value));
            first = fmaxf(first, value);
        }
    }
    u32 left = lane < r.groups ? ordered(first + second) : 0, inside = 0;
    for (int i = 0; i < r.chosen; i++) {
        int group = warp_best(left, lane);
        inside |= 1u << group;
        if (lane == group) left = 0;
    }
    return inside;
}

/* This lane's best expert that is left: every 32nd one is its own. */
__device__ __forceinline__ u32 lane_best(const u32 *keys, int experts, int &id) {
    u32 best = 0;
    id = min((int)threadIdx.x, experts - 1);
#pragma unroll 8
    for (int e = threadIdx.x; e < experts; e += LANES) {
        u32 key = keys[e];
        if (key > best) {
            best = key;
            id = e;
        }
    }
    return best;
}

/* One warp: ids and weights from scores; `biased` is used up. */
__device__ __forceinline__ void choose_by_warp(const Route &r, const float *score, float *biased) {
    int lane = threadIdx.x, shift = __ffs(r.experts / r.groups) - 1;
    u32 inside = best_groups(r, biased), *keys = (u32 *)biased;
    __syncwarp();
    for (int e = lane; e < r.experts; e += LANES) {
        keys[e] = inside >> (e >> shift) & 1 ? ordered(biased[e]) : 0;
    }
    int id, own = 0;
    u32 best = lane_best(keys, r.experts, id);
    float total = 0.0f;
    for (int j = 0; j < r.top_k; j++) {
        int chosen = warp_best(best, id);
        total += score[chosen];
        if (lane == j) own = chosen;
        if (lane == chosen % LANES) {
            keys[chosen] = 0;
            best = lane_best(keys, r.experts, id);
        }
    }
    if (lane < r.top_k) {
        float weight = score[own];
        if (r.normalise) weight = weight / (total + 1e-20f);
        r.ids[lane] = (short)own;
        r.weights[lane] = weight * r.scaling;
    }
}

/* Tell the CPU that the message is complete: everything this block wrote before is seen. */
__device__ __forceinline__ void post_call(const Route &r) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    int number = *(volatile int *)r.sequence + 1;
    *(volatile int *)r.sequence = number;
    *(volatile int *)(r.flags + 1) = r.layer;
    __threadfence_system();
    raise_flag_for_host(r.flags, number);
}

/* One block. Shared memory: 2 * experts floats, or one per warp. */
__device__ __forceinline__ void serve_call(const Route &r) {
    BLOCK_MEMORY(shared);
    float *score = (float *)shared, *biased = score + r.experts;
    release_next();
    wait_for_previous();
    if (r.payload) write_payload(r, score);
    if (!r.logits) return;
    for (int e = threadIdx.x; e < r.experts; e += blockDim.x) {
        score[e] = 1.0f / (1.0f + expf(-load_1(r.logits + e)));
        biased[e] = score[e] + r.bias[e];
    }
    __syncthreads();
    if (threadIdx.x < LANES) choose_by_warp(r, score, biased);
    if (r.flags) post_call(r);
}
