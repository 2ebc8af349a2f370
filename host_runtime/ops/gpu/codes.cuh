/* FP8 rows: the matrix units multiply codes, as halves, with x in three halves (split.cuh).
 * Products are exact, sums are float32.
 *
 * A tile is 8 rows of 256 columns, as A of m16n8k16 steps: rows 0 to 7 are the rows' first 128
 * columns, rows 8 to 15 the other 128. Columns 0 to 2 of B are the parts of x for the first 128,
 * columns 3 to 5 for the others; what the halves of A and B make crosswise is not used. Which of
 * the 128 columns a step takes is free as long as both operands agree: lane l holds 16 columns of
 * row l / 4, from 64 h + 16 (l % 4) on, as one load of 16 bytes, and gives 4 to each of 4 steps.
 */
#pragma once
#include "split.cuh"
#include "tiles.cuh"

constexpr int HELD = 4; /* pieces of 8 columns of x a thread */
constexpr int CODES_COLUMNS_MAX = HELD * 8 * THREADS;

struct Codes {
    static constexpr int ROWS = 8;
    static constexpr bool SCALED = true;

    /* Lane l has rows l / 4 (and 8 more) times columns 2 (l % 4) and the next one of B. */
    template <int X> struct Sums_ {
        float sum[X][4];

        template <typename F> __device__ __forceinline__ void finish(F store) {
            int lane = threadIdx.x % LANES, own = lane / 4 * 4;
#pragma unroll
            for (int n = 0; n < X; n++) {
                float *s = sum[n];
                float first = at(s[0], own + 1) + at(s[1], own) + at(s[0], own);
                float other = at(s[3], own + 2) + at(s[2], own + 2) + at(s[3], own + 1);
                if (lane % 4 == n) store(n, lane / 4, first + other);
                s[0] = s[1] = s[2] = s[3] = 0.0f;
            }
        }

        __device__ __forceinline__ static float at(float value, int lane) {
            return __shfl_sync(0xFFFFFFFFu, value, lane);
        }
    };

    __device__ static int rows(const Product &p) { return p.rows8; }
    __device__ static int first_row(const Product &) { return 0; }

    /* A ring's place of 16 bytes: odd rows have their halves exchanged, so that the 8 lanes that
     * read at once (two rows, 64 bytes of each) hit all banks. */
    __device__ static int place(int row, int piece) { return row * 16 + (piece ^ (row % 2 * 4)); }

    __device__ __forceinline__ static Source source(const Product &p, const Work &w, u32 ring) {
        int lane = threadIdx.x % LANES, row = lane / 16, piece = lane % 16;
        int group = w.tiles_begin / w.chunks, chunk = w.tiles_begin % w.chunks;
        Source s;
        s.column = (w.first_chunk + chunk) * CHUNK + piece * 16;
        row += (w.first_group + group) * ROWS;
        s.from = p.codes + (i64)row * p.columns + s.column;
        s.rows_left = p.rows8 - row;
        s.chunk = chunk;
        s.to = ring + place(lane / 16, piece) * 16;
        s.stage = 0;
        return s;
    }

    /* Ask for the tile and go on to the next one. */
    __device__ __forceinline__ static void fetch(const Product &p, const Work &w, Source &s) {
        const u8 *from = s.from;
#pragma unroll
        for (int i = 0; i < ROWS; i += 2) {
            bool valid = i < s.rows_left && s.column < p.columns;
            copy_16(s.to + i * CHUNK, valid ? from : p.codes, valid);
            from += 2 * p.columns;
        }
        s.advance(w, p.stages, ROWS, p.columns, CHUNK);
    }

    /* Scales [scale_rows][2 * chunks] of this program's rows, zeros beyond the matrix. */
    __device__ __forceinline__ static void load_scales(const Product &p, const Work &w,
                                                       float *scales) {
        int blocks = (p.columns + 127) / 128, stride = w.chunks * 2;
        for (int at = threadIdx.x; at < w.scale_rows * stride; at += THREADS) {
            int row = w.scale_row + at / stride, column = w.first_chunk * 2 + at % stride;
            bool inside = column < blocks && row * 128 < p.rows8;
            float scale = inside ? p.scale[(i64)row * blocks + column] : 0.0f;
            scales[at] = scale * CODE_FACTOR;
        }
    }

    /* Row n of x into shared memory, in pieces, with the powers of two that its blocks of 128
     * columns were divided by, and each warp's sum of squares. Waits before the first row. */
    template <int X, int INPUT>
    __device__ __forceinline__ static void load(const Product &p, const Work &w, int n, Input in) {
        constexpr int EACH = INPUT == ANY_INPUT ? 1 : HELD;
        if (INPUT == ANY_INPUT && p.pieces) {
            load_split(p, w, n, in);
            return;
        }
        int begin = w.first_chunk * CHUNK, count = w.chunks * CHUNK;
        const float *x = p.x + n * p.x_stride;
        float4 v[EACH][2], other[EACH][2];
        if (is<NORMED_INPUT, INPUT>(p)) load_pieces<EACH>(p, p.gain + begin, count, begin, other);
        if (n == 0) wait_for_previous();
        load_pieces<EACH>(p, x + begin, count, begin, v);
        if (is<SILU_INPUT, INPUT>(p)) {
            load_pieces<EACH>(p, x + p.columns + begin, count, begin, other);
        }
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= count) break; /* a whole block of 128 columns at a time */
            float most = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 &u = v[i][half];
                if (is<NORMED_INPUT, INPUT>(p)) squares += squares_of(u);
                u = prologue_4<INPUT>(p, u, other[i][half]);
                most = fmaxf(most, largest_of(u));
            }
#pragma unroll
            for (int step = 8; step; step /= 2) {
                most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
            }
            u32 exponent = block_exponent(most);
            store_pieces((uint4 *)in.x + n * x_units(w), at, v[i], scale_up(exponent));
            if (at % 128 == 0) in.scale[n * w.chunks * 2 + at / 128] = scale_back(exponent);
        }
        if (!is<NORMED_INPUT, INPUT>(p)) return;
        squares = warp_sum(squares);
        if (threadIdx.x % LANES == 0) in.squares[n * WARPS + threadIdx.x / LANES] = squares;
    }

    /* Row n of x, which its maker has split, in whole chunks. Waits before the first row. */
    __device__ __forceinline__ static void load_split(const Product &p, const Work &w, int n,
                                                      Input in) {
        constexpr int EACH = CODES_COLUMNS_MAX / CHUNK * CHUNK_UNITS / THREADS;
        constexpr int SQUARES = CODES_COLUMNS_MAX / 128 / LANES; /* one of each block of 128 */
        int units = x_units(w), lane = threadIdx.x % LANES, all_chunks = p.columns / CHUNK;
        const uint4 *from = p.pieces + (n * all_chunks + w.first_chunk) * CHUNK_UNITS + threadIdx.x;
        const float *scales = p.piece_scales + (n * all_chunks + w.first_chunk) * 2;
        uint4 *to = (uint4 *)in.x + n * units + threadIdx.x;
        uint4 v[EACH];
        float scale = 0.0f, square[SQUARES] = {}, squares = 0.0f;
        if (n == 0) wait_for_previous();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * THREADS + threadIdx.x < units) v[i] = load_16(from + i * THREADS);
        }
        bool scaled = threadIdx.x < w.chunks * 2;
        if (scaled) scale = load_1(scales + threadIdx.x);
#pragma unroll
        for (int i = 0; i < SQUARES; i++) {
            int at = i * LANES + lane;
            if (at < p.square_count) square[i] = load_1(p.squares + n * p.square_count + at);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * THREADS + threadIdx.x < units) to[i * THREADS] = v[i];
        }
        if (scaled) in.scale[n * w.chunks * 2 + threadIdx.x] = scale;
#pragma unroll
        for (int i = 0; i < SQUARES; i++) squares += square[i];
        squares = warp_sum(squares);
        if (threadIdx.x < WARPS) {
            in.squares[n * WARPS + threadIdx.x] = threadIdx.x ? 0.0f : squares;
        }
    }

    /* This thread's columns of a row that begins at `from`; zeros beyond the matrix. */
    template <int EACH>
    __device__ __forceinline__ static void load_pieces(const Product &p, const float *from,
                                                       int count, int begin, float4 (*v)[2]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = (i * THREADS + threadIdx.x) * 8;
            bool inside = at < count && begin + at < p.columns; /* a multiple of 16 */
            v[i][0] = inside ? load_4(from + at) : float4{0, 0, 0, 0};
            v[i][1] = inside ? load_4(from + at + 4) : float4{0, 0, 0, 0};
        }
    }

    /* 8 columns from `at` on, a multiple of 8. */
    __device__ __forceinline__ static void store_pieces(uint4 *shared, int at, const float4 *v,
                                                        float up) {
        HalfPieces s;
        u32 *h = (u32 *)&s.part[0], *m = (u32 *)&s.part[1], *l = (u32 *)&s.part[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float4 u = v[half];
            split_2(u.x * up, u.y * up, h[2 * half], m[2 * half], l[2 * half]);
            split_2(u.z * up, u.w * up, h[2 * half + 1], m[2 * half + 1], l[2 * half + 1]);
        }
        uint4 *to = shared + piece_unit(at);
#pragma unroll
        for (int part = 0; part < PARTS_OF_X; part++) to[part * 4] = s.part[part];
    }

    /* Units of 16 bytes of one row of x. */
    __device__ __forceinline__ static int x_units(const Work &w) { return w.chunks * CHUNK_UNITS; }

    /* This lane's weights of a tile: [64 of 128][which 128]. */
    __device__ __forceinline__ static Tile take(const u8 *tile) {
        int lane = threadIdx.x % LANES, row = lane / 4, q = lane % 4;
        const uint4 *pieces = (const uint4 *)tile;
        Tile t;
#pragma unroll
        for (int i = 0; i < 4; i++) t.piece[i] = pieces[place(row, i / 2 * 4 + i % 2 * 8 + q)];
        return t;
    }

    /* sums += one tile. */
    template <int X>
    __device__ __forceinline__ static void add(const Work &w, Cursor at, const Tile &t, Input in,
                                               const float *scales, Sums_<X> &sums) {
        int lane = threadIdx.x % LANES, row = lane / 4, q = lane % 4;
        int column = row < 2 * PARTS_OF_X ? row : row - 2 * PARTS_OF_X; /* of B; 6 and 7 unused */
        const uint4 *xs = (const uint4 *)in.x + (at.chunk * 8 * PARTS_OF_X + column) * 4 + q;
        float c[X][2][4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 first = t.piece[h * 2], other = t.piece[h * 2 + 1];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 a[2][4]; /* of two steps */
                halves_of_4(half ? first.z : first.x, a[0][0], a[0][2]);
                halves_of_4(half ? other.z : other.x, a[0][1], a[0][3]);
                halves_of_4(half ? first.w : first.y, a[1][0], a[1][2]);
                halves_of_4(half ? other.w : other.y, a[1][1], a[1][3]);
#pragma unroll
                for (int n = 0; n < X; n++) {
                    uint4 b = xs[n * x_units(w) + (h * 2 + half) * 2 * PARTS_OF_X * 4];
                    multiply_half(c[n][0], a[0][0], a[0][1], a[0][2], a[0][3], b.x, b.y);
                    multiply_half(c[n][1], a[1][0], a[1][1], a[1][2], a[1][3], b.z, b.w);
                }
            }
        }
        int scale_row = (w.first_group + at.group) * ROWS / 128 - w.scale_row;
        float2 scale = ((const float2 *)scales)[scale_row * w.chunks + at.chunk];
#pragma unroll
        for (int n = 0; n < X; n++) {
            float2 of_x = ((const float2 *)in.scale)[n * w.chunks + at.chunk];
            float first = scale.x * of_x.x, other = scale.y * of_x.y, *s = sums.sum[n];
            s[0] = fmaf(first, c[n][0][0] + c[n][1][0], s[0]);
            s[1] = fmaf(first, c[n][0][1] + c[n][1][1], s[1]);
            s[2] = fmaf(other, c[n][0][2] + c[n][1][2], s[2]);
            s[3] = fmaf(other, c[n][0][3] + c[n][1][3], s[3]);
        }
    }
};
