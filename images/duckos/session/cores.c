/* SPDX-License-Identifier: Apache-2.0
 *
 * The cores of a session in ring 3. Every core but 0 enters once and stays until the session ends.
 * Core 0 shares its time with the main loop: it comes out whenever the kernel waits (one SYSCALL),
 * and at the latest after SESSION_SLICE_NS, so that a long call does not deafen the duck.
 *
 * When the session has fewer cores than the duck, CPUs 1, 2, ... run them and CPU 0 only polls.
 */
#include "panic/panic.h"
#include "session/session.h"
#include "session/verdict.h"
#include "time/timer.h"

#include <string.h>

struct session session;

static struct ring_cpu ring_cpu[CPU_MAX];
static struct session_core *on_cpu[CPU_MAX]; /* whom a trap on this CPU belongs to */
/* Vector registers of core 0 when a slice ended in the midst of the kernel's work. */
static _Alignas(64) uint8_t vectors[CPU_STATE_BYTES_MAX];

static bool is_over(void) { return __atomic_load_n(&session.ended, __ATOMIC_ACQUIRE) != 0; }

/* ---- every CPU, once ------------------------------------------------------------------------- */

static void prepare_cpu(void *unused) {
    (void)unused;
    ring_prepare_cpu(&ring_cpu[cpu_index()]);
}

/* What it did before (boot, a hash for COMMIT) may need a moment to end. */
static bool run_when_idle(uint32_t cpu, void (*function)(void *argument), void *argument) {
    uint64_t deadline = timer_now_ns() + SESSION_STOP_LIMIT_NS;
    while (!cpu_run(cpu, function, argument)) {
        if (timer_now_ns() >= deadline) return false;
        __builtin_ia32_pause();
    }
    return true;
}

void cores_init(void) {
    prepare_cpu(NULL);
    for (uint32_t cpu = 1; cpu < cpu_count(); cpu++) {
        if (!run_when_idle(cpu, prepare_cpu, NULL)) panic("core %u is not idle at the start", cpu);
        while (!cpu_idle(cpu)) __builtin_ia32_pause();
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void tell_all_to_leave(void) {
    uint32_t self = cpu_index();
    for (uint32_t cpu = 0; cpu < cpu_count(); cpu++) {
        if (cpu == self) continue;
        cpu_stop(cpu);
        if (cpu_waits_by_halting()) cpu_wake(cpu);
    }
}

void cores_end(const struct duck_fault *verdict) {
    if (__atomic_exchange_n(&session.verdict_claimed, 1, __ATOMIC_ACQ_REL) == 0) {
        session.verdict = *verdict;
        session.left_cycles = timer_cycles();
        __atomic_store_n(&session.verdict_ready, 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&session.ended, 1, __ATOMIC_RELEASE);
    tell_all_to_leave();
}

static bool all_have_left(void) {
    for (uint32_t i = 0; i < session.core_count; i++)
        if (session.core[i].cpu != 0 && !cpu_idle(session.core[i].cpu)) return false;
    return true;
}

void cores_leave(void) {
    uint64_t deadline = timer_now_ns() + SESSION_STOP_LIMIT_NS;
    __atomic_store_n(&session.ended, 1, __ATOMIC_RELEASE);
    if (!session.entered) return;
    while (!all_have_left()) {
        uint64_t again = timer_now_ns() + SESSION_STOP_AGAIN_NS;
        tell_all_to_leave();
        while (!all_have_left() && timer_now_ns() < again) __builtin_ia32_pause();
        if (timer_now_ns() >= deadline) panic("a core did not leave ring 3");
    }
    on_cpu[0] = NULL;
}

/* ---- what ring 3 asks ------------------------------------------------------------------------ */

/* The word that the kernel waits for, through the OS's own mapping; NULL: the session has ended. */
static const uint32_t *word_of(const struct session_core *core) {
    uint64_t address = core->ring.user.rdi;
    uint64_t offset = address % sizeof(uint32_t) == 0
                          ? layout_offset(&session.layout, address, sizeof(uint32_t))
                          : UINT64_MAX;
    if (offset != UINT64_MAX) return (const uint32_t *)(const void *)(memory_window() + offset);
    struct duck_fault verdict;
    verdict_of_word(core->index, address, &verdict);
    cores_end(&verdict);
    return NULL;
}

static bool must_go_on(const struct session_core *core) {
    return __atomic_load_n(core->word, __ATOMIC_ACQUIRE) != core->seen ||
           __atomic_load_n(&session.mailbox->stop, __ATOMIC_ACQUIRE) != 0 || is_over();
}

static void wait_in_os(struct session_core *core) {
    __atomic_store_n(&core->sleeping, 1, __ATOMIC_SEQ_CST);
    while (!must_go_on(core)) {
        if (!cpu_waits_by_halting()) {
            __builtin_ia32_pause();
            continue;
        }
        /* A wake between the look and the halt must not be missed. */
        interrupts_off();
        if (!must_go_on(core)) timer_sleep_until(timer_now_ns() + SESSION_HALT_NS);
        interrupts_on();
    }
    __atomic_store_n(&core->sleeping, 0, __ATOMIC_SEQ_CST);
    if (cpu_waits_by_halting()) timer_interrupt_at(UINT64_MAX);
}

static bool begin_waiting(struct session_core *core) {
    core->word = word_of(core);
    core->seen = (uint32_t)core->ring.user.rsi;
    if (core->word == NULL) return false;
    if (core->cpu == 0)
        core->state = SESSION_CORE_WAITING; /* the main loop looks, between packets */
    else
        wait_in_os(core);
    return true;
}

static void entry_returned(void) {
    struct duck_fault verdict;
    if (__atomic_add_fetch(&session.returned, 1, __ATOMIC_ACQ_REL) < session.core_count) return;
    verdict_of_return(&verdict);
    cores_end(&verdict);
}

static struct verdict_trap trap_of(const struct session_core *core) {
    const struct trap_frame *user = &core->ring.user;
    struct verdict_trap trap = {
        .core = core->index,
        .vector = user->vector,
        .error = user->error,
        .instruction = user->rip,
        .number = user->rax,
    };
    uint64_t offset = layout_offset(&session.layout, user->rip, VERDICT_CODE_BYTES);
    if (offset != UINT64_MAX) {
        trap.code_bytes = VERDICT_CODE_BYTES;
        memcpy(trap.code, memory_window() + offset, VERDICT_CODE_BYTES);
    }
    return trap;
}

/* A SYSCALL; false when the core is done with ring 3. */
static bool answer(struct session_core *core) {
    const struct trap_frame *user = &core->ring.user;
    bool by_stub = user->rip - layout_page(LAYOUT_STUB) < LAYOUT_PAGE_BYTES;
    switch (by_stub ? user->rax : 0) {
    case STUB_CALL_WAIT: return begin_waiting(core);
    case STUB_CALL_WAKE: cores_wake(); return true;
    case STUB_CALL_COMPLETE:
        if (cpu_waits_by_halting()) cpu_wake(0);
        return true;
    case STUB_CALL_RETURNED: entry_returned(); return false;
    default: break;
    }
    struct verdict_trap trap = trap_of(core);
    struct duck_fault verdict;
    verdict_of_call(&session.layout, &trap, &verdict);
    cores_end(&verdict);
    return false;
}

/* ---- into ring 3 ----------------------------------------------------------------------------- */

/* False when the core has nothing to do in ring 3 any more. */
static bool visit(struct session_core *core) {
    core->state = SESSION_CORE_READY;
    core->switches++;
    on_cpu[core->cpu] = core;
    interrupts_off(); /* the way into ring 3 must not be interrupted; ring 3 itself may be */
    uint32_t how = ring_enter(&core->ring, &ring_cpu[core->cpu]);
    cpu_restore_fs();
    interrupts_on();
    bool goes_on = how == RING_CAME_BY_CALL ? answer(core) : true;
    return goes_on && !is_over();
}

static void core_main(void *argument) {
    struct session_core *core = argument;
    paging_switch(&session.space);
    pmu_start();
    cpu_state_reset();
    while (visit(core)) continue;
    core->instructions = pmu_instructions();
    core->state = SESSION_CORE_DONE;
    on_cpu[core->cpu] = NULL;
    paging_switch(paging_kernel_space());
}

bool cores_enter(void) {
    session.entered = true;
    session.entered_cycles = timer_cycles();
    cpu_state_reset();
    cpu_state_save(vectors);
    for (uint32_t i = 0; i < session.core_count; i++) {
        struct session_core *core = &session.core[i];
        if (core->cpu == 0)
            pmu_start();
        else if (!run_when_idle(core->cpu, core_main, core))
            return false;
    }
    return true;
}

/* For CPU 0 in ring 3. Only a waiting core has a word to look at. */
static bool has_work(const struct session_core *core) {
    if (!session.entered || is_over() || core->cpu != 0 || core->state == SESSION_CORE_DONE)
        return false;
    return core->state != SESSION_CORE_WAITING || must_go_on(core);
}

bool cores_step(void) {
    struct session_core *core = &session.core[0];
    if (!has_work(core)) return false;
    timer_interrupt_at(timer_now_ns() + SESSION_SLICE_NS);
    if (core->ring.full) cpu_state_restore(vectors);
    bool goes_on = visit(core);
    timer_interrupt_at(UINT64_MAX);
    if (!goes_on) {
        core->instructions = pmu_instructions();
        core->state = SESSION_CORE_DONE;
    }
    return true;
}

bool cores_are_quiet(void) {
    if (!session.entered) return true;
    uint32_t completed = __atomic_load_n(&session.mailbox->call_completed, __ATOMIC_SEQ_CST);
    bool news = completed != session.seen_completed || (is_over() && !session.verdict_told);
    session.seen_completed = completed;
    return !news && !has_work(&session.core[0]);
}

void cores_wake(void) {
    if (!cpu_waits_by_halting()) return;
    for (uint32_t i = 0; i < session.core_count; i++)
        if (__atomic_load_n(&session.core[i].sleeping, __ATOMIC_SEQ_CST) != 0)
            cpu_wake(session.core[i].cpu);
}

/* ---- out of ring 3 --------------------------------------------------------------------------- */

static _Noreturn void leave(struct session_core *core, const struct trap_frame *frame) {
    core->ring.user = *frame;
    core->ring.full = 1;
    ring_leave(&ring_cpu[core->cpu]);
}

static bool is_interrupt(uint64_t vector) {
    return vector == TRAP_TIMER || vector == TRAP_WAKE || vector == TRAP_STOP ||
           vector == TRAP_SPURIOUS;
}

void trap_user(struct trap_frame *frame, uint64_t fault_address) {
    struct session_core *core = on_cpu[cpu_index()];
    if (core == NULL || frame->vector == TRAP_MACHINE_CHECK) panic_trap(frame);
    if (is_interrupt(frame->vector)) {
        core->interrupts++;
        bool slice_is_over = frame->vector == TRAP_TIMER && core->cpu == 0;
        if (!slice_is_over && !is_over()) return;
        if (core->cpu == 0) cpu_state_save(vectors);
        leave(core, frame);
    }
    if (frame->vector == TRAP_NMI) return;
    core->ring.user = *frame;
    struct verdict_trap trap = trap_of(core);
    trap.address = fault_address;
    struct duck_fault verdict;
    if (frame->vector == TRAP_CALL)
        verdict_of_call(&session.layout, &trap, &verdict);
    else
        verdict_of_trap(&session.layout, session.run_mode, &trap, &verdict);
    cores_end(&verdict);
    leave(core, frame);
}
