/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting the other cores by INIT-SIPI-SIPI (SDM volume 3, 9.4.4.1), one after the other, and
 * giving them work.
 */
#include "acpi/acpi.h"
#include "boot/options.h"
#include "console/console.h"
#include "cpu/inside.h"
#include "memory/memory.h"
#include "time/inside.h"
#include "time/timer.h"

#include <string.h>

#define INIT_WAIT_NS 10000000ull
#define SIPI_WAIT_NS 200000ull

enum core_state { CORE_OFF = 0, CORE_IDLE = 1, CORE_BUSY = 2 };

/* A cache line each: idle cores poll theirs. */
static struct core {
    /* CORE_BUSY: owned by the core, which sets CORE_IDLE; else owned by core 0. */
    uint32_t state __attribute__((aligned(64)));
    uint32_t apic_id;
    void (*function)(void *argument);
    void *argument;
} core[CPU_MAX];

extern const uint8_t trampoline[], trampoline_end[], trampoline_root[];
extern uint64_t start_stack;
uint64_t start_stack; /* taken by the core that starts */
static uint32_t count = 1;
static bool halt_when_idle;
static bool halting;

_Noreturn void cpu_started(void);

bool cpu_is_halting(void) { return __atomic_load_n(&halting, __ATOMIC_ACQUIRE); }
uint32_t cpu_count(void) { return count; }
void cpu_wait_by_halting(bool halt) { __atomic_store_n(&halt_when_idle, halt, __ATOMIC_RELEASE); }
bool cpu_waits_by_halting(void) { return __atomic_load_n(&halt_when_idle, __ATOMIC_ACQUIRE); }

static uint32_t state_of(uint32_t index) {
    return __atomic_load_n(&core[index].state, __ATOMIC_ACQUIRE);
}

/* ---- the other cores' side ------------------------------------------------------------------- */

static void wait_for_work(uint32_t self) {
    while (state_of(self) != CORE_BUSY) {
        if (!cpu_waits_by_halting()) {
            __asm__ volatile("pause");
            continue;
        }
        /* cpu_run's interrupt may come between the look and the halt: `sti; hlt` lets it wait. */
        interrupts_off();
        if (state_of(self) != CORE_BUSY) __asm__ volatile("sti; hlt" ::: "memory");
        interrupts_on();
    }
}

_Noreturn void cpu_started(void) {
    uint32_t self = count;
    cpu_init_this(self);
    timer_init_this();
    interrupts_on();
    for (;;) {
        __atomic_store_n(&core[self].state, CORE_IDLE, __ATOMIC_RELEASE);
        wait_for_work(self);
        core[self].function(core[self].argument);
    }
}

/* ---- core 0's side --------------------------------------------------------------------------- */

static bool wait_until_idle(uint32_t index, uint64_t limit_ns) {
    uint64_t end = timer_now_ns() + limit_ns;
    while (state_of(index) != CORE_IDLE && timer_now_ns() < end) __asm__ volatile("pause");
    return state_of(index) == CORE_IDLE;
}

enum start_result { START_DONE, START_SILENT, START_LOST };

static enum start_result start(uint32_t index, uint32_t id, uint32_t page) {
    core[index].apic_id = id;
    segments_init(index);
    __atomic_store_n(&start_stack, (uint64_t)memory_take_stack(CPU_STACK_BYTES), __ATOMIC_RELEASE);
    apic_send_init(id);
    timer_wait_ns(INIT_WAIT_NS);
    apic_send_start(id, page);
    if (wait_until_idle(index, SIPI_WAIT_NS)) return START_DONE;
    apic_send_start(id, page);
    if (wait_until_idle(index, CPU_START_LIMIT_NS)) return START_DONE;
    /* From here on it may come as late as it likes: it finds no stack. One that has taken its stack
     * is on its way, and may come in the place of the next one: then no other is started. */
    if (__atomic_exchange_n(&start_stack, 0, __ATOMIC_ACQ_REL) != 0) return START_SILENT;
    return wait_until_idle(index, CPU_START_LIMIT_NS) ? START_DONE : START_LOST;
}

static uint32_t fill_start_page(void) {
    uint8_t *page = memory_start_page();
    if (page == NULL) return 0;
    uint32_t root = (uint32_t)paging_kernel_space()->root; /* in the arena, so below 4 GiB */
    memcpy(page, trampoline, (size_t)(trampoline_end - trampoline));
    memcpy(page + (trampoline_root - trampoline), &root, sizeof root);
    memory_start_page_filled();
    return (uint32_t)((uint64_t)page >> 12);
}

void cpu_start_others(void) {
    const struct acpi_facts *facts = acpi_facts();
    uint32_t wanted = (uint32_t)options_number("cores", CPU_MAX);
    uint32_t silent = 0, left_out = facts->cpu_skipped, page = fill_start_page();
    core[0] = (struct core){.state = CORE_BUSY, .apic_id = apic_id()};
    for (uint32_t i = 0; i < facts->cpu_count && page != 0; i++) {
        if (facts->apic_id[i] == core[0].apic_id) continue;
        if (count == CPU_MAX || count >= wanted) {
            left_out++;
            continue;
        }
        enum start_result result = start(count, facts->apic_id[i], page);
        if (result == START_DONE)
            count++;
        else
            silent++;
        if (result == START_LOST) break;
    }
    klog("cpu: %u cores run", count);
    if (page == 0) klog("cpu: no free page below 1 MiB: the other cores stay asleep");
    if (silent + left_out != 0)
        klog("cpu: %u cores did not answer, %u are left out", silent, left_out);
}

bool cpu_run(uint32_t index, void (*function)(void *argument), void *argument) {
    if (index == 0 || index >= count || state_of(index) != CORE_IDLE) return false;
    core[index].function = function;
    core[index].argument = argument;
    __atomic_store_n(&core[index].state, CORE_BUSY, __ATOMIC_SEQ_CST);
    if (cpu_waits_by_halting()) cpu_wake(index);
    return true;
}

bool cpu_idle(uint32_t index) { return index < count && state_of(index) == CORE_IDLE; }

void cpu_wake(uint32_t index) {
    if (index < count) apic_send(core[index].apic_id, TRAP_WAKE);
}

void cpu_stop(uint32_t index) {
    if (index < count) apic_send(core[index].apic_id, TRAP_STOP);
}

void cpu_halt_others(void) {
    __atomic_store_n(&halting, true, __ATOMIC_SEQ_CST);
    /* One by one: a core that was never started waits in the firmware's loop, whose handlers may be
     * overwritten by now. An NMI there would reset the machine before the panic is told. */
    for (uint32_t index = 0; index < count; index++)
        if (index != cpu_index() && state_of(index) != CORE_OFF) apic_send_nmi(core[index].apic_id);
}
