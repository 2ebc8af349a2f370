/* Attention's parts merged in order, times W_uv (attend.py). A block a head, whose weights its
 * threads hold in registers before it waits. */
#include "split.cuh"

constexpr int WARPS = 16;
constexpr int THREADS = WARPS * LANES;
constexpr int SPLITS = 16;
constexpr int LATENT_MAX = 512; /* a column a thread, 16 columns of W_uv a lane */
constexpr int HELD = 8;         /* rows of W_uv a warp */
constexpr int VALUE_MAX = HELD * WARPS;

struct Merge {
    const float *parts, *sums; /* [SPLITS, heads, latent]; [SPLITS, heads, 2]: maximum, sum */
    const u8 *codes;           /* kv_b [heads * (nope + value), latent] */
    const float *scale;
    float *out;    /* [heads, value] */
    uint4 *pieces; /* `out` as one row, split; null: not wanted. Only for a value size of 128 */
    float *piece_scales;
    int heads, nope, value, latent;
};
static_assert(sizeof(Merge) == MERGE_BYTES, "attend.py");

/* What part `lane` counts, of all parts; the first part always has positions. */
__device__ __forceinline__ float part_factor(float best, float total) {
    float most = best;
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    }
    float factor = __expf(best - most);
    return factor / warp_sum(factor * total);
}

/* mixed [latent]: the parts' weighted sum, where lane l's 16 columns from 16 l on lie in units of 4
 * at [unit][l]. Every warp finds the factors for itself while the parts come. */
__device__ __forceinline__ void mix(const Merge &m, float (*part)[LATENT_MAX], float *mixed) {
    int lane = threadIdx.x % LANES, column = threadIdx.x, head = blockIdx.x;
    constexpr int UNITS = LATENT_MAX / 4, ROWS = THREADS / UNITS;
    const float *from = m.parts + (i64)head * m.latent + column % UNITS * 4;
#pragma unroll
    for (int s = threadIdx.x / UNITS; s < SPLITS; s += ROWS) {
        bool valid = column % UNITS * 4 < m.latent;
        const float *row = from + (i64)s * m.heads * m.latent;
        copy_16(shared_address(&part[s][column % UNITS * 4]), valid ? row : m.parts, valid);
    }
    commit_copies();
    float2 own = {-INFINITE, 0};
    if (lane < SPLITS) own = load_2(m.sums + (lane * m.heads + head) * 2);
    float factor = part_factor(own.x, own.y), sum = 0.0f;
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        sum = fmaf(part[s][column], __shfl_sync(0xFFFFFFFFu, factor, s), sum);
    }
    mixed[(column % 16 / 4 * LANES + column / 16) * 4 + column % 4] = sum;
    __syncthreads();
}

/* 16 codes times 16 floats. */
__device__ __forceinline__ float dot_16(uint4 codes, const float4 *x) {
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 low, high;
        float w0, w1, w2, w3;
        halves_of_4(words[i], low, high);
        unpack_half2(low, w0, w1);
        unpack_half2(high, w2, w3);
        even = fmaf(w0, x[i].x, even);
        odd = fmaf(w1, x[i].y, odd);
        even = fmaf(w2, x[i].z, even);
        odd = fmaf(w3, x[i].w, odd);
    }
    return even + odd;
}

/* The warp's sum of 8 values in a fixed order: lane l gets that of value l / 4. */
__device__ __forceinline__ float sum_of_8(float *value) {
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int count = 4; count; count /= 2) {
        bool upper = lane & count * 4;
#pragma unroll
        for (int i = 0; i < count; i++) {
            float kept = upper ? value[i + count] : value[i];
            float given = upper ? value[i] : value[i + count];
            value[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, count * 4);
        }
    }
    float sum = value[0];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) merge_values(Merge m) {
    __shared__ __align__(16) float part[SPLITS][LATENT_MAX], mixed[LATENT_MAX], values[VALUE_MAX];
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, column = lane * 16;
    int first = blockIdx.x * (m.nope + m.value) + m.nope, column_blocks = (m.latent + 127) / 128;
    int last = first + m.value - 1; /* at most one block of 128 rows behind the first one's */
    uint4 codes[HELD];
    float scale = 0.0f, last_scale = 0.0f;
    release_next();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int v = i * WARPS + warp, row = first + v;
        bool inside = v < m.value && column < m.latent;
        codes[i] = {0, 0, 0, 0};
        if (inside) codes[i] = load_16(m.codes + (i64)row * m.latent + column);
    }
    if (column < m.latent) {
        scale = m.scale[first / 128 * column_blocks + column / 128] * CODE_FACTOR;
        last_scale = m.scale[last / 128 * column_blocks + column / 128] * CODE_FACTOR;
    }
    wait_for_previous();
    mix(m, part, mixed);
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = ((const float4 *)mixed)[i * LANES + lane];
    float sum[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        bool same = (first + i * WARPS + warp) / 128 == first / 128;
        sum[i] = (same ? scale : last_scale) * dot_16(codes[i], x);
    }
    float total = sum_of_8(sum);
    int v = lane / 4 * WARPS + warp;
    if (lane % 4 == 0 && v < m.value) {
        m.out[blockIdx.x * m.value + v] = total;
        values[v] = total;
    }
    if (!m.pieces) return;
    __syncthreads();
    if (warp) return;
    float4 own = *(const float4 *)(values + lane * 4);
    split_block(m.pieces, m.piece_scales, blockIdx.x * VALUE_MAX + lane * 4, own);
}
