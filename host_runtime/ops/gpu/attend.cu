/* MLA decode over a bf16 latent cache, split along the positions (attend.py has the split).
 *
 * A block attends HEADS heads to one part of the positions, ROWS at a time, all of whose cache rows
 * lie in shared memory: once as keys, once as values. Without a choice of positions a block knows
 * its rows beforehand and asks for them before it waits, but for the newest two: a step writes one
 * for each of its lanes.
 */
#include "support.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * LANES;
constexpr int HEADS = 16;
constexpr int UNIT = 64; /* positions that parts are multiples of */
constexpr int LATENT = 512, WIDTH = LATENT + 64;
constexpr int STRIDE = WIDTH + 8; /* bf16 per row in shared memory: rows begin 4 banks apart */
constexpr int PIECES = WIDTH / 8; /* of 16 bytes, of a cache row */
constexpr int STEP_ROWS = 2;      /* cache rows that a step may write */
constexpr int GROUPS = 4;         /* of warps in the scores: each has ROWS / GROUPS positions */

struct Attend {
    const int *state;    /* first cache row, position */
    const float *query;  /* [heads, WIDTH] */
    const u16 *kv;       /* bf16 [rows, WIDTH] */
    const int *selected; /* [selected_size] positions; null: all */
    float *parts, *sums; /* [splits, heads, LATENT]; [splits, heads, 2]: maximum, sum */
    int heads, splits, selected_size;
    float scale;
};
static_assert(sizeof(Attend) == ATTEND_BYTES, "attend.py");

/* Shared memory of a block; attend.py computes the same size. */
template <int ROWS> struct Shared {
    u16 kv[ROWS][STRIDE], query[HEADS][STRIDE];
    u16 weights[HEADS][ROWS + 8];
    float scores[HEADS][ROWS + 4];
    float best[HEADS], total[HEADS], fade[HEADS];
    int positions[ROWS];
};

/* The block's positions [begin, end) of the list, or of the sequence. */
struct Part {
    i64 base; /* first cache row of the sequence */
    int split, first_head, begin, end, newest;
};

__device__ __forceinline__ Part find_part(const Attend &a) {
    Part part;
    part.base = a.state[0];
    int count = a.state[1] + 1;
    part.newest = count - STEP_ROWS;
    if (a.selected) count = min(count, a.selected_size);
    part.split = blockIdx.x % a.splits;
    part.first_head = blockIdx.x / a.splits * HEADS;
    int size = ((count + a.splits - 1) / a.splits + UNIT - 1) / UNIT * UNIT;
    part.begin = part.split * size;
    part.end = min(part.begin + size, count);
    return part;
}

/* Ask for rows from `start` on: zeros beyond the end, nothing where `newest` comes first. */
template <int ROWS>
__device__ __forceinline__ void fetch_rows(const Attend &a, const Part &part, int start, int newest,
                                           Shared<ROWS> &s) {
    constexpr int STEP_PIECES = THREADS % PIECES, STEP = THREADS / PIECES;
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const u16 *sequence = a.kv + part.base * WIDTH;
#pragma unroll 6
    for (int i = 0; i < ROWS * PIECES / THREADS; i++) {
        int position = start + row;
        bool valid = position < part.end;
        if (!valid || position < newest) {
            if (a.selected) position = s.positions[row];
            const u16 *from = valid ? sequence + (i64)position * WIDTH + piece * 8 : a.kv;
            copy_16(shared_address(&s.kv[row][piece * 8]), from, valid);
        }
        row += STEP;
        piece += STEP_PIECES;
        if (piece >= PIECES) {
            piece -= PIECES;
            row++;
        }
    }
}

/* Rows [from, end) that an earlier kernel of this step wrote. */
template <int ROWS>
__device__ __forceinline__ void fetch_newest(const Attend &a, const Part &part, Shared<ROWS> &s) {
    int last = min(part.begin + ROWS, part.end);
    for (int position = max(part.begin, part.newest); position < last; position++) {
        if (threadIdx.x >= PIECES) break;
        const u16 *from = a.kv + (part.base + position) * WIDTH + threadIdx.x * 8;
        copy_16(shared_address(&s.kv[position - part.begin][threadIdx.x * 8]), from, true);
    }
}

__device__ __forceinline__ void load_query(const Attend &a, int first_head, u16 (*query)[STRIDE]) {
    constexpr int UNITS = WIDTH / 4, EACH = HEADS * UNITS / THREADS;
    static_assert(HEADS * UNITS % THREADS == 0, "every thread has as many");
    float4 v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = i * THREADS + threadIdx.x, head = first_head + at / UNITS;
        const float *from = a.query + (i64)head * WIDTH + at % UNITS * 4;
        v[i] = head < a.heads ? load_4(from) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = i * THREADS + threadIdx.x;
        uint2 packed = {bf16_pair(v[i].x, v[i].y), bf16_pair(v[i].z, v[i].w)};
        *(uint2 *)&query[at / UNITS][at % UNITS * 4] = packed;
    }
}

/* scores = query . keys. A warp has a quarter of the rows and half of the columns; the halves are
 * added in order. */
template <int ROWS> __device__ __forceinline__ void score(Shared<ROWS> &s) {
    constexpr int OWN = ROWS / GROUPS, STEPS = WIDTH / 2 / 16;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    int first = warp % GROUPS * OWN, half = warp / GROUPS, column = half * (WIDTH / 2);
    u32 query = shared_address(&s.query[lane % 16][column + lane / 16 * 8]);
    u32 keys = shared_address(&s.kv[first + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
    float c[OWN / 8][4] = {};
#pragma unroll 6
    for (int step = 0; step < STEPS; step++) {
        u32 q[4], k[4];
        load_matrices(q, query + step * 32);
#pragma unroll
        for (int j = 0; j < OWN / 16; j++) {
            load_matrices(k, keys + step * 32 + j * 16 * STRIDE * 2);
            multiply_bf16(c[2 * j], q, k[0], k[1]);
            multiply_bf16(c[2 * j + 1], q, k[2], k[3]);
        }
    }
#pragma unroll
    for (int turn = 1; turn >= 0; turn--) {
        if (half == turn) {
#pragma unroll
            for (int j = 0; j < OWN / 8; j++) {
#pragma unroll
                for (int low = 0; low < 2; low++) {
                    float *at = &s.scores[lane / 4 + low * 8][first + j * 8 + lane % 4 * 2];
                    float2 sum = {c[j][low * 2], c[j][low * 2 + 1]};
                    if (turn == 0) sum = {sum.x + at[0], sum.y + at[1]};
                    *(float2 *)at = sum;
                }
            }
        }
        __syncthreads();
    }
}

/* weights = exp(scores - the largest so far), and what earlier sums must be multiplied by. */
template <int ROWS>
__device__ __forceinline__ void weigh(const Attend &a, int valid, bool first, Shared<ROWS> &s) {
    constexpr int OWN = ROWS / LANES;
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int i = 0; i < HEADS / WARPS; i++) {
        int head = threadIdx.x / LANES * (HEADS / WARPS) + i;
        float before = first ? -INFINITE : s.best[head], best = before, sum = 0.0f, v[OWN];
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            int row = j * LANES + lane;
            v[j] = row < valid ? s.scores[head][row] * a.scale : -INFINITE;
            best = fmaxf(best, v[j]);
        }
#pragma unroll
        for (int step = LANES / 2; step; step /= 2) {
            best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, step));
        }
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            float weight = __expf(v[j] - best);
            sum += weight;
            s.weights[head][j * LANES + lane] = (u16)bf16_bits(weight);
        }
        sum = warp_sum(sum);
        __syncwarp(); /* every lane has read `best` */
        if (lane == 0) {
            float fade = first ? 0.0f : __expf(before - best);
            s.total[head] = first ? sum : fmaf(s.total[head], fade, sum);
            s.best[head] = best;
            s.fade[head] = fade;
        }
    }
}

/* acc += weights . values, of this warp's 64 columns. */
template <int ROWS>
__device__ __forceinline__ void mix(const Shared<ROWS> &s, int valid, float (*acc)[4]) {
    int lane = threadIdx.x % LANES, column = threadIdx.x / LANES * (LATENT / WARPS);
    u32 weights = shared_address(&s.weights[lane % 16][lane / 16 * 8]);
    u32 values = shared_address(&s.kv[lane % 16][column + lane / 16 * 8]);
    float fade[2] = {s.fade[lane / 4], s.fade[lane / 4 + 8]};
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) acc[j][i] *= fade[i / 2];
    }
#pragma unroll 2
    for (int step = 0; step * 16 < valid; step++) {
        u32 w[4], v[4];
        load_matrices(w, weights + step * 32);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            load_matrices_turned(v, values + step * 16 * STRIDE * 2 + j * 32);
            multiply_bf16(acc[2 * j], w, v[0], v[1]);
            multiply_bf16(acc[2 * j + 1], w, v[2], v[3]);
        }
    }
}

template <int ROWS>
__device__ __forceinline__ void store_part(const Attend &a, const Part &part, const Shared<ROWS> &s,
                                           const float (*acc)[4]) {
    int lane = threadIdx.x % LANES, column = threadIdx.x / LANES * (LATENT / WARPS) + lane % 4 * 2;
    bool any = part.begin < part.end;
#pragma unroll
    for (int low = 0; low < 2; low++) {
        int head = part.first_head + lane / 4 + low * 8;
        if (head >= a.heads) continue;
        float *to = a.parts + ((i64)part.split * a.heads + head) * LATENT + column;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            *(float2 *)(to + j * 8) = {acc[j][low * 2], acc[j][low * 2 + 1]};
        }
    }
    int head = part.first_head + threadIdx.x;
    if (threadIdx.x >= HEADS || head >= a.heads) return;
    float *sums = a.sums + ((i64)part.split * a.heads + head) * 2;
    *(float2 *)sums =
        any ? float2{s.best[threadIdx.x], s.total[threadIdx.x]} : float2{-INFINITE, 0.0f};
}

template <int ROWS> __device__ __forceinline__ void attend_part(const Attend &a) {
    BLOCK_MEMORY(bytes);
    Shared<ROWS> &s = *(Shared<ROWS> *)bytes;
    Part part = find_part(a); /* the host writes the state, before the step begins */
    float acc[8][4] = {};
    release_next();
    if (!a.selected && part.begin < part.end) {
        fetch_rows<ROWS>(a, part, part.begin, part.newest, s);
    }
    wait_for_previous();
    for (int start = part.begin; start < part.end; start += ROWS) {
        bool first = start == part.begin;
        if (a.selected) {
            int at = start + threadIdx.x;
            if (threadIdx.x < ROWS) s.positions[threadIdx.x] = at < part.end ? a.selected[at] : 0;
            __syncthreads();
        }
        if (a.selected || !first) {
            fetch_rows<ROWS>(a, part, start, part.end, s);
        } else {
            fetch_newest<ROWS>(a, part, s);
        }
        commit_copies();
        if (first) load_query(a, part.first_head, s.query);
        wait_for_copies<0>();
        __syncthreads();
        score<ROWS>(s);
        int valid = min(part.end - start, ROWS);
        weigh<ROWS>(a, valid, first, s);
        __syncthreads();
        mix<ROWS>(s, valid, acc);
        if (start + ROWS < part.end) __syncthreads(); /* before the rows make way */
    }
    store_part<ROWS>(a, part, s, acc);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_128(Attend a) {
    attend_part<128>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_64(Attend a) { attend_part<64>(a); }
