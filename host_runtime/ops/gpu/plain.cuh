/* bf16 rows: products and sums in float32. Lane l has columns 8 l to 8 l + 7 of a chunk. */
#pragma once
#include "tiles.cuh"

struct Plain {
    static constexpr int ROWS = 4;
    static constexpr bool SCALED = false;

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
        if (n == 0) wait_for_previous();
#pragma unroll 4
        for (int at = threadIdx.x * 4; at < count; at += THREADS * 4) {
            float4 v = {0, 0, 0, 0}, other = v;
            if (begin + at < p.columns) {
                v = load_4(x + at);
                if (is<NORMED_INPUT, INPUT>(p)) other = load_4(p.gain + begin + at);
                if (is<SILU_INPUT, INPUT>(p)) other = load_4(x + p.columns + at);
            }
            if (is<NORMED_INPUT, INPUT>(p)) squares += squares_of(v);
            int place = (at / CHUNK * X + n) * 2 + at / 4 % 2;
            in.x[place * LANES + at % CHUNK / 8] = prologue_4<INPUT>(p, v, other);
        }
        if (!is<NORMED_INPUT, INPUT>(p)) return;
        squares = warp_sum(squares);
        if (threadIdx.x % LANES == 0) in.squares[n * WARPS + threadIdx.x / LANES] = squares;
    }

    /* sums += one tile. */
    template <int X>
    __device__ __forceinline__ static void add(const Work &, Cursor at, const u8 *tile, Input in,
                                               const float *, Sums_<X> &sums) {
        int lane = threadIdx.x % LANES;
#pragma unroll
        for (int n = 0; n < X; n++) {
            const float4 *xs = in.x + (at.chunk * X + n) * 2 * LANES + lane;
            float4 a = xs[0], b = xs[LANES];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                uint4 w = ((const uint4 *)tile)[i * LANES + lane];
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
