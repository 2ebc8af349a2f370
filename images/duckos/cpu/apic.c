/* SPDX-License-Identifier: Apache-2.0
 *
 * The local APIC (SDM volume 3, chapter 11): interrupts between cores and the one-shot timer. As
 * memory (xAPIC), or as MSRs when the firmware has switched to x2APIC: that can't be undone.
 */
#include "cpu/inside.h"
#include "cpu/msr.h"
#include "cpu/port.h"
#include "memory/memory.h"

/* Offsets in the memory page; MSR = MSR_X2APIC + offset / 16. */
enum {
    APIC_ID = 0x20,
    APIC_PRIORITY = 0x80,
    APIC_END = 0xb0,
    APIC_SPURIOUS = 0xf0,
    APIC_COMMAND = 0x300,
    APIC_COMMAND_HIGH = 0x310,
    APIC_TIMER = 0x320,
    APIC_THERMAL = 0x330,
    APIC_COUNTER = 0x340,
    APIC_LINT0 = 0x350,
    APIC_LINT1 = 0x360,
    APIC_ERROR = 0x370,
    APIC_TIMER_INITIAL = 0x380,
    APIC_TIMER_CURRENT = 0x390,
    APIC_TIMER_DIVIDE = 0x3e0,
};
#define APIC_BASE_X2 (1ull << 10)
#define APIC_BASE_ON (1ull << 11)
#define APIC_SOFTWARE_ON (1u << 8)
#define LVT_MASKED (1u << 16)
#define LVT_NMI (4u << 8)
#define TIMER_DEADLINE (2u << 17)
#define DIVIDE_BY_1 0xbu
#define COMMAND_PENDING (1u << 12)
#define COMMAND_NMI 0x400u
#define COMMAND_INIT 0x4500u /* level assert */
#define COMMAND_START 0x4600u
#define COMMAND_FIXED 0x4000u
#define PENDING_SPINS_MAX 1000000u

static bool x2;
static volatile uint32_t *page;

static uint32_t read(uint32_t offset) {
    return x2 ? (uint32_t)msr_read(MSR_X2APIC + offset / 16) : page[offset / 4];
}

static void write(uint32_t offset, uint32_t value) {
    if (x2)
        msr_write(MSR_X2APIC + offset / 16, value);
    else
        page[offset / 4] = value;
}

/* Everything comes through local APICs: the two 8259A get all their lines masked. */
static void silence_old_controllers(void) {
    port_out_8(0x21, 0xff);
    port_out_8(0xa1, 0xff);
}

void apic_find(void) {
    silence_old_controllers();
    uint64_t base = msr_read(MSR_APIC_BASE);
    x2 = (base & APIC_BASE_X2) != 0;
    if (!x2) page = memory_map_device(base & 0xffffff000ull, PAGE_BYTES);
}

void apic_enable(void) {
    uint64_t base = msr_read(MSR_APIC_BASE) | APIC_BASE_ON;
    msr_write(MSR_APIC_BASE, x2 ? base | APIC_BASE_X2 : base);
    write(APIC_SPURIOUS, APIC_SOFTWARE_ON | TRAP_SPURIOUS);
    write(APIC_PRIORITY, 0);
    /* Nothing comes from the old interrupt controllers; LINT1 is the NMI pin. */
    write(APIC_LINT0, LVT_MASKED);
    write(APIC_LINT1, LVT_NMI);
    write(APIC_ERROR, LVT_MASKED);
    write(APIC_TIMER, LVT_MASKED);
    write(APIC_TIMER_DIVIDE, DIVIDE_BY_1);
}

uint32_t apic_id(void) { return x2 ? read(APIC_ID) : read(APIC_ID) >> 24; }
void apic_end_interrupt(void) { write(APIC_END, 0); }

static void command(uint32_t id, uint32_t low) {
    if (x2) {
        /* 11.12.3: unlike a store to the page, this WRMSR does not wait for earlier stores. */
        __asm__ volatile("mfence; lfence" ::: "memory");
        msr_write(MSR_X2APIC + APIC_COMMAND / 16, (uint64_t)id << 32 | low);
        return;
    }
    write(APIC_COMMAND_HIGH, id << 24);
    write(APIC_COMMAND, low);
    for (uint32_t i = 0; i < PENDING_SPINS_MAX && (read(APIC_COMMAND) & COMMAND_PENDING) != 0; i++)
        __asm__ volatile("pause");
}

void apic_send(uint32_t id, uint32_t vector) { command(id, COMMAND_FIXED | vector); }
void apic_send_init(uint32_t id) { command(id, COMMAND_INIT); }
void apic_send_start(uint32_t id, uint32_t start_page) { command(id, COMMAND_START | start_page); }
void apic_send_nmi(uint32_t id) { command(id, COMMAND_FIXED | COMMAND_NMI); }

void apic_timer_mode(bool deadline) {
    write(APIC_TIMER, TRAP_TIMER | (deadline ? TIMER_DEADLINE : 0));
    /* 11.5.4.1: the mode must have arrived before the first deadline is written. */
    __asm__ volatile("mfence" ::: "memory");
}

void apic_timer_start(uint32_t count) { write(APIC_TIMER_INITIAL, count); }
void apic_timer_deadline(uint64_t tsc) { msr_write(MSR_TSC_DEADLINE, tsc); }
uint32_t apic_timer_left(void) { return read(APIC_TIMER_CURRENT); }
