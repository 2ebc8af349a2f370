/* y = W x for one or two rows of x: W streams through shared memory, ahead of x.
 *
 * A program's weights are constants, so it asks for the first of them before it waits for the
 * previous kernel: while that one ends, the memory is never idle. Two such kernels fit on a
 * multiprocessor, so the next product fills its rings while this one computes.
 *
 * A group of rows times a chunk of columns is a tile of 2 KiB. A program has a run of whole groups,
 * of FP8 rows (codes.cuh) or of plain ones (plain.cuh); its warps share the run's tiles evenly,
 * each with a ring of its own. Where warps cut a group, their sums are added in the warps' order.
 * What a program does depends on the matrix alone, never on the number of rows of x.
 */
#include "codes.cuh"
#include "plain.cuh"
#include "route.cuh"

/* y[row i of the group] for row n of x, if there is such a row. */
template <typename Kind>
__device__ __forceinline__ void store_sum(const Product &p, const Work &w, int group, int n, int i,
                                          float value) {
    int row = (w.first_group + group) * Kind::ROWS + i;
    i64 at = w.part * (i64)(p.rows8 + p.plain_rows) + n * p.y_stride + Kind::first_row(p) + row;
    if (row < Kind::rows(p)) p.y[at] = value;
}

/* A warp's sums of groups that it shares with others. [0]: of the group that an earlier warp began,
 * [1]: of the one that a later warp ends. group: -1 if there is none. */
template <typename Kind, int X> struct Cut {
    float sum[2][X][Kind::ROWS];
    int group[2];
};

/* factor[n] without indexing: an array that is indexed would lie in slow memory. */
template <int X> __device__ __forceinline__ float factor_of(const float *factor, int n) {
    return X == 1 || n == 0 ? factor[0] : factor[X - 1];
}

/* Groups that warps cut: add the warps' sums in order. */
template <typename Kind, int X>
__device__ __forceinline__ void join_cut_groups(const Product &p, const Work &w,
                                                const Cut<Kind, X> *cut, const float *factor) {
    int i = threadIdx.x % Kind::ROWS, n = threadIdx.x / Kind::ROWS % X;
    int warp = threadIdx.x / (Kind::ROWS * X);
    if (warp >= WARPS) return;
    int group = cut[warp].group[1];
    if (group < 0) return;
    float sum = cut[warp].sum[1][n][i], others[WARPS];
    bool shared[WARPS];
#pragma unroll
    for (int other = 1; other < WARPS; other++) { /* all loads at once */
        others[other] = cut[other].sum[0][n][i];
        shared[other] = other > warp && cut[other].group[0] == group;
    }
#pragma unroll
    for (int other = 1; other < WARPS; other++) sum += shared[other] ? others[other] : 0.0f;
    store_sum<Kind>(p, w, group, n, i, sum * factor_of<X>(factor, n));
}

/* A group's sums: stored, or left for join_cut_groups. */
template <typename Kind, int X>
__device__ __forceinline__ void finish_group(const Product &p, const Work &w, int group,
                                             typename Kind::template Sums_<X> &sums,
                                             Cut<Kind, X> &cut, const float *factor) {
    bool begun_before = group * w.chunks < w.tiles_begin;
    bool whole = !begun_before && (group + 1) * w.chunks <= w.tiles_end;
    int slot = begun_before ? 0 : 1;
    sums.finish([&](int n, int i, float sum) {
        if (whole) {
            store_sum<Kind>(p, w, group, n, i, sum * factor[n]);
        } else {
            cut.sum[slot][n][i] = sum;
            cut.group[slot] = group;
        }
    });
}

/* Of a ring's stages the oldest is there. */
template <int X> __device__ __forceinline__ void wait_for_oldest(int stages) {
    wait_for_copies<5>();
    if (stages < 6) wait_for_copies<4>();
    if (stages < 5) wait_for_copies<3>();
    if (stages < 4) wait_for_copies<2>();
    if (X > 1 && stages < 3) wait_for_copies<1>();
    __syncwarp();
}

/* Shared memory: rings, cut sums, the input but for x, scales, x. product.py computes the same
 * size. `program` of `programs` for this kind of rows. */
template <typename Kind, int X, int INPUT>
__device__ __forceinline__ void multiply(const Product &p, int program, int programs) {
    BLOCK_MEMORY(shared);
    Work w = find_work<Kind>(p, program, programs);
    int warp = threadIdx.x / LANES;
    u8 *ring = shared + warp * p.stages * TILE;
    auto cut = (Cut<Kind, X> *)(shared + WARPS * p.stages * TILE);
    Input in;
    in.squares = (float *)(cut + WARPS);
    in.scale = in.squares + X * WARPS;
    float *scales = in.scale + X * w.chunks * 2;
    in.x = (float4 *)(scales + (X + w.scale_rows) * w.chunks * 2 % 4 + w.scale_rows * w.chunks * 2);

    release_next();
    if (threadIdx.x % LANES < 2) cut[warp].group[threadIdx.x % LANES] = -1;
    Cursor at = {w.tiles_begin / w.chunks, w.tiles_begin % w.chunks, 0};
    Source ahead = Kind::source(p, w, shared_address(ring));
    int asked = w.tiles_begin;
    for (int stage = 0; stage < p.stages; stage++) {
        if (asked++ < w.tiles_end) Kind::fetch(p, w, ahead);
        commit_copies();
    }
    Kind::load_scales(p, w, scales);
#pragma unroll
    for (int n = 0; n < X; n++) Kind::template load<X, INPUT>(p, w, n, in);
    __syncthreads();
    float factor[X];
#pragma unroll
    for (int n = 0; n < X; n++) factor[n] = norm_factor<INPUT>(p, in, n);

    typename Kind::template Sums_<X> acc = {};
    for (int tile = w.tiles_begin; tile < w.tiles_end; tile++) {
        wait_for_oldest<X>(p.stages);
        Tile weights = Kind::take(ring + at.stage * TILE);
        __syncwarp(); /* the next tile may take its place */
        if (asked++ < w.tiles_end) Kind::fetch(p, w, ahead);
        commit_copies();
        Kind::template add<X>(w, at, weights, in, scales, acc);
        if (at.chunk + 1 == w.chunks || tile + 1 == w.tiles_end) {
            finish_group<Kind, X>(p, w, at.group, acc, cut[warp], factor);
        }
        at.advance(w, p.stages);
    }
    __syncthreads();
    join_cut_groups<Kind, X>(p, w, cut, factor);
}

template <int X, int INPUT>
__device__ __forceinline__ void run(const Product &p, const Route &route) {
    int block = blockIdx.x, codes = p.programs8 * p.parts, plain = p.programs_plain * p.parts;
    if (block < codes) {
        multiply<Codes, X, INPUT>(p, block, codes);
    } else if (block < codes + plain) {
        multiply<Plain, X, INPUT>(p, block - codes, plain);
    } else {
        serve_call(route);
    }
}

/* For each kind of input a kernel of its own, with less code and registers than one for all; and
 * one for all inputs that need little code, because they are split or short: a step's kernels then
 * find their instructions in the cache. 104 registers: none is spilled (the first-level cache is
 * too small for spills beside so much shared memory: they cost a tenth of the step), and two
 * blocks leave room for the small kernels. Two rows of x need some more. */
#define PRODUCT(X, NAME, INPUT)                                                                    \
    extern "C" __global__ void __maxnreg__(X == 1 ? 104 : 112)                                     \
        product_##X##_##NAME(Product p, Route route) {                                             \
        run<X, INPUT>(p, route);                                                                   \
    }

PRODUCT(1, any, ANY_INPUT)
PRODUCT(1, none, PLAIN_INPUT)
PRODUCT(1, norm, NORMED_INPUT)
PRODUCT(1, silu, SILU_INPUT)
PRODUCT(2, any, ANY_INPUT)
PRODUCT(2, none, PLAIN_INPUT)
PRODUCT(2, norm, NORMED_INPUT)
PRODUCT(2, silu, SILU_INPUT)
