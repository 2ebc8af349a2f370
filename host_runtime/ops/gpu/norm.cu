/* x += the sum of parts; out = rms_norm(x) * gain (norm.py). One block a row, which it holds. */
#include "support.cuh"

constexpr int THREADS = 512;
constexpr int HELD = 4; /* units of 4 elements a thread */

struct AddNorm {
    float *x;
    const float *added, *also, *gain; /* also: null, or as x */
    float *out;
    int size, parts; /* parts: of `added`, for one row */
    float eps;
};
static_assert(sizeof(AddNorm) == ADDNORM_BYTES, "norm.py");

extern "C" __global__ void __launch_bounds__(THREADS, 2) add_norm(AddNorm a) {
    __shared__ float sums[THREADS / LANES];
    float4 v[HELD], gain[HELD];
    i64 row = (i64)blockIdx.x * a.size;
    release_next();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = (i * THREADS + threadIdx.x) * 4;
        if (at < a.size) gain[i] = *(const float4 *)(a.gain + at);
    }
    wait_for_previous();
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = (i * THREADS + threadIdx.x) * 4;
        v[i] = {0, 0, 0, 0};
        if (at >= a.size) continue;
        float4 added = load_4(a.added + row + at);
        for (int part = 1; part < a.parts; part++) {
            add_4(added, load_4(a.added + part * a.size + at));
        }
        if (a.also) add_4(added, load_4(a.also + row + at));
        v[i] = load_4(a.x + row + at);
        add_4(v[i], added);
        *(float4 *)(a.x + row + at) = v[i];
        squares += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = squares;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / LANES; warp++) total += sums[warp];
    float factor = rsqrtf(total / a.size + a.eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = (i * THREADS + threadIdx.x) * 4;
        if (at >= a.size) continue;
        float4 g = gain[i], u = v[i];
        *(float4 *)(a.out + row + at) = {u.x * factor * g.x, u.y * factor * g.y, u.z * factor * g.z,
                                         u.w * factor * g.w};
    }
}
