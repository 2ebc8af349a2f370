/* bf16 rows: products and sums in float32. Lane l has columns 8 l to 8 l + 7 of a chunk. */
#pragma once
#include "tiles.cuh"

struct Plain {
    static constexpr int ROWS = 4;
    static constexpr bool SCALED = false;
    static constexpr int HELD = 8; /* units of 4 columns of x a thread */

    template <int X> struct Sums_ {
        float sum[X][ROWS];

        template <typename F> __device__ __forceinline__ void finish(F store) {
#pragma unroll
            for (int n = 0; n < X; n++) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float total = warp_sum(sum[n][i]);
                    sum[n][i] = 0.0f;
                    if (threadIdx.x % LANES == i) store(n, i, total);
                }
            }
        }
    };

    __device__ static int rows(const Product &p) { return p.plain_rows; }
    __device__ static int first_row(const Product &p) { return p.rows8; }

    __device__ __forceinline__ static Source source(const Product &p, const Work &w, u32 ring) {
        int lane = threadIdx.x % LANES;
        int group = w.tiles_begin / w.chunks, chunk = w.tiles_begin % w.chunks;
        int row = (w.first_group + group) * ROWS;
        Source s;
        s.column = (w.first_chunk + chunk) * CHUNK + lane * 8;
        s.from = (const u8 *)(p.plain + (i64)row * p.columns + s.column);
        s.rows_left = p.plain_rows - row;
        s.chunk = chunk;
        s.to = ring + lane * 16;
        s.stage = 0;
        return s;
    }

    /* Ask for the tile and go on to the next one. */
    __device__ __forceinline__ static void fetch(const Product &p, const Work &w, Source &s) {
        const u8 *from = s.from;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            bool valid = i < s.rows_left && s.column < p.columns;
            copy_16(s.to + i * LANES * 16, valid ? from : (const u8 *)p.plain, valid);
            from += 2 * p.columns;
        }
        s.advance(w, p.stages, ROWS, 2 * p.columns, 2 * CHUNK);
    }

    __device__ __forceinline__ static void load_scales(const Product &, const Work &, float *) {}

    /* Row n of x into shared memory: [chunk][n][half of 8][lane] of 4 columns; and each warp's sum
     * of squares. Waits before the first row. */
    template <int X, int INPUT>
    __device__ __forceinline__ static void load(const Product &p, const Work &w, int n, Input in) {
        int begin = w.first_chunk * CHUNK, count = w.chunks * CHUNK;
        const float *x = p.x + n * p.x_stride + begin;
        float squares = 0.0f;
        bool waits = n == 0;
        for (int block = 0; block < count; block += HELD * THREADS * 4) { /* one, as a rule */
            float4 v[HELD], other[HELD];
            if (is<NORMED_INPUT, INPUT>(p)) load_units(p, p.gain + begin, block, w, other);
            if (waits) wait_for_previous();
            waits = false;
            load_units(p, x, block, w, v);
            if (is<SILU_INPUT, INPUT>(p)) load_units(p, x + p.columns, block, w, other);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                int at = block + (i * THREADS + threadIdx.x) * 4;
                if (at >= count) break;
                if (is<NORMED_INPUT, INPUT>(p)) squares += squares_of(v[i]);
                int place = (at / CHUNK * X + n) * 2 + at / 4 % 2;
                in.x[place * LANES + at % CHUNK / 8] = prologue_4<INPUT>(p, v[i], other[i]);
            }
        }
        if (!is<NORMED_INPUT, INPUT>(p)) return;
        squares = warp_sum(squares);
        if (threadIdx.x % LANES == 0) in.squares[n * WARPS + threadIdx.x / LANES] = squares;
    }

    /* This thread's columns from `block` on; zeros beyond the matrix. */
    __device__ __forceinline__ static void load_units(const Product &p, const float *from,
                                                      int block, const Work &w, float4 *v) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int at = block + (i * THREADS + threadIdx.x) * 4;
            bool inside = at < w.chunks * CHUNK && w.first_chunk * CHUNK + at < p.columns;
            v[i] = inside ? load_4(from + at) : float4{0, 0, 0, 0};
        }
    }

    /* This lane's weights of a tile: [row]. */
    __device__ __forceinline__ static Tile take(const u8 *tile) {
        Tile t;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            t.piece[i] = ((const uint4 *)tile)[i * LANES + threadIdx.x % LANES];
        }
        return t;
    }

    /* sums += one tile. */
    template <int X>
    __device__ __forceinline__ static void add(const Work &, Cursor at, const Tile &t, Input in,
                                               const float *, Sums_<X> &sums) {
        int lane = threadIdx.x % LANES;
#pragma unroll
        for (int n = 0; n < X; n++) {
            const float4 *xs = in.x + (at.chunk * X + n) * 2 * LANES + lane;
            float4 a = xs[0], b = xs[LANES];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                uint4 w = t.piece[i];
                float sum = sums.sum[n][i];
                sum = add_pair(w.x, a.x, a.y, sum);
                sum = add_pair(w.y, a.z, a.w, sum);
                sum = add_pair(w.z, b.x, b.y, sum);
                sums.sum[n][i] = add_pair(w.w, b.z, b.w, sum);
            }
        }
    }

    __device__ __forceinline__ static float add_pair(u32 w, float x0, float x1, float sum) {
        sum = fmaf(__uint_as_float(w << 16), x0, sum);
        return fmaf(__uint_as_float(w & 0xFFFF0000u), x1, sum);
    }
};
