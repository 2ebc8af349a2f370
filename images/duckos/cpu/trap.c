/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/trap.h"

#include "cpu/inside.h"
#include "panic/panic.h"
#include "time/inside.h"

#include <assert.h>

struct gate {
    uint16_t offset_low, selector;
    uint8_t ist, type;
    uint16_t offset_middle;
    uint32_t offset_high, reserved;
};
static_assert(sizeof(struct gate) == 16, "SDM volume 3, figure 6-8");

#define GATE_INTERRUPT 0x8eu /* present, clears IF */
#define GATE_FROM_RING_3 0x60u
#define GATES 256u

extern const uint8_t trap_entries[];
extern const uint8_t msr_reading[], msr_writing[], msr_refused[];

static struct gate idt[GATES];
static uint64_t interrupts[CPU_MAX];

static uint8_t stack_for(uint32_t vector) {
    switch (vector) {
    case TRAP_DOUBLE_FAULT: return IST_DOUBLE_FAULT;
    case TRAP_NMI: return IST_NMI;
    case TRAP_MACHINE_CHECK: return IST_MACHINE_CHECK;
    case TRAP_CALL: return 0;
    default: return vector < 32 ? 0 : IST_INTERRUPT;
    }
}

void trap_init(void) {
    for (uint32_t vector = 0; vector < GATES; vector++) {
        uint64_t entry = (uint64_t)trap_entries + 16 * vector;
        idt[vector] = (struct gate){
            .offset_low = (uint16_t)entry,
            .selector = CPU_KERNEL_CODE,
            .ist = stack_for(vector),
            .type = GATE_INTERRUPT | (vector == TRAP_CALL ? GATE_FROM_RING_3 : 0),
            .offset_middle = (uint16_t)(entry >> 16),
            .offset_high = (uint32_t)(entry >> 32),
        };
    }
}

void trap_load(void) {
    const struct {
        uint16_t limit;
        const void *base;
    } __attribute__((packed)) pointer = {sizeof idt - 1, idt};
    __asm__ volatile("lidt %0" ::"m"(pointer));
}

static uint64_t fault_address(const struct trap_frame *frame) {
    uint64_t address = 0;
    if (frame->vector == TRAP_PAGE_FAULT) __asm__ volatile("movq %%cr2, %0" : "=r"(address));
    return address;
}

static void handle_interrupt(const struct trap_frame *frame) {
    interrupts[cpu_index()]++;
    if (frame->vector != TRAP_SPURIOUS) apic_end_interrupt();
    if (frame->vector == TRAP_TIMER) timer_interrupted(frame);
}

/* msr_try_read and msr_try_write met a register that is not there. */
static bool is_refused_msr(struct trap_frame *frame) {
    bool refused = frame->vector == TRAP_PROTECTION &&
                   (frame->rip == (uint64_t)msr_reading || frame->rip == (uint64_t)msr_writing);
    if (refused) frame->rip = (uint64_t)msr_refused;
    return refused;
}

void trap_handle(struct trap_frame *frame) {
    bool interrupt = frame->vector >= 32 && frame->vector != TRAP_CALL;
    if (frame->vector == TRAP_NMI && cpu_is_halting())
        for (;;) __asm__ volatile("cli; hlt");
    if (interrupt) handle_interrupt(frame);
    if ((frame->cs & 3) == 3) {
        uint64_t address = fault_address(frame);
        cpu_restore_fs();
        trap_user(frame, address);
        return;
    }
    if (!interrupt && !is_refused_msr(frame)) panic_trap(frame);
}

uint64_t trap_interrupt_count(void) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < CPU_MAX; i++) count += interrupts[i];
    return count;
}

const char *trap_name(uint64_t vector) {
    switch (vector) {
    case TRAP_DIVIDE: return "division error";
    case TRAP_DEBUG: return "debug trap";
    case TRAP_NMI: return "NMI";
    case TRAP_BREAKPOINT: return "breakpoint";
    case TRAP_OVERFLOW: return "overflow";
    case TRAP_BOUND: return "bound range";
    case TRAP_INVALID_OPCODE: return "invalid opcode";
    case TRAP_NO_FPU: return "no FPU";
    case TRAP_DOUBLE_FAULT: return "double fault (stack overflow?)";
    case TRAP_STACK_SEGMENT: return "stack segment";
    case TRAP_PROTECTION: return "general protection";
    case TRAP_PAGE_FAULT: return "page fault";
    case TRAP_X87: return "x87 error";
    case TRAP_ALIGNMENT: return "misaligned access";
    case TRAP_MACHINE_CHECK: return "machine check";
    case TRAP_SIMD: return "SIMD error";
    default: return "trap";
    }
}
