/* host_runtime/ops/gpu/machine.cuh for a CPU: the kernels' sources run as they are, by threads.
 *
 * A block's threads are fibers that change where they meet: at barriers, shuffles and matrix
 * products. Blocks run one after the other. Copies to shared memory that nobody has waited for
 * arrive as late as they may, or at once (emulate's `late`), so that both kinds of haste show.
 * Shared memory begins as NaN, and a block that writes behind its part of it is found out.
 */
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <ucontext.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int LANES = 32;

#define __CUDA_ARCH__ EMULATED_ARCH
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
#define BLOCK_MEMORY(name) u8 *name = emulator::block_memory

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};

namespace emulator {

constexpr u32 THREADS_MAX = 1024, STACK_BYTES = 64 * 1024, MEMORY_BYTES = 256 * 1024;
constexpr u32 WORDS = 6;    /* that a lane shows the others at once */
constexpr u32 GUARD = 4096; /* bytes behind a block's memory that nobody may write */

struct Copy {
    u8 *to;
    const void *from;
    bool valid;
};

/* Threads that meet. */
struct Barrier {
    u32 alive, arrived, generation;
};

struct Fiber {
    jmp_buf at;
    ucontext_t start;
    bool begun, done;
    const Barrier *waits;
    u32 generation, turn;
    std::vector<Copy> open;               /* copies of no group yet */
    std::deque<std::vector<Copy>> groups; /* the oldest first */
};

struct Index {
    u32 x;
};

alignas(1024) static u8 block_memory[MEMORY_BYTES + GUARD];
static std::vector<u8> stacks;
static Fiber fibers[THREADS_MAX];
static Barrier block_barrier, warp_barriers[THREADS_MAX / LANES];
static u32 shown[THREADS_MAX / LANES][2][LANES][WORDS];
static jmp_buf scheduler;
static u32 current;
static bool late;
static void (*body)(void *);
static void *body_argument;

} // namespace emulator

static emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

inline void apply(const Copy &copy) {
    static const u8 zeros[16] = {};
    memcpy(copy.to, copy.valid ? copy.from : zeros, 16);
}

inline void open_if_all_are_here(Barrier &barrier) {
    if (barrier.arrived && barrier.arrived == barrier.alive) {
        barrier.arrived = 0;
        barrier.generation++;
    }
}

inline void meet(Barrier &barrier) {
    Fiber &own = fibers[current];
    own.waits = &barrier;
    own.generation = barrier.generation;
    barrier.arrived++;
    open_if_all_are_here(barrier);
    if (barrier.generation == own.generation && !_setjmp(own.at)) _longjmp(scheduler, 1);
    fibers[current].waits = nullptr;
}

inline u32 warp_of(u32 thread) { return thread / LANES; }

/* What every lane of the warp shows; valid until the second next call. */
inline const u32 (*show(const u32 *words, u32 count)) [WORDS] {
    Fiber &own = fibers[current];
    u32 warp = warp_of(current), turn = own.turn ^= 1;
    memcpy(shown[warp][turn][current % LANES], words, count * sizeof(u32));
    meet(warp_barriers[warp]);
    return shown[warp][turn];
}

template <typename T>
inline T from_lane(T value, u32 lane) {
    static_assert(sizeof(T) == 4, "a word");
    u32 word;
    memcpy(&word, &value, 4);
    const u32(*all)[WORDS] = show(&word, 1);
    memcpy(&value, &all[lane][0], 4);
    return value;
}

inline void begin_fiber() {
    body(body_argument);
    Fiber &own = fibers[current];
    own.done = true;
    for (Barrier *barrier : {&block_barrier, &warp_barriers[warp_of(current)]}) {
        barrier->alive--;
        open_if_all_are_here(*barrier);
    }
    _longjmp(scheduler, 1);
}

inline void resume(u32 thread) {
    current = threadIdx.x = thread;
    Fiber &fiber = fibers[thread];
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks.data() + (size_t)thread * STACK_BYTES;
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, begin_fiber, 0);
    setcontext(&fiber.start);
}

inline bool can_run(const Fiber &fiber) {
    return !fiber.done && (!fiber.waits || fiber.waits->generation != fiber.generation);
}

/* 0, or 1: threads wait for each other for ever, 2: written behind the block's memory. */
inline int run_block(u32 threads, u32 memory_bytes) {
    memset(block_memory, 0xFF, memory_bytes);
    memset(block_memory + memory_bytes, 0x5A, GUARD);
    block_barrier = {threads, 0, 0};
    for (u32 warp = 0; warp * LANES < threads; warp++) {
        u32 lanes = threads - warp * LANES;
        warp_barriers[warp] = {lanes < LANES ? lanes : LANES, 0, 0};
    }
    for (u32 i = 0; i < threads; i++) {
        Fiber &f = fibers[i];
        f.begun = f.done = false;
        f.waits = nullptr;
        f.turn = 0;
        f.open.clear();
        f.groups.clear();
    }
    while (block_barrier.alive) {
        bool progress = false;
        for (u32 i = 0; i < threads; i++) {
            while (can_run(fibers[i])) {
                resume(i);
                progress = true;
            }
        }
        if (!progress) return 1;
    }
    for (u32 i = 0; i < GUARD; i++) {
        if (block_memory[memory_bytes + i] != 0x5A) return 2;
    }
    return 0;
}

/* A kernel and its arguments. */
template <typename... A> struct Call {
    void (*kernel)(A...);
    void **arguments;

    template <size_t... I> void run(std::index_sequence<I...>) { kernel(*(A *)arguments[I]...); }
    static void start(void *call) { ((Call *)call)->run(std::make_index_sequence<sizeof...(A)>()); }
};

template <typename... A>
inline int launch(void (*kernel)(A...), u32 blocks, u32 threads, u32 memory_bytes,
                  void **arguments) {
    Call<A...> call = {kernel, arguments};
    stacks.resize((size_t)THREADS_MAX * STACK_BYTES);
    body = Call<A...>::start;
    body_argument = &call;
    blockDim.x = threads;
    gridDim.x = blocks;
    for (u32 block = 0; block < blocks; block++) {
        blockIdx.x = block;
        if (int error = run_block(threads, memory_bytes)) return error;
    }
    return 0;
}

inline float half_value(u32 bits) {
    u16 low = (u16)bits;
    _Float16 half;
    memcpy(&half, &low, 2);
    return (float)half;
}

inline float bf16_value(u32 bits) {
    u32 word = (bits & 0xFFFF) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

inline u32 half_bits(float value) {
    _Float16 half = (_Float16)value;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}

inline u32 bf16_bits_of(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

/* m16n8k16, c += A B, the operands spread over the lanes as the hardware has them. */
template <float VALUE(u32)> inline void multiply(float *c, const u32 *a, u32 b0, u32 b1) {
    u32 own[WORDS] = {a[0], a[1], a[2], a[3], b0, b1};
    const u32(*all)[WORDS] = show(own, WORDS);
    u32 lane = current % LANES;
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (u32 k = 0; k < 16; k++) {
            u32 holder = k % 8 / 2, shift = k % 2 * 16, upper = k / 8;
            float left = VALUE(all[row % 8 * 4 + holder][row / 8 + upper * 2] >> shift);
            float right = VALUE(all[column * 4 + holder][4 + upper] >> shift);
            sum += (double)left * right;
        }
        c[i] = (float)sum;
    }
}

inline u8 *shared_pointer(u32 address) { return block_memory + (std::int32_t)address; }

inline void load_matrices(u32 *m, u32 address, bool turned) {
    const u32(*all)[WORDS] = show(&address, 1);
    u32 lane = current % LANES;
    for (u32 i = 0; i < 4; i++) {
        u32 word = 0;
        for (u32 j = 0; j < 2; j++) {
            u32 row = lane / 4, column = lane % 4 * 2 + j;
            if (turned) std::swap(row, column);
            u16 element;
            memcpy(&element, shared_pointer(all[i * 8 + row][0]) + column * 2, 2);
            word |= (u32)element << j * 16;
        }
        m[i] = word;
    }
}

} // namespace emulator

/* ---- what CUDA has without a header ---- */
inline void __syncthreads() { emulator::meet(emulator::block_barrier); }
inline void __syncwarp() {
    emulator::meet(emulator::warp_barriers[emulator::warp_of(emulator::current)]);
}
inline void __threadfence() {}
inline void __threadfence_system() {}
template <typename T> inline T __shfl_sync(u32, T value, u32 lane) {
    return emulator::from_lane(value, lane % LANES);
}
template <typename T> inline T __shfl_xor_sync(u32, T value, u32 mask) {
    return emulator::from_lane(value, (threadIdx.x % LANES) ^ mask);
}
template <typename T> inline T __shfl_up_sync(u32, T value, u32 step) {
    u32 lane = threadIdx.x % LANES;
    return emulator::from_lane(value, lane < step ? lane : lane - step);
}
inline u32 __reduce_max_sync(u32, u32 value) {
    const u32(*all)[emulator::WORDS] = emulator::show(&value, 1);
    for (int lane = 0; lane < LANES; lane++) value = all[lane][0] > value ? all[lane][0] : value;
    return value;
}
inline u32 __reduce_min_sync(u32, u32 value) {
    const u32(*all)[emulator::WORDS] = emulator::show(&value, 1);
    for (int lane = 0; lane < LANES; lane++) value = all[lane][0] < value ? all[lane][0] : value;
    return value;
}
template <typename T> inline T atomicAdd(T *at, T value) {
    T before = *at;
    *at += value;
    return before;
}
inline u32 atomicAdd(u32 *at, int value) { return atomicAdd(at, (u32)value); }
inline u32 __float_as_uint(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline u32 __byte_perm(u32 x, u32 y, u32 selector) {
    u64 bytes = (u64)y << 32 | x;
    u32 found = 0;
    for (int i = 0; i < 4; i++) {
        found |= (u32)(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    }
    return found;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }

/* ---- what host_runtime/ops/gpu/machine.cuh has ---- */
inline void release_next() {}
inline void wait_for_previous() {}

inline u32 shared_address(const void *pointer) {
    return (u32)((const u8 *)pointer - emulator::block_memory);
}

inline void copy_16(u32 shared, const void *global, bool valid) {
    emulator::Copy copy = {emulator::shared_pointer(shared), global, valid};
    if (((uintptr_t)copy.to | (uintptr_t)global) % 16) {
        fprintf(stderr, "a copy of 16 bytes is not aligned\n");
        abort();
    }
    if (!emulator::late) emulator::apply(copy);
    emulator::fibers[emulator::current].open.push_back(copy);
}

inline void commit_copies() {
    emulator::Fiber &own = emulator::fibers[emulator::current];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}

template <int N> inline void wait_for_copies() {
    emulator::Fiber &own = emulator::fibers[emulator::current];
    while (own.groups.size() > N) {
        for (const emulator::Copy &copy : own.groups.front()) {
            if (emulator::late) emulator::apply(copy);
        }
        own.groups.pop_front();
    }
}

template <typename T> inline T load_aligned(const void *pointer) {
    if ((uintptr_t)pointer % alignof(T)) {
        fprintf(stderr, "a load of %zu bytes is not aligned\n", sizeof(T));
        abort();
    }
    return *(const T *)pointer;
}
inline float4 load_4(const float *pointer) { return load_aligned<float4>(pointer); }
inline float2 load_2(const float *pointer) { return load_aligned<float2>(pointer); }
inline float load_1(const float *pointer) { return *pointer; }
inline uint4 load_16(const void *pointer) { return load_aligned<uint4>(pointer); }
inline u32 load_word(const u32 *pointer) { return *pointer; }
inline float4 load_host_4(const float *pointer) { return load_aligned<float4>(pointer); }
inline int look_at_host(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
inline int look_at(const int *flag) { return look_at_host(flag); }
inline void raise_flag(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline void raise_flag_for_host(int *flag, int value) { raise_flag(flag, value); }

inline void unpack_half2(u32 bits, float &low, float &high) {
    low = emulator::half_value(bits);
    high = emulator::half_value(bits >> 16);
}
inline u32 half2_bits(float low, float high) {
    return emulator::half_bits(low) | emulator::half_bits(high) << 16;
}
inline u32 bf16_pair(float low, float high) {
    return emulator::bf16_bits_of(low) | emulator::bf16_bits_of(high) << 16;
}

#if __CUDA_ARCH__ >= 890
constexpr float CODE_FACTOR = 1.0f;
#else
constexpr float CODE_FACTOR = 256.0f;
#endif

/* Four E4M3 codes as two pairs of halves, to be multiplied by CODE_FACTOR. */
inline void halves_of_4(u32 codes, u32 &low, u32 &high) {
    u32 half[4];
    for (int i = 0; i < 4; i++) {
        u32 code = codes >> 8 * i & 0xFF, exponent = code >> 3 & 15, mantissa = code & 7;
        float value = exponent ? ldexpf(8.0f + mantissa, (int)exponent - 10) : ldexpf(mantissa, -9);
        if ((code & 0x7F) == 0x7F) value = NAN;
        half[i] = emulator::half_bits((code & 0x80 ? -value : value) / CODE_FACTOR);
    }
    low = half[0] | half[1] << 16;
    high = half[2] | half[3] << 16;
}

inline void load_matrices(u32 *m, u32 shared) { emulator::load_matrices(m, shared, false); }
inline void load_matrices_turned(u32 *m, u32 shared) { emulator::load_matrices(m, shared, true); }
inline void multiply_bf16(float *c, const u32 *a, u32 b0, u32 b1) {
    emulator::multiply<emulator::bf16_value>(c, a, b0, b1);
}
inline void multiply_half(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 a[4] = {a0, a1, a2, a3};
    emulator::multiply<emulator::half_value>(c, a, b0, b1);
}
