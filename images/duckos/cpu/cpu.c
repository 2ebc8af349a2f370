/* SPDX-License-Identifier: Apache-2.0
 *
 * What the processor can do, and putting each core into the state that the OS and kernels rely on.
 */
#include "cpu/cpu.h"

#include "console/console.h"
#include "cpu/inside.h"
#include "cpu/msr.h"
#include "panic/panic.h"

#include <string.h>

/* Control registers (SDM volume 3, 2.5). */
#define CR0_PROTECTED (1ull << 0)
#define CR0_MONITOR (1ull << 1)
#define CR0_EXTENSION (1ull << 4)
#define CR0_NUMERIC_ERROR (1ull << 5)
#define CR0_WRITE_PROTECT (1ull << 16)
#define CR0_ALIGNMENT (1ull << 18)
#define CR0_PAGING (1ull << 31)
#define CR4_PAE (1ull << 5)
#define CR4_MACHINE_CHECK (1ull << 6)
#define CR4_GLOBAL (1ull << 7)
#define CR4_FXSR (1ull << 9)
#define CR4_SIMD_EXCEPTIONS (1ull << 10)
#define CR4_UMIP (1ull << 11)
#define CR4_XSAVE (1ull << 18)
#define CR4_SMEP (1ull << 20)
#define CR4_SMAP (1ull << 21)
#define EFER_NO_EXECUTE (1ull << 11)

#define STATE_X87_SSE_AVX 7ull
#define FXSAVE_BYTES 512u

static struct cpu_features features;
static bool has_xsave;

/* What BearSSL's stack protection reads at %fs:0x28. */
static struct {
    uint64_t unused[5];
    uint64_t canary;
} stack_word = {.canary = 0x7d0c6b1ea59f3200ull};

/* A state area in which everything has its initial value (SDM volume 1, 13.6). */
static uint8_t start_state[CPU_STATE_BYTES_MAX] __attribute__((aligned(64)));

static bool bit(uint32_t word, uint32_t index) { return (word >> index & 1u) != 0; }

bool cpu_has_1g_pages(void) { return bit(cpuid(0x80000001, 0).d, 26); }

/* SDM volume 3, 12.12.2: what PWT and PCD in an entry mean, a byte each. As after power-on (WB, WT,
 * UC-, UC, ...), but PWT alone is write-combining. */
#define PAT_WITH_COMBINING 0x0007040600070106ull

void cpu_allow_page_rights(void) {
    uint64_t cr0, cr4;
    /* Without PGE, loading CR3 forgets the firmware's global pages, too. */
    __asm__ volatile("movq %%cr4, %0" : "=r"(cr4));
    __asm__ volatile("movq %0, %%cr4" ::"r"(cr4 & ~CR4_GLOBAL));
    msr_write(MSR_EFER, msr_read(MSR_EFER) | EFER_NO_EXECUTE);
    msr_write(MSR_PAT, PAT_WITH_COMBINING);
    __asm__ volatile("movq %%cr0, %0" : "=r"(cr0));
    __asm__ volatile("movq %0, %%cr0" ::"r"(cr0 | CR0_WRITE_PROTECT));
}

void cpu_use_tables(uint64_t root) { __asm__ volatile("movq %0, %%cr3" ::"r"(root) : "memory"); }

void cpu_flush_page(uint64_t virtual) { __asm__ volatile("invlpg (%0)" ::"r"(virtual) : "memory"); }

static void read_model(void) {
    if (cpuid(0x80000000, 0).a >= 0x80000004) {
        for (uint32_t i = 0; i < 3; i++) {
            struct cpuid part = cpuid(0x80000002 + i, 0);
            memcpy(features.model + i * sizeof part, &part, sizeof part);
        }
    }
    /* Trailing and leading blanks are padding. */
    size_t bytes = strlen(features.model), first = 0;
    while (bytes != 0 && features.model[bytes - 1] == ' ') features.model[--bytes] = 0;
    while (features.model[first] == ' ') first++;
    memmove(features.model, features.model + first, bytes - first + 1);
}

static void read_features(void) {
    struct cpuid one = cpuid(1, 0), power = {0}, seven = {0}, extended = cpuid(0x80000001, 0);
    uint32_t leaf_max = cpuid(0, 0).a;
    if (leaf_max >= 6) power = cpuid(6, 0);
    if (leaf_max >= 7) seven = cpuid(7, 0);
    read_model();
    has_xsave = bit(one.c, 26);
    features.avx = has_xsave && bit(one.c, 28);
    features.fma = features.avx && bit(one.c, 12);
    features.f16c = features.avx && bit(one.c, 29);
    features.avx2 = features.avx && bit(seven.b, 5);
    features.vnni = features.avx && leaf_max >= 7 && seven.a >= 1 && bit(cpuid(7, 1).a, 4);
    features.bmi2 = bit(seven.b, 8);
    features.aes = bit(one.c, 25);
    features.pclmul = bit(one.c, 1);
    features.rdrand = bit(one.c, 30);
    features.rdseed = bit(seven.b, 18);
    features.x2apic = bit(one.c, 21);
    features.tsc_deadline = bit(one.c, 24);
    features.page_1g = bit(extended.d, 26);
    features.smep = bit(seven.b, 7);
    features.smap = bit(seven.b, 20);
    features.umip = bit(seven.c, 2);
    if (cpuid(0x80000000, 0).a >= 0x80000007)
        features.invariant_tsc = bit(cpuid(0x80000007, 0).d, 8);
    features.thermal_sensor = bit(power.a, 0);
    features.hwp = bit(power.a, 7);
}

static void set_control_registers(void) {
    uint64_t cr4 = CR4_PAE | CR4_MACHINE_CHECK | CR4_GLOBAL | CR4_FXSR | CR4_SIMD_EXCEPTIONS;
    if (has_xsave) cr4 |= CR4_XSAVE;
    if (features.smep) cr4 |= CR4_SMEP;
    if (features.smap) cr4 |= CR4_SMAP;
    if (features.umip) cr4 |= CR4_UMIP;
    uint64_t cr0 = CR0_PROTECTED | CR0_MONITOR | CR0_EXTENSION | CR0_NUMERIC_ERROR |
                   CR0_WRITE_PROTECT | CR0_ALIGNMENT | CR0_PAGING;
    __asm__ volatile("movq %0, %%cr0" ::"r"(cr0));
    __asm__ volatile("movq %0, %%cr4" ::"r"(cr4));
    if (has_xsave) {
        uint32_t state = features.avx ? STATE_X87_SSE_AVX : 3;
        __asm__ volatile("xsetbv" ::"c"(0), "a"(state), "d"(0));
    }
}

void cpu_init_this(uint32_t core) {
    msr_write(MSR_PAT, PAT_WITH_COMBINING);
    set_control_registers();
    segments_load(core);
    trap_load();
    cpu_restore_fs();
    msr_write(MSR_GS_BASE, 0);
    cpu_state_reset();
    apic_enable();
}

void cpu_init_first(void) {
    read_features();
    const uint16_t control = 0x37f; /* x87 control word after FNINIT; offset 0 of the area */
    const uint32_t mxcsr = CPU_MXCSR_START;
    memcpy(start_state, &control, sizeof control);
    memcpy(start_state + 24, &mxcsr, sizeof mxcsr);
    trap_init();
    apic_find();
    segments_init(0);
    cpu_init_this(0);
    features.state_bytes = has_xsave ? cpuid(13, 0).b : FXSAVE_BYTES;
    if (features.state_bytes > CPU_STATE_BYTES_MAX)
        panic("cpu: vector state of %u bytes, room for %u", features.state_bytes,
              CPU_STATE_BYTES_MAX);
    klog("cpu: %s%s%s%s%s%s", features.model, features.avx2 ? ", AVX2" : ", no AVX2",
         features.fma ? " FMA" : "", features.f16c ? " F16C" : "", features.vnni ? " VNNI" : "",
         features.aes ? " AES" : "");
    if (!features.avx) klog("cpu: no AVX: kernels that need it will be refused");
}

const struct cpu_features *cpu_features(void) { return &features; }

void cpu_restore_fs(void) { msr_write(MSR_FS_BASE, (uint64_t)&stack_word); }

/* ---- vector state ---------------------------------------------------------------------------- */

void cpu_state_save(void *area) {
    if (has_xsave)
        __asm__ volatile("xsave64 (%0)" ::"r"(area), "a"(7), "d"(0) : "memory");
    else
        __asm__ volatile("fxsave64 (%0)" ::"r"(area) : "memory");
}

void cpu_state_restore(const void *area) {
    if (has_xsave)
        __asm__ volatile("xrstor64 (%0)" ::"r"(area), "a"(7), "d"(0) : "memory");
    else
        __asm__ volatile("fxrstor64 (%0)" ::"r"(area) : "memory");
}

void cpu_state_reset(void) { cpu_state_restore(start_state); }
