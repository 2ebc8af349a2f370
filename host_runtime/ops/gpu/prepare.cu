/* Between the query projections and attention: everything that is small, in one launch.
 * prepare.py says what is made of what; reference there.
 *
 * Blocks: one for the latent and the rotated key of this position, one for its index key, some for
 * the index query (a head per warp), some for the rotated queries, and one per head and 128 latent
 * columns for the absorbed query, whose weights are asked for before the block waits.
 */
#include "support.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / LANES;
constexpr int ROWS_AT_ONCE = 16; /* of W_uk: 8 threads a row */
constexpr int HELD = 16;         /* rows of W_uk a thread: at most 256 rows */
constexpr int INDEX_SIZE_MAX = 512;
constexpr int TURN_HEADS = 16; /* heads of the rotated query a block */

struct Prepare {
    const int *state;
    const float *y1, *y2, *rotation; /* rotation [positions, 2, rope / 2]: cos, then sin */
    const u8 *codes;                 /* kv_b [heads * (nope + value), latent] */
    const float *scale, *latent_gain, *key_gain, *key_bias;
    float *query, *index_query; /* [heads, latent + rope], [index_heads, index_size] */
    void *kv, *key;             /* caches: float32 or bf16 */
    int heads, nope, rope, value, latent, index_heads, index_size;
    int key_at, latent_at, index_at;
    int cache_bf16;
    float eps, key_eps;
};
static_assert(sizeof(Prepare) == PREPARE_BYTES, "prepare.py");

/* Sum over the block, in a fixed order. */
__device__ __forceinline__ float block_sum(float value, float *shared) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % LANES == 0) shared[threadIdx.x / LANES] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < WARPS; warp++) sum += shared[warp];
    return sum;
}

__device__ __forceinline__ void store_cache(void *cache, bool bf16, i64 at, float value) {
    if (bf16) {
        ((u16 *)cache)[at] = (u16)bf16_bits(value);
    } else {
        ((float *)cache)[at] = value;
    }
}

/* Element `at` of a row, rotated in pairs (2 i, 2 i + 1). */
__device__ __forceinline__ float rotate_interleaved(const float *x, const float *rotation, int rope,
                                                    int at) {
    float cos = rotation[at / 2], sin = rotation[rope / 2 + at / 2];
    return load_1(x + at) * cos + load_1(x + (at ^ 1)) * (at % 2 ? sin : -sin);
}

/* Element `at` of a row in shared memory, its first `rope` elements rotated in pairs
 * (i, i + rope / 2). */
__device__ __forceinline__ float rotate_half_split(const float *x, const float *rotation, int rope,
                                                   int at) {
    if (at >= rope) return x[at];
    int half = rope / 2, pair = at < half ? at : at - half;
    float cos = rotation[pair], sin = rotation[half + pair];
    return x[at] * cos + (at < half ? -x[at + half] * sin : x[at - half] * sin);
}

/* One warp: RoPE and Hadamard transform of a row of `size` (a power of two) in shared memory. */
__device__ __forceinline__ void turn_row(float *row, float *other, const float *rotation, int rope,
                                         int size) {
    int lane = threadIdx.x % LANES;
    __syncwarp();
    for (int e = lane; e < size; e += LANES) other[e] = rotate_half_split(row, rotation, rope, e);
    __syncwarp();
    for (int step = 1; step < size; step *= 2) {
        for (int i = lane; i < size / 2; i += LANES) {
            int first = (i & ~(step - 1)) * 2 + (i & (step - 1));
            float a = other[first], b = other[first + step];
            other[first] = a + b;
            other[first + step] = a - b;
        }
        __syncwarp();
    }
}

__device__ __forceinline__ void make_latent(const Prepare &p, const float *rotation, i64 row,
                                            float *shared) {
    const float *latent = p.y1 + p.latent_at;
    i64 at_row = row * (p.latent + p.rope);
    float squares = 0.0f;
    for (int l = threadIdx.x; l < p.latent; l += THREADS) {
        float v = load_1(latent + l);
        squares += v * v;
    }
    float factor = rsqrtf(block_sum(squares, shared) / p.latent + p.eps);
    for (int l = threadIdx.x; l < p.latent; l += THREADS) {
        store_cache(p.kv, p.cache_bf16, at_row + l, load_1(latent + l) * factor * p.latent_gain[l]);
    }
    for (int r = threadIdx.x; r < p.rope; r += THREADS) {
        float v = rotate_interleaved(latent + p.latent, rotation, p.rope, r);
        store_cache(p.kv, p.cache_bf16, at_row + p.latent + r, v);
    }
}

__device__ __forceinline__ void make_index_key(const Prepare &p, const float *rotation, i64 row,
                                               float *shared) {
    float *x = shared, *turned = shared + INDEX_SIZE_MAX, *sums = turned + INDEX_SIZE_MAX;
    int size = p.index_size;
    float sum = 0.0f, squares = 0.0f;
    for (int e = threadIdx.x; e < size; e += THREADS) sum += x[e] = load_1(p.y1 + p.key_at + e);
    float mean = block_sum(sum, sums) / size;
    for (int e = threadIdx.x; e < size; e += THREADS) squares += (x[e] - mean) * (x[e] - mean);
    float factor = rsqrtf(block_sum(squares, sums) / size + p.key_eps);
    for (int e = threadIdx.x; e < size; e += THREADS) {
        x[e] = (x[e] - mean) * factor * p.key_gain[e] + p.key_bias[e];
    }
    __syncthreads();
    if (threadIdx.x >= LANES) return;
    turn_row(x, turned, rotation, p.rope, size);
    for (int e = threadIdx.x; e < size; e += LANES) {
        store_cache(p.key, p.cache_bf16, row * size + e, turned[e] / sqrtf((float)size));
    }
}

__device__ __forceinline__ void make_index_query(const Prepare &p, const float *rotation, int block,
                                                 float *shared) {
    int warp = threadIdx.x / LANES, head = block * WARPS + warp, size = p.index_size;
    if (head >= p.index_heads) return;
    float *x = shared + warp * 2 * INDEX_SIZE_MAX, *turned = x + INDEX_SIZE_MAX;
    const float *from = p.y2 + p.index_at + head * size;
    for (int e = threadIdx.x % LANES; e < size; e += LANES) x[e] = load_1(from + e);
    turn_row(x, turned, rotation, p.rope, size);
    for (int e = threadIdx.x % LANES; e < size; e += LANES) {
        p.index_query[head * size + e] = turned[e] / sqrtf((float)size);
    }
}

__device__ __forceinline__ void rotate_queries(const Prepare &p, const float *rotation, int block) {
    int first = block * TURN_HEADS, last = min(first + TURN_HEADS, p.heads);
#pragma unroll 4
    for (int at = threadIdx.x; at < (last - first) * p.rope; at += THREADS) {
        int head = first + at / p.rope, r = at % p.rope;
        const float *x = p.y2 + head * (p.nope + p.rope) + p.nope;
        p.query[head * (p.latent + p.rope) + p.latent + r] =
            rotate_interleaved(x, rotation, p.rope, r);
    }
}

/* query[head, 128 columns] = sum over n of q_nope[head, n] * W_uk[head, n, columns]. A thread has
 * 16 columns of every 16th row, which it asks for itself; the 16 sums of a column are added in
 * order. */
__device__ __forceinline__ void absorb(const Prepare &p, int block, u8 *shared) {
    int column_blocks = (p.latent + 127) / 128, head = block / column_blocks;
    int piece = threadIdx.x % 8, first = threadIdx.x / 8, column = block % column_blocks;
    int at = column * 128 + piece * 16;
    float (*sums)[128] = (float (*)[128])shared;
    u8 *codes = shared + ROWS_AT_ONCE * 128 * sizeof(float) + threadIdx.x * 16;
    int row = head * (p.nope + p.value) + first;
    for (int i = 0; i * ROWS_AT_ONCE + first < p.nope; i++) {
        const u8 *from = p.codes + (i64)(row + i * ROWS_AT_ONCE) * p.latent + at;
        bool valid = at < p.latent;
        copy_16(shared_address(codes + i * THREADS * 16), valid ? from : p.codes, valid);
    }
    commit_copies();
    float factor[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int scale_row = (row + i * ROWS_AT_ONCE) / 128;
        bool inside = i * ROWS_AT_ONCE + first < p.nope;
        factor[i] = inside ? p.scale[scale_row * column_blocks + column] * CODE_FACTOR : 0.0f;
    }
    wait_for_previous();
    const float *q = p.y2 + head * (p.nope + p.rope) + first;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (i * ROWS_AT_ONCE + first < p.nope) factor[i] *= load_1(q + i * ROWS_AT_ONCE);
    }
    wait_for_copies<0>();
    float sum[16] = {};
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (i * ROWS_AT_ONCE + first >= p.nope) break;
        add_codes_times(*(const uint4 *)(codes + i * THREADS * 16), factor[i], sum);
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        *(float4 *)&sums[first][piece * 16 + i] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
    }
    __syncthreads();
    int own = column * 128 + threadIdx.x;
    float total = 0.0f;
    for (int i = 0; i < ROWS_AT_ONCE; i++) total += sums[i][threadIdx.x];
    if (own < p.latent) p.query[head * (p.latent + p.rope) + own] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS, 10) prepare_attention(Prepare p) {
    extern __shared__ __align__(16) u8 shared[];
    int index_blocks = (p.index_heads + WARPS - 1) / WARPS;
    int turn_blocks = (p.heads + TURN_HEADS - 1) / TURN_HEADS, block = blockIdx.x;
    int small_blocks = 2 + index_blocks + turn_blocks;
    release_next();
    if (block >= small_blocks) {
        absorb(p, block - small_blocks, shared);
        return;
    }
    /* the host writes the state, before the step begins */
    int position = p.state[1];
    i64 row = p.state[0] + position;
    const float *rotation = p.rotation + (i64)position * p.rope;
    wait_for_previous();
    if (block == 0) {
        make_index_key(p, rotation, row, (float *)shared);
    } else if (block == 1) {
        make_latent(p, rotation, row, (float *)shared);
    } else if (block < 2 + index_blocks) {
        make_index_query(p, rotation, block - 2, (float *)shared);
    } else {
        rotate_queries(p, rotation, block - 2 - index_blocks);
    }
}
