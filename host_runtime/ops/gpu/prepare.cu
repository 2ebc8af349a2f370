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
constexpr int ROPE_MAX = 128;    /* <= THREADS */
constexpr int LATENT_HELD = 8;   /* elements of the latent a thread: at most 1024 */
constexpr int TURN_HEADS = 16;   /* heads of the rotated query a block */

struct Prepare {
    const int *state;
    const float *y1, *y2, *rotation; /* rotation [positions, 2, rope / 2]: cos, then sin */
    const u8 *codes;                 /* kv_b [heads * (nope + value), latent] */
    const float *scale, *latent_gain, *key_gain, *key_bias;
    float *query, *index_query; /* [heads, latent + rope], [index_heads, index_size] */
    void *kv, *key;             /* caches: float32 or bf16 */
    int heads, nope, rope, value, latent, index_heads, index_size; /* index_size: 32, 64, 128 */
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

/* Element `at` of a row in shared memory, its first `rope` elements rotated in pairs
 * (i, i + rope / 2). `rotation`: cos, then sin. */
__device__ __forceinline__ float rotate_half_split(const float *x, const float *rotation, int rope,
                                                   int at) {
    if (at >= rope) return x[at];
    int half = rope / 2, pair = at < half ? at : at - half;
    float cos = rotation[pair], sin = rotation[half + pair];
    return x[at] * cos + (at < half ? -x[at + half] * sin : x[at - half] * sin);
}

/* One warp: RoPE and Hadamard transform of a row in shared memory; lane l gets EACH elements from
 * EACH l on. */
template <int EACH>
__device__ __forceinline__ void turn_row(const float *row, const float *rotation, int rope,
                                         float *v) {
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int j = 0; j < EACH; j++) v[j] = rotate_half_split(row, rotation, rope, lane * EACH + j);
#pragma unroll
    for (int step = 1; step < EACH; step *= 2) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (j & step) continue;
            float a = v[j], b = v[j + step];
            v[j] = a + b;
            v[j + step] = a - b;
        }
    }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            float other = __shfl_xor_sync(0xFFFFFFFFu, v[j], step);
            v[j] = lane & step ? other - v[j] : v[j] + other;
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) v[j] /= sqrtf((float)(EACH * LANES));
}

/* The cache row: the normed latent, and the key, rotated in pairs (2 i, 2 i + 1). */
__device__ __forceinline__ void make_latent(const Prepare &p, const float *rotation, i64 row,
                                            float *shared) {
    const float *latent = p.y1 + p.latent_at;
    i64 at_row = row * (p.latent + p.rope);
    int r = threadIdx.x * 2;
    float gain[LATENT_HELD], v[LATENT_HELD], squares = 0.0f;
    float2 key = {0, 0};
#pragma unroll
    for (int i = 0; i < LATENT_HELD; i++) {
        int l = i * THREADS + threadIdx.x;
        gain[i] = l < p.latent ? p.latent_gain[l] : 0.0f;
    }
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < LATENT_HELD; i++) {
        int l = i * THREADS + threadIdx.x;
        v[i] = l < p.latent ? load_1(latent + l) : 0.0f;
    }
    if (r < p.rope) key = {load_1(latent + p.latent + r), load_1(latent + p.latent + r + 1)};
#pragma unroll
    for (int i = 0; i < LATENT_HELD; i++) squares += v[i] * v[i];
    float factor = rsqrtf(block_sum(squares, shared) / p.latent + p.eps);
#pragma unroll
    for (int i = 0; i < LATENT_HELD; i++) {
        int l = i * THREADS + threadIdx.x;
        if (l < p.latent) store_cache(p.kv, p.cache_bf16, at_row + l, v[i] * factor * gain[i]);
    }
    if (r >= p.rope) return;
    float cos = rotation[r / 2], sin = rotation[p.rope / 2 + r / 2];
    at_row += p.latent + r;
    store_cache(p.kv, p.cache_bf16, at_row, key.x * cos - key.y * sin);
    store_cache(p.kv, p.cache_bf16, at_row + 1, key.y * cos + key.x * sin);
}

template <int EACH>
__device__ __forceinline__ void make_index_key(const Prepare &p, const float *rotation, i64 row,
                                               float *shared) {
    constexpr int SIZE = EACH * LANES;
    static_assert(SIZE <= THREADS, "an element a thread");
    float *normed = shared + WARPS, gain = 0.0f, bias = 0.0f, x = 0.0f, v[EACH];
    int e = threadIdx.x;
    bool inside = e < SIZE;
    if (inside) {
        gain = p.key_gain[e];
        bias = p.key_bias[e];
    }
    wait_for_previous();
    if (inside) x = load_1(p.y1 + p.key_at + e);
    float mean = block_sum(x, shared) / SIZE, away = inside ? x - mean : 0.0f;
    float factor = rsqrtf(block_sum(away * away, shared) / SIZE + p.key_eps);
    if (inside) normed[e] = away * factor * gain + bias;
    __syncthreads();
    if (threadIdx.x >= LANES) return;
    turn_row<EACH>(normed, rotation, p.rope, v);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        store_cache(p.key, p.cache_bf16, row * SIZE + threadIdx.x * EACH + j, v[j]);
    }
}

/* A head a warp. */
template <int EACH>
__device__ __forceinline__ void make_index_query(const Prepare &p, const float *rotation, int block,
                                                 float *shared) {
    constexpr int SIZE = EACH * LANES;
    int warp = threadIdx.x / LANES, head = block * WARPS + warp, lane = threadIdx.x % LANES;
    wait_for_previous();
    if (head >= p.index_heads) return;
    float *x = shared + warp * SIZE, v[EACH];
    const float *from = p.y2 + p.index_at + head * SIZE;
#pragma unroll
    for (int j = 0; j < EACH; j++) v[j] = load_1(from + j * LANES + lane);
#pragma unroll
    for (int j = 0; j < EACH; j++) x[j * LANES + lane] = v[j];
    __syncwarp();
    turn_row<EACH>(x, rotation, p.rope, v);
#pragma unroll
    for (int j = 0; j < EACH; j++) p.index_query[head * SIZE + lane * EACH + j] = v[j];
}

template <int EACH>
__device__ __forceinline__ void make_index(const Prepare &p, const float *rotation, i64 row,
                                           int block, float *shared) {
    if (block == 0) {
        make_index_key<EACH>(p, rotation, row, shared);
    } else {
        make_index_query<EACH>(p, rotation, block - 1, shared);
    }
}

/* The rotated part of the query: a pair (2 i, 2 i + 1) a thread and turn. */
__device__ __forceinline__ void rotate_queries(const Prepare &p, const float *rotation, int block) {
    int first = block * TURN_HEADS, last = min(first + TURN_HEADS, p.heads), half = p.rope / 2;
    wait_for_previous();
#pragma unroll 4
    for (int at = threadIdx.x; at < (last - first) * half; at += THREADS) {
        int head = first + at / half, pair = at % half;
        float2 x = load_2(p.y2 + head * (p.nope + p.rope) + p.nope + pair * 2);
        float cos = rotation[pair], sin = rotation[half + pair];
        float *to = p.query + head * (p.latent + p.rope) + p.latent + pair * 2;
        *(float2 *)to = {x.x * cos - x.y * sin, x.y * cos + x.x * sin};
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

extern "C" __global__ void __launch_bounds__(THREADS, 9) prepare_attention(Prepare p) {
    BLOCK_MEMORY(shared);
    int index_blocks = (p.index_heads + WARPS - 1) / WARPS;
    int turn_blocks = (p.heads + TURN_HEADS - 1) / TURN_HEADS, block = blockIdx.x;
    int small_blocks = 2 + index_blocks + turn_blocks;
    release_next();
    if (block >= small_blocks) {
        absorb(p, block - small_blocks, shared);
        return;
    }
    /* the host writes the state, before the step begins; what is constant is asked for first */
    int position = p.state[1];
    i64 row = p.state[0] + position;
    float *rotation = (float *)shared, *free = rotation + ROPE_MAX;
    if (threadIdx.x < p.rope) {
        rotation[threadIdx.x] = p.rotation[(i64)position * p.rope + threadIdx.x];
    }
    __syncthreads();
    if (block == 0) {
        make_latent(p, rotation, row, free);
    } else if (block > 1 + index_blocks) {
        rotate_queries(p, rotation, block - 2 - index_blocks);
    } else if (p.index_size == 128) {
        make_index<4>(p, rotation, row, block - 1, free);
    } else if (p.index_size == 64) {
        make_index<2>(p, rotation, row, block - 1, free);
    } else {
        make_index<1>(p, rotation, row, block - 1, free);
    }
}
