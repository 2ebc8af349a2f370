/* Attention's parts merged in order, times W_uv (attend.py). A head's value rows are shared by
 * `shares` blocks, whose weights are asked for before the block waits. */
#include "support.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / LANES;
constexpr int SPLITS_MAX = 16;

struct Merge {
    const float *parts, *sums; /* [splits, heads, latent]; [splits, heads, 2]: maximum, sum */
    const u8 *codes;           /* kv_b [heads * (nope + value), latent] */
    const float *scale;
    float *out; /* [heads, value] */
    int splits, heads, nope, value, latent, shares;
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

/* mixed [latent]: the parts' weighted sum, where lane l's 16 columns from 512 j + 16 l on lie in
 * units of 4 at [j][unit][l]. Every warp finds the factors for itself while its parts come. */
__device__ __forceinline__ void mix(const Merge &m, int head, float *mixed) {
    int lane = threadIdx.x % LANES;
    const float *sums = m.sums + (lane * m.heads + head) * 2;
    float2 own = lane < m.splits ? load_2(sums) : float2{-INFINITE, 0};
    float factor = 0.0f;
    i64 stride = (i64)m.heads * m.latent;
    for (int begin = 0; begin < m.latent; begin += THREADS * 2) {
        int l = begin + threadIdx.x * 2;
        const float *from = m.parts + (i64)head * m.latent + l;
        float2 part[SPLITS_MAX], sum = {0, 0};
#pragma unroll
        for (int s = 0; s < SPLITS_MAX; s++) {
            bool inside = s < m.splits && l < m.latent;
            part[s] = inside ? load_2(from + s * stride) : float2{0, 0};
        }
        if (begin == 0) factor = part_factor(own.x, own.y);
#pragma unroll
        for (int s = 0; s < SPLITS_MAX; s++) {
            float part_factor = __shfl_sync(0xFFFFFFFFu, factor, s);
            sum.x = fmaf(part[s].x, part_factor, sum.x);
            sum.y = fmaf(part[s].y, part_factor, sum.y);
        }
        int in_row = l % 512;
        float *to = mixed + l - in_row + (in_row % 16 / 4 * LANES + in_row / 16) * 4 + l % 4;
        if (l < m.latent) *(float2 *)to = sum;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) merge_values(Merge m) {
    extern __shared__ __align__(16) u8 shared[];
    int head = blockIdx.x / m.shares, share = blockIdx.x % m.shares;
    int begin = m.value * share / m.shares, end = m.value * (share + 1) / m.shares;
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int rows = (512 + m.latent - 1) / 512; /* of 512 columns, of which a lane has 16 */
    int first = head * (m.nope + m.value) + m.nope, column_blocks = (m.latent + 127) / 128;
    float *mixed = (float *)shared, *scales = mixed + rows * 512; /* [row][column block] */
    int scale_floats = ((end - begin) * column_blocks + 3) / 4 * 4;
    u8 *codes = (u8 *)(scales + scale_floats) + lane * 16;
    release_next();
    for (int v = begin + warp; v < end; v += WARPS) {
        for (int j = 0; j < rows; j++) {
            int column = j * 512 + lane * 16;
            bool valid = column < m.latent;
            const u8 *from = valid ? m.codes + (i64)(first + v) * m.latent + column : m.codes;
            copy_16(shared_address(codes + ((v - begin) * rows + j) * 512), from, valid);
        }
    }
    commit_copies();
    for (int i = threadIdx.x; i < (end - begin) * column_blocks; i += THREADS) {
        int row = (first + begin + i / column_blocks) / 128;
        scales[i] = m.scale[row * column_blocks + i % column_blocks] * CODE_FACTOR;
    }
    wait_for_previous();
    mix(m, head, mixed);
    wait_for_copies<0>();
#pragma unroll 4
    for (int v = begin + warp; v < end; v += WARPS) {
        float sum = 0.0f;
        for (int j = 0; j < rows; j++) {
            int column = j * 512 + lane * 16;
            if (column >= m.latent) break;
            float dot = dot_codes(*(const uint4 *)(codes + ((v - begin) * rows + j) * 512),
                                  mixed + j * 512 + lane * 4, LANES * 4);
            sum = fmaf(scales[(v - begin) * column_blocks + column / 128], dot, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) m.out[head * m.value + v] = sum;
    }
}
