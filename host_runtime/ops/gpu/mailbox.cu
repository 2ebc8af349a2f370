/* Wait for an expert call's answer and bring it to the card (mailbox.py has the protocol). */
#include "support.cuh"

struct Answer {
    int *sequence; /* [3]: the newest call, whether a wait was given up, the call taken last */
    const int *answered; /* in pinned host memory, as the result */
    const float *result; /* [size] */
    float *out;          /* [size] on the card */
    int size, looks_max;
};

static_assert(sizeof(Answer) == ANSWER_BYTES, "mailbox.py");

__device__ __forceinline__ int look_at_host(const int *flag) {
    int seen;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    return seen;
}

/* One thread looks over the bus, where looks queue up; the other blocks look at what it found. */
__device__ __forceinline__ void await_answer(const Answer &a) {
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

/* Many blocks, because one multiprocessor has few reads on the bus at a time. */
extern "C" __global__ void take_answer(Answer a) {
    release_next();
    wait_for_previous();
    if (threadIdx.x == 0) await_answer(a);
    __syncthreads();
    int step = gridDim.x * blockDim.x * 4;
    for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4; at < a.size; at += step) {
        float4 v;
        asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "l"(a.result + at)
                     : "memory");
        *(float4 *)(a.out + at) = v;
    }
}
