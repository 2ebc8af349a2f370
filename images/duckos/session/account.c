/* SPDX-License-Identifier: Apache-2.0
 *
 * What the data path costs, in TSC cycles, and what a session has used. Times in the shared page are
 * the kernel's to forge, so only possible ones count.
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
    uint64_t start_cycles_total, start_cycles_max, reply_cycles_total, reply_cycles_max;
    uint64_t switches, interrupts; /* of sessions that are over */
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
                   &account.start_cycles_max);
    account.reply_from_cycles = time.end_cycles;
}

void account_sent(void) {
    if (account.reply_from_cycles == 0) return;
    add_sample(timer_cycles() - account.reply_from_cycles, &account.reply_cycles_total,
               &account.reply_cycles_max);
    account.reply_from_cycles = 0;
}

void account_session_over(void) {
    for (uint32_t i = 0; i < session.core_count; i++) {
        account.switches += session.core[i].switches;
        account.interrupts += session.core[i].interrupts;
    }
    account.published = 0;
    account.reply_from_cycles = 0;
}
