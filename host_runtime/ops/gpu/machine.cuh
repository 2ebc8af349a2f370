/* What a multiprocessor does for the CUDA C++ kernels and C++ has no words for: one function each.
 * Nothing else holds assembly, so that tests can put an emulation in the place of this file
 * (tests/gpu/emulator). */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int LANES = 32;

/* A block's memory of the size that the launch gives. */
#define BLOCK_MEMORY(name) extern __shared__ __align__(16) u8 name[]

/* Let the next kernel of the chain start: it may load constants, and waits before anything else. */
__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Wait until all earlier kernels of the chain are complete and their results can be seen. */
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

/* 16 bytes from global to shared memory, past the first-level cache; zeros where not `valid`. */
__device__ __forceinline__ void copy_16(u32 shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most N of this thread's groups of copies are on their way. */
template <int N> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Loads that see what other multiprocessors wrote: from the second-level cache. */
__device__ __forceinline__ float4 load_4(const float *pointer) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}

__device__ __forceinline__ float load_1(const float *pointer) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(pointer) : "memory");
    return v;
}

__device__ __forceinline__ float2 load_2(const float *pointer) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "l"(pointer)
                 : "memory");
    return v;
}

/* Stays where it is written, before a wait too. */
__device__ __forceinline__ uint4 load_16(const void *pointer) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}

/* Two floats of a half2's bits. */
__device__ __forceinline__ void unpack_half2(u32 bits, float &low, float &high) {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(low), "=f"(high)
        : "r"(bits));
}

/* E4M3 as the hardware decodes it, or by moving the bits into a half: then 256 times too small. */
#if __CUDA_ARCH__ >= 890
constexpr float CODE_FACTOR = 1.0f;
#else
constexpr float CODE_FACTOR = 256.0f;
#endif

/* Four E4M3 codes as two pairs of halves, to be multiplied by CODE_FACTOR. */
__device__ __forceinline__ void halves_of_4(u32 codes, u32 &low, u32 &high) {
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; "
        "cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#else
    low = __byte_perm(codes, 0, 0x1404); /* bytes 0 and 1, each above an empty byte */
    high = __byte_perm(codes, 0, 0x3424);
    low = (low & 0x80008000u) | ((low & 0x7F007F00u) >> 1);
    high = (high & 0x80008000u) | ((high & 0x7F007F00u) >> 1);
#endif
}

__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* Four matrices of 8 rows of 16 bytes, whose addresses lanes 8 i to 8 i + 7 have for matrix i. */
__device__ __forceinline__ void load_matrices(u32 *m, u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(u32 *m, u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared)
                 : "memory");
}

/* c += A B */
__device__ __forceinline__ void multiply_bf16(float *c, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats, rounded to halves. */
__device__ __forceinline__ u32 half2_bits(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* c += A B */
__device__ __forceinline__ void multiply_half(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                              u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A flag in pinned host memory, and what was written before it was raised. */
__device__ __forceinline__ int look_at_host(const int *flag) {
    int seen;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    return seen;
}

/* Pinned host memory, over the bus. */
__device__ __forceinline__ float4 load_host_4(const float *pointer) {
    float4 v;
    asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}

__device__ __forceinline__ u32 load_word(const u32 *pointer) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(pointer) : "memory");
    return v;
}

/* A flag that another block raises, and what it wrote before. */
__device__ __forceinline__ int look_at(const int *flag) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    return seen;
}

__device__ __forceinline__ void raise_flag(int *flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/* The same in pinned host memory. */
__device__ __forceinline__ void raise_flag_for_host(int *flag, int value) {
    asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
