/* Arguments of a product, and how its tiles are shared out. */
#pragma once
#include "split.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * LANES;
constexpr int TILE = 2048; /* bytes */

/* A lane's part of a tile. */
struct Tile {
    uint4 piece[TILE / 16 / LANES];
};

/* ANY_INPUT: what Product.input says. */
enum { PLAIN_INPUT, NORMED_INPUT, SILU_INPUT, ANY_INPUT };

struct Product {
    const float *x, *gain;
    const u8 *codes;    /* [rows8, columns] */
    const float *scale; /* [rows8 / 128, columns / 128], both rounded up */
    const u16 *plain;   /* [plain_rows, columns] bf16 */
    /* The rows of x, split and with the norm's gain, one after the other; null: they are not.
     * `squares` add up to each row's sum of squares. */
    const uint4 *pieces;
    const float *piece_scales, *squares;
    float *y; /* [rows of x, y_stride]; a row is [parts, rows8 + plain_rows] */
    i64 x_stride, y_stride;
    int rows8, plain_rows, columns; /* columns: a multiple of 16 */
    int parts;
    int programs8, programs_plain; /* of each part */
    int stages;                    /* of a warp's ring: 3 to 6, or 2 */
    int input, square_count;
    float eps;
};

static_assert(sizeof(Product) == PRODUCT_BYTES, "product.py");

/* Where a program's or warp's work lies. Chunks are counted within the program's part. */
struct Work {
    int part, first_chunk, chunks; /* of the columns */
    int first_group, groups;       /* of the program */
    int tiles_begin, tiles_end;    /* of the warp, among groups * chunks */
    int scale_row, scale_rows;     /* rows of scales that the program needs */
};

__device__ __forceinline__ int share(int total, int index, int count) {
    return (int)((u32)total * (u32)index / (u32)count); /* the launcher sees that this fits */
}

template <typename Kind>
__device__ __forceinline__ Work find_work(const Product &p, int program, int programs) {
    Work w;
    int per_part = programs / p.parts, own = program % per_part;
    w.part = program / per_part;
    int chunks = (p.columns + CHUNK - 1) / CHUNK;
    w.first_chunk = share(chunks, w.part, p.parts);
    w.chunks = share(chunks, w.part + 1, p.parts) - w.first_chunk;
    int all = (Kind::rows(p) + Kind::ROWS - 1) / Kind::ROWS;
    w.first_group = share(all, own, per_part);
    w.groups = share(all, own + 1, per_part) - w.first_group;
    int tiles = w.groups * w.chunks, warp = threadIdx.x / LANES;
    w.tiles_begin = share(tiles, warp, WARPS);
    w.tiles_end = share(tiles, warp + 1, WARPS);
    int last_row = (w.first_group + w.groups) * Kind::ROWS - 1;
    w.scale_row = w.first_group * Kind::ROWS / 128;
    w.scale_rows = Kind::SCALED && w.groups ? last_row / 128 - w.scale_row + 1 : 0;
    return w;
}

/* A tile that is computed: which group and chunk, and where in the ring. */
struct Cursor {
    int group, chunk, stage;
    __device__ __forceinline__ void advance(const Work &w, int stages) {
        if (++chunk == w.chunks) {
            chunk = 0;
            group++;
        }
        if (++stage == stages) stage = 0;
    }
};

/* A tile that is asked for: this lane's first 16 bytes of it. */
struct Source {
    const u8 *from;
    int column, rows_left, chunk; /* rows_left: of the matrix from this lane's row on */
    u32 to;                       /* in shared memory */
    int stage;

    __device__ __forceinline__ void advance(const Work &w, int stages, int group_rows,
                                            i64 row_bytes, int chunk_bytes) {
        from += chunk_bytes;
        column += CHUNK;
        if (++chunk == w.chunks) {
            chunk = 0;
            column -= w.chunks * CHUNK;
            from += group_rows * row_bytes - w.chunks * chunk_bytes;
            rows_left -= group_rows;
        }
        to += TILE;
        if (++stage == stages) {
            stage = 0;
            to -= stages * TILE;
        }
    }
};

__device__ __forceinline__ float4 times_4(float4 a, float4 b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

/* Whether the input is of that kind: known when compiling, but for ANY_INPUT. */
template <int KIND, int INPUT> __device__ __forceinline__ bool is(const Product &p) {
    return INPUT == KIND || (INPUT == ANY_INPUT && p.input == KIND);
}

/* What becomes of four inputs before they are multiplied, but for the norm's factor. `other`: their
 * gains, or the other half of a gated MLP. */
template <int INPUT>
__device__ __forceinline__ float4 prologue_4(const Product &p, float4 v, float4 other) {
    if (is<PLAIN_INPUT, INPUT>(p)) return v;
    if (is<SILU_INPUT, INPUT>(p)) v = {silu(v.x), silu(v.y), silu(v.z), silu(v.w)};
    return times_4(v, other);
}

__device__ __forceinline__ float squares_of(float4 v) {
    return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}

/* The input in shared memory. */
struct Input {
    float4 *x;
    float *scale, *squares; /* [rows of x][2 * chunks], [rows of x][WARPS] */
};

/* What the sums of row n must be multiplied by if it shall be RMS-normed. */
template <int INPUT>
__device__ __forceinline__ float norm_factor(const Product &p, Input in, int n) {
    if (!is<NORMED_INPUT, INPUT>(p)) return 1.0f;
    float squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) squares += in.squares[n * WARPS + warp];
    return rsqrtf(squares / p.columns + p.eps);
}
