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

__device__ __forceinline__ int look_at_host(const int *flag) {
    int seen;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    return seen;
}

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
        asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(a.sequence + 2), "r"(number)
                     : "memory");
        return;
    }
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(seen)
                     : "l"(a.sequence + 2)
                     : "memory");
    } while (seen != number);
}

/* Over the bus. Many blocks read, because one multiprocessor has few such reads at a time. */
__device__ __forceinline__ float4 load_host_4(const float *pointer) {
    float4 v;
    asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}

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
