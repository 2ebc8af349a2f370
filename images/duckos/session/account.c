/* SPDX-License-Identifier: Apache-2.0
 *
 * What the data path costs, in TSC cycles, and what a session has used. Times in the shared page
 * are the kernel's to forge, so only possible ones count.
 */
#include "session/session.h"
#include "time/timer.h"

static struct {
    uint64_t packet_cycles; /* the datagram at hand came into memory */
    uint32_t published;     /* calls of this session */
    struct {
        uint32_t number;
        bool kernel_was_idle;
        uint64_t packet_cycles;
    } call[DUCK_KERNEL_SLOTS];
    uint64_t reply_from_cycles; /* a call ended then and nothing was sent since; 0 = none */
    uint64_t start_cycles_total, reply_cycles_total;
    uint64_t switches;       /* of sessions that are over */
    struct duck_usage usage; /* of the present session so far, or of the last one */
} account;

static void add_sample(uint64_t cycles, uint64_t *total, uint64_t *most) {
    *total += cycles;
    if (cycles > *most) *most = cycles;
}

void account_packet(void) { account.packet_cycles = timer_cycles(); }

void account_published(void) {
    uint32_t number = ++account.published;
    uint32_t completed = __atomic_load_n(&session.mailbox->call_completed, __ATOMIC_ACQUIRE);
    uint32_t slot = number % DUCK_KERNEL_SLOTS;
    account.call[slot].number = number;
    account.call[slot].kernel_was_idle = completed == number - 1;
    account.call[slot].packet_cycles = account.packet_cycles;
}

/* The core asks this once per finished call, just before it sends the result. */
void plat_session_call_times(uint32_t call_number, uint64_t *start_ns, uint64_t *end_ns) {
    uint32_t slot = call_number % DUCK_KERNEL_SLOTS;
    if (!session.exists) return;
    volatile const struct stub_time *shared = &session.shared->time[slot];
    struct stub_time time = {
        .number = shared->number,
        .start_cycles = shared->start_cycles,
        .end_cycles = shared->end_cycles,
    };
    uint64_t now_cycles = timer_cycles(), now_ns = timer_now_ns();
    uint64_t arrived = account.call[slot].packet_cycles;
    if (time.number != call_number || account.call[slot].number != call_number) return;
    if (time.start_cycles < arrived || time.end_cycles < time.start_cycles ||
        time.end_cycles > now_cycles)
        return;
    *start_ns = now_ns - timer_ns_of_cycles(now_cycles - time.start_cycles);
    *end_ns = now_ns - timer_ns_of_cycles(now_cycles - time.end_cycles);
    if (account.call[slot].kernel_was_idle)
        add_sample(time.start_cycles - arrived, &account.start_cycles_total,
                   &account.usage.start_cycles_max);
    account.reply_from_cycles = time.end_cycles;
}

void account_sent(void) {
    if (account.reply_from_cycles == 0) return;
    add_sample(timer_cycles() - account.reply_from_cycles, &account.reply_cycles_total,
               &account.usage.reply_cycles_max);
    account.reply_from_cycles = 0;
}

/* ---- the session ----------------------------------------------------------------------------- */

void account_session_begins(void) {
    account.published = 0;
    account.reply_from_cycles = 0;
    account.usage = (struct duck_usage){.run_mode = session.run_mode};
}

static uint64_t all_switches(void) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < session.core_count; i++) count += session.core[i].switches;
    return count;
}

/* Weights, ELF, and what the kernel left in the rest; looked at only after one-shot runs, for it
 * takes a while. */
static uint64_t memory_used(void) {
    const struct layout *layout = &session.layout;
    uint64_t stacks = (uint64_t)session.core_count * DUCK_KERNEL_STACK_BYTES;
    return regions_areas()->region_bytes[DUCK_REGION_WEIGHTS] + layout->elf_span +
           regions_used_bytes(layout->calls_offset, session.calls_bytes) +
           regions_used_bytes(layout->scratch_offset, layout->scratch_bytes) +
           regions_used_bytes(layout->stacks_offset, stacks);
}

static void measure(struct duck_usage *usage) {
    const struct session_core *first = &session.core[0];
    bool is_over = __atomic_load_n(&session.verdict_ready, __ATOMIC_ACQUIRE) != 0;
    if (session.entered)
        usage->cycles = (is_over ? session.left_cycles : timer_cycles()) - session.entered_cycles;
    usage->wall_ns = timer_ns_of_cycles(usage->cycles);
    usage->ring_switches_first = first->cpu == 0 ? first->switches : 0;
    usage->ring_switches_others = all_switches() - usage->ring_switches_first;
    usage->interrupts = 0;
    usage->instructions = 0;
    for (uint32_t i = 0; i < session.core_count; i++) {
        usage->interrupts += session.core[i].interrupts;
        usage->instructions += session.core[i].instructions;
    }
    if (is_over && session.run_mode == DUCK_KERNEL_ONE_SHOT && usage->memory_peak_bytes == 0)
        usage->memory_peak_bytes = memory_used();
}

void account_session_over(void) {
    measure(&account.usage);
    account.switches += all_switches();
}

/* ---- platform.h ------------------------------------------------------------------------------ */

void plat_session_usage(struct duck_usage *usage) {
    uint32_t state = usage->state;
    if (session.exists) measure(&account.usage);
    *usage = account.usage;
    usage->state = state;
    usage->tsc_hz = timer_tsc_hz();
}

void plat_stats(struct duck_stats *stats) {
    stats->start_cycles_total = account.start_cycles_total;
    stats->reply_cycles_total = account.reply_cycles_total;
    stats->ring_switches = account.switches + (session.exists ? all_switches() : 0);
    stats->interrupts = (uint32_t)trap_interrupt_count();
    stats->allocations = (uint32_t)regions_areas()->taken_count;
}
