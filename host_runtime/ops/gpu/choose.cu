/* Choice of positions: the K largest of a row of scores, lower positions win ties.
 *
 * Keys of 32 bits compare as the scores do. Programs of KEYS positions each keep their keys in
 * registers and find the K-th largest in three digits: the highest 11 bits over all keys, the
 * other two over the keys that share the first digit, which are few as a rule (and may be all).
 * Counts are sums of integers, so their order does not matter. All programs meet twice.
 */
#include "support.cuh"

constexpr int THREADS = 256;
constexpr int PER_THREAD = 8;
constexpr int KEYS = THREADS * PER_THREAD; /* of a program */
constexpr int BINS = 2048;
constexpr int DIGIT = 11; /* bits */
constexpr int LOW_BITS = 32 - DIGIT;
constexpr int PROGRAMS_MAX = 512;
constexpr int KEPT_MAX = 6144; /* candidates in shared memory; more are read again */

/* Zero before the first launch; every launch leaves it so, but for the candidates. */
struct Workspace {
    u32 arrived, generation, unused[14];
    u32 bins[BINS];
    u32 above[PROGRAMS_MAX], candidates[PROGRAMS_MAX]; /* of each program */
    u32 keys[1];                                       /* [programs][KEYS]: candidates, in order */
};

struct Choice {
    const int *state;
    const float *scores;
    int *selected;
    Workspace *work;
    int wanted_max;
};

static_assert(sizeof(Choice) == CHOICE_BYTES, "index.py");

struct Shared {
    u32 bins[BINS];
    u32 kept[KEPT_MAX];
    u32 begin[PROGRAMS_MAX + 1]; /* of each program's candidates among all */
    u32 warps[THREADS / LANES];
    u32 bin, before; /* results of find_bin, and of sums */
};

/* All programs of the launch have come here. They run at the same time: the launcher asks for no
 * more than fit, and what comes after them in the stream cannot start before they have. */
__device__ __forceinline__ void meet(Workspace *work) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 generation = *(volatile u32 *)&work->generation;
        __threadfence();
        if (atomicAdd(&work->arrived, 1) == gridDim.x - 1) {
            work->arrived = 0;
            __threadfence();
            *(volatile u32 *)&work->generation = generation + 1;
        } else {
            u32 seen;
            do {
                seen = look_at((const int *)&work->generation);
            } while (seen == generation);
        }
        __threadfence();
    }
    __syncthreads();
}

/* Sum of the values of all earlier threads; `total` gets that of all. */
__device__ __forceinline__ u32 sum_before(u32 value, u32 *warps, u32 &total) {
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    u32 sum = value;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == LANES - 1) warps[warp] = sum;
    __syncthreads();
    u32 before = sum - value;
    total = 0;
    for (int i = 0; i < THREADS / LANES; i++) {
        if (i < warp) before += warps[i];
        total += warps[i];
    }
    return before;
}

/* The bin in which the `wanted`-th largest key lies; s.before = keys in higher bins. */
__device__ __forceinline__ u32 find_bin(Shared &s, const u32 *bins, bool global, u32 wanted) {
    u32 counts[BINS / THREADS], sum = 0, total;
    int first = BINS - 1 - threadIdx.x * (BINS / THREADS); /* from the highest down */
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) {
        counts[i] = global ? load_word(bins + first - i) : bins[first - i];
        sum += counts[i];
    }
    u32 before = sum_before(sum, s.warps, total);
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) {
        if (before < wanted && before + counts[i] >= wanted) {
            s.bin = first - i;
            s.before = before;
        }
        before += counts[i];
    }
    __syncthreads();
    return s.bin;
}

/* Keys that compare as the scores do; NaN as the least score, 0 beyond the last position. */
__device__ __forceinline__ u32 ordered(float score) {
    u32 bits = __float_as_uint((score == score ? score : -INFINITE) + 0.0f); /* no -0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ void load_keys(const Choice &c, int first, int count, u32 *keys) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += 4) {
        float4 v = {0, 0, 0, 0};
        if (first + i + 4 <= count) {
            v = load_4(c.scores + first + i);
        } else {
            if (first + i < count) v.x = load_1(c.scores + first + i);
            if (first + i + 1 < count) v.y = load_1(c.scores + first + i + 1);
            if (first + i + 2 < count) v.z = load_1(c.scores + first + i + 2);
        }
        keys[i] = first + i < count ? ordered(v.x) : 0;
        keys[i + 1] = first + i + 1 < count ? ordered(v.y) : 0;
        keys[i + 2] = first + i + 2 < count ? ordered(v.z) : 0;
        keys[i + 3] = first + i + 3 < count ? ordered(v.w) : 0;
    }
}

__device__ __forceinline__ void clear_bins(Shared &s) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
    __syncthreads();
}

/* Call f(key, whether an earlier program's) for each candidate: kept ones, or all of them. */
template <typename F>
__device__ __forceinline__ void for_candidates(const Shared &s, const u32 *keys, bool kept, F f) {
    if (kept) {
        for (u32 i = threadIdx.x; i < s.begin[gridDim.x]; i += THREADS) {
            f(s.kept[i], i < s.begin[blockIdx.x]);
        }
        return;
    }
    for (u32 program = threadIdx.x / LANES; program < gridDim.x; program += THREADS / LANES) {
        u32 count = s.begin[program + 1] - s.begin[program];
        for (u32 i = threadIdx.x % LANES; i < count; i += LANES) {
            f(load_word(keys + (u64)program * KEYS + i), program < blockIdx.x);
        }
    }
}

/* First digit: counts of all keys, then this program's candidates for the second one.
 * Returns the digit; s.before = keys above it. */
__device__ __forceinline__ u32 first_digit(const Choice &c, Shared &s, const u32 *keys,
                                           u32 wanted) {
    Workspace *work = c.work;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (keys[i]) atomicAdd(&s.bins[keys[i] >> LOW_BITS], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        if (s.bins[i]) atomicAdd(&work->bins[i], s.bins[i]);
    }
    meet(work);
    u32 digit = find_bin(s, work->bins, true, wanted);
    u32 counts = 0, total; /* above: upper half, candidates: lower half */
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        u32 own = keys[i] >> LOW_BITS;
        if (keys[i]) counts += own > digit ? 1 << 16 : own == digit;
    }
    u32 at = sum_before(counts, s.warps, total) & 0xFFFF;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (keys[i] && keys[i] >> LOW_BITS == digit) {
            work->keys[(u64)blockIdx.x * KEYS + at++] = keys[i];
        }
    }
    if (threadIdx.x == 0) {
        work->above[blockIdx.x] = total >> 16;
        work->candidates[blockIdx.x] = total & 0xFFFF;
    }
    meet(work);
    if (blockIdx.x == 0) { /* all have read them */
        for (int i = threadIdx.x; i < BINS; i += THREADS) work->bins[i] = 0;
    }
    return digit;
}

/* Where each program's candidates begin; returns the keys above in earlier programs. */
__device__ __forceinline__ u32 gather_counts(const Choice &c, Shared &s) {
    u32 above_before = 0, base = 0, total;
    for (u32 first = 0; first < gridDim.x; first += THREADS) {
        u32 program = first + threadIdx.x;
        bool inside = program < gridDim.x;
        u32 count = inside ? load_word(c.work->candidates + program) : 0;
        u32 above = program < blockIdx.x ? load_word(c.work->above + program) : 0;
        u32 begin = base + sum_before(count, s.warps, total);
        base += total;
        if (inside) s.begin[program + 1] = begin + count;
        sum_before(above, s.warps, total);
        above_before += total;
    }
    if (threadIdx.x == 0) s.begin[0] = 0;
    __syncthreads();
    return above_before;
}

__device__ __forceinline__ void keep_candidates(const Choice &c, Shared &s) {
    for (u32 program = threadIdx.x / LANES; program < gridDim.x; program += THREADS / LANES) {
        u32 begin = s.begin[program], count = s.begin[program + 1] - begin;
        const u32 *from = c.work->keys + (u64)program * KEYS;
        for (u32 i = threadIdx.x % LANES; i < count; i += LANES)
            s.kept[begin + i] = load_word(from + i);
    }
    __syncthreads();
}

/* This program's positions among the selected: keys above the threshold, and the first equal ones.
 */
__device__ __forceinline__ void write_chosen(const Choice &c, Shared &s, const u32 *keys,
                                             u32 threshold, u32 places, u32 above_before,
                                             u32 equal_before, int first) {
    u32 counts = 0, total; /* above: upper half, equal: lower half */
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        counts += keys[i] > threshold ? 1 << 16 : keys[i] == threshold;
    }
    u32 before = sum_before(counts, s.warps, total);
    u32 rank = equal_before + (before & 0xFFFF);
    u32 at = above_before + (before >> 16) + min(rank, places);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        bool equal = keys[i] == threshold;
        if (keys[i] > threshold || (equal && rank < places)) c.selected[at++] = first + i;
        rank += equal;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) choose_positions(Choice c) {
    __shared__ Shared s;
    release_next();
    clear_bins(s);
    wait_for_previous();
    int count = *(volatile const int *)(c.state + 1) + 1;
    u32 wanted = min(count, c.wanted_max), total;
    int first = blockIdx.x * KEYS + threadIdx.x * PER_THREAD;
    u32 keys[PER_THREAD];
    load_keys(c, first, count, keys);

    u32 threshold = first_digit(c, s, keys, wanted) << LOW_BITS;
    wanted -= s.before;
    u32 above_before = gather_counts(c, s);
    bool kept = s.begin[gridDim.x] <= KEPT_MAX;
    if (kept) keep_candidates(c, s);
    for (int shift = LOW_BITS - DIGIT; shift >= 0; shift = shift ? 0 : -1) {
        u32 known = shift ? LOW_BITS : LOW_BITS - DIGIT; /* bits below those that are settled */
        u32 mask = (1u << (known - shift)) - 1;
        clear_bins(s);
        for_candidates(s, c.work->keys, kept, [&](u32 key, bool) {
            if (key >> known == threshold >> known) atomicAdd(&s.bins[key >> shift & mask], 1);
        });
        __syncthreads();
        threshold |= find_bin(s, s.bins, false, wanted) << shift;
        wanted -= s.before; /* now of the keys that share these digits */
    }
    u32 above = 0, equal = 0; /* in earlier programs */
    for_candidates(s, c.work->keys, kept, [&](u32 key, bool before) {
        above += before && key > threshold;
        equal += before && key == threshold;
    });
    sum_before(above, s.warps, total);
    above_before += total;
    sum_before(equal, s.warps, total);
    write_chosen(c, s, keys, threshold, wanted, above_before, total, first);
}
