/* x += a product's parts, and the answer of an expert call, for which it waits (mailbox.py has the
 * protocol). Four elements a thread. The next products' input is made of it on the way. */
#include "split.cuh"

struct Addition {
    int *sequence; /* [3]: newest call, whether a wait was given up, call taken last; null: none */
    const int *answered; /* in pinned host memory, as the result */
    const float *result; /* [size] */
    float *x;            /* [size] */
    const float *added;  /* [parts, size] */
    /* x * gain, split, and each warp's sum of squares of x; pieces null: not wanted */
    const float *gain;
    uint4 *pieces;
    float *piece_scales, *squares;
    int size, parts, looks_max;
};
static_assert(sizeof(Addition) == ADDITION_BYTES, "mailbox.py");

/* One thread looks over the bus, where looks queue up; the other blocks look at what it found. */
__device__ __forceinline__ void await_answer(const Addition &a) {
    int number = *(volatile int *)a.sequence, seen;
    if (blockIdx.x == 0) {
        int looks = 0;
        while (look_at_host(a.answered) != number) {
            if (++looks == a.looks_max) {
                *(volatile int *)(a.sequence + 1) = 1;
                break;
            }
        }
        raise_flag(a.sequence + 2, number);
        return;
    }
    do {
        seen = look_at(a.sequence + 2);
    } while (seen != number);
}

/* Many blocks read the result: one multiprocessor has few reads of host memory at a time. */
extern "C" __global__ void add_parts(Addition a) {
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    bool inside = at < a.size;
    float4 sum = {0, 0, 0, 0}, x = sum, gain = sum;
    release_next();
    if (a.pieces && inside) gain = *(const float4 *)(a.gain + at);
    wait_for_previous();
    if (inside) {
        x = load_4(a.x + at);
        sum = load_4(a.added + at);
        for (int part = 1; part < a.parts; part++) add_4(sum, load_4(a.added + part * a.size + at));
    }
    if (a.sequence) {
        if (threadIdx.x == 0) await_answer(a);
        __syncthreads();
        if (inside) add_4(sum, load_host_4(a.result + at));
    }
    add_4(x, sum);
    if (inside) *(float4 *)(a.x + at) = x;
    if (!a.pieces || !inside) return; /* whole warps: then the size is a multiple of 256 */
    float squares = warp_sum(x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w));
    if (threadIdx.x % LANES == 0) a.squares[at / 128] = squares;
    split_block(a.pieces, a.piece_scales, at,
                {x.x * gain.x, x.y * gain.y, x.z * gain.z, x.w * gain.w});
}
