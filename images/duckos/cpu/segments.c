/* SPDX-License-Identifier: Apache-2.0
 *
 * The GDT, and one TSS per core with the stacks for traps (SDM volume 3, 3.4.5 and 8.7).
 */
#include "cpu/inside.h"
#include "memory/memory.h"
#include "panic/panic.h"

#include <assert.h>

struct tss {
    uint32_t reserved_0;
    uint64_t rsp[3];
    uint64_t reserved_1;
    uint64_t ist[7]; /* ist[i - 1] is IST i */
    uint64_t reserved_2;
    uint16_t reserved_3, io_map; /* behind the limit: ring 3 has no port */
} __attribute__((packed));
static_assert(sizeof(struct tss) == 104, "SDM volume 3, figure 8-11");

#define SEGMENT_KERNEL_CODE 0x00af9b000000ffffull
#define SEGMENT_KERNEL_DATA 0x00cf93000000ffffull
#define SEGMENT_USER_DATA 0x00cff3000000ffffull
#define SEGMENT_USER_CODE 0x00affb000000ffffull
#define TSS_AVAILABLE 0x89ull

static uint64_t gdt[CPU_FIRST_TSS / 8 + 2 * CPU_MAX] = {
    [CPU_KERNEL_CODE / 8] = SEGMENT_KERNEL_CODE,
    [CPU_KERNEL_DATA / 8] = SEGMENT_KERNEL_DATA,
    [CPU_USER_DATA / 8] = SEGMENT_USER_DATA,
    [CPU_USER_CODE / 8] = SEGMENT_USER_CODE,
};
static struct tss tss[CPU_MAX];

void segments_init(uint32_t core) {
    struct tss *its = &tss[core];
    uint64_t base = (uint64_t)its, limit = sizeof *its - 1;
    its->rsp[0] = (uint64_t)memory_take_stack(CPU_TRAP_STACK_BYTES);
    for (uint32_t i = 0; i < IST_COUNT; i++)
        its->ist[i] = (uint64_t)memory_take_stack(CPU_TRAP_STACK_BYTES);
    its->io_map = sizeof *its;
    uint64_t *descriptor = &gdt[CPU_FIRST_TSS / 8 + 2 * core];
    descriptor[0] =
        limit | (base & 0xffffff) << 16 | TSS_AVAILABLE << 40 | (base >> 24 & 0xff) << 56;
    descriptor[1] = base >> 32;
}

void segments_load(uint32_t core) {
    const struct {
        uint16_t limit;
        const void *base;
    } __attribute__((packed)) pointer = {sizeof gdt - 1, gdt};
    __asm__ volatile("lgdt %0\n\t"
                     "pushq %1\n\t"
                     "leaq 1f(%%rip), %%rax\n\t"
                     "pushq %%rax\n\t"
                     "lretq\n"
                     "1:\tmovl %2, %%eax\n\t"
                     "movw %%ax, %%ds\n\t"
                     "movw %%ax, %%es\n\t"
                     "movw %%ax, %%ss\n\t"
                     "xorl %%eax, %%eax\n\t"
                     "movw %%ax, %%fs\n\t"
                     "movw %%ax, %%gs\n\t"
                     "lldt %%ax\n\t"
                     "ltr %3"
                     :
                     : "m"(pointer), "i"(CPU_KERNEL_CODE), "i"(CPU_KERNEL_DATA),
                       "r"((uint16_t)(CPU_FIRST_TSS + 16 * core))
                     : "rax", "memory");
}
