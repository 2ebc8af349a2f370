/* SPDX-License-Identifier: Apache-2.0
 *
 * CALL: fragments go straight into the slot's input buffer; whole calls are published in order;
 * finished ones stay in their slot as the result cache until call n + 4 comes.
 */
#include "parts.h"

static struct core_call *slot_of(struct duck_core *core, uint32_t sequence) {
    return &core->session.call[sequence % DUCK_KERNEL_SLOTS];
}

struct core_call *calls_find(struct duck_core *core, uint32_t sequence) {
    struct core_call *call = slot_of(core, sequence);
    return call->state != CORE_CALL_EMPTY && call->sequence == sequence ? call : NULL;
}

void calls_expect(struct core_call *call, uint32_t sequence, uint64_t now) {
    call->state = CORE_CALL_EXPECTED;
    call->nacks = 0;
    call->sequence = sequence;
    call->progress_ns = now;
    call->asked_bytes = 0;
    call->send_count = 0;
}

/* ---- asking for what is missing -------------------------------------------------------------- */

void calls_nack(struct duck_core *core, struct core_call *call, uint64_t now) {
    const uint32_t fixed = sizeof(struct duck_packet_header) + offsetof(struct duck_nack, range[0]);
    struct core_association *owner = association_owner(core);
    struct duck_nack nack = {.message_type = DUCK_MSG_CALL};
    call->progress_ns = now;
    call->nacks++;
    if (owner == NULL || call->asked_bytes < fixed + sizeof nack.range[0]) return;
    uint64_t affordable = (call->asked_bytes - fixed) / sizeof nack.range[0];
    uint32_t ranges_max =
        affordable < DUCK_WIRE_NACK_RANGES_MAX ? (uint32_t)affordable : DUCK_WIRE_NACK_RANGES_MAX;
    if (call->state == CORE_CALL_EXPECTED) {
        nack.range_count = 1;
        nack.range[0] = (struct duck_nack_range){0, UINT32_MAX};
    } else {
        nack.range_count = bits_missing(call->bits, call->fragments, nack.range, ranges_max);
    }
    uint32_t bytes =
        (uint32_t)(offsetof(struct duck_nack, range[0]) + nack.range_count * sizeof nack.range[0]);
    call->asked_bytes -= sizeof(struct duck_packet_header) + bytes;
    core->stats.nacks_sent++;
    packet_send(core, owner, DUCK_MSG_NACK, call->sequence, &nack, bytes);
}

/* How long without progress before the first NACK. */
static uint64_t quiet_ns(const struct core_session *session) {
    uint64_t quiet = 2 * session->pause_ns;
    if (quiet < CORE_NACK_QUIET_NS) return CORE_NACK_QUIET_NS;
    return quiet < CORE_NACK_QUIET_NS_MAX ? quiet : CORE_NACK_QUIET_NS_MAX;
}

/* Learn from a fragment's arrival. Only what was sent once and to all counts: a repair comes late
 * because it was asked for late. */
static void note_pause(struct core_session *session, struct core_call *call,
                       const struct core_received *received, uint64_t now) {
    uint64_t pause = now - call->arrived_ns;
    if (call->received == 0 || received->domain == NULL) return;
    if (pause > CORE_NACK_QUIET_NS_MAX) pause = CORE_NACK_QUIET_NS_MAX;
    if (pause > session->pause_ns)
        session->pause_ns = pause;
    else
        session->pause_ns -= (session->pause_ns - pause) / CORE_PAUSE_DECAY;
}

static bool is_incomplete(const struct core_call *call) {
    return call->state == CORE_CALL_EXPECTED || call->state == CORE_CALL_RECEIVING;
}

/* Returns when the next NACK or time limit is due. */
uint64_t calls_tick(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < DUCK_KERNEL_SLOTS; i++) {
        struct core_call *call = &session->call[i];
        if (!is_incomplete(call) || call->nacks >= CORE_NACK_TRIES) continue;
        if (now >= call->progress_ns + (quiet_ns(session) << call->nacks))
            calls_nack(core, call, now);
        uint64_t due = call->progress_ns + (quiet_ns(session) << call->nacks);
        if (call->nacks < CORE_NACK_TRIES && due < next) next = due;
    }
    if (session->published != session->completed) {
        uint64_t limit = session->busy_since_ns + session->call_time_limit_ns;
        if (now >= limit) {
            compute_fault_named(core, DUCK_ERR_TIME_LIMIT, "a call took longer than its limit");
            return UINT64_MAX;
        }
        if (limit < next) next = limit;
    }
    return next;
}

/* ---- publishing ------------------------------------------------------------------------------ */

static uint64_t input_offset(const struct core_session *session, uint32_t sequence) {
    return (sequence % DUCK_KERNEL_SLOTS) * session->input_stride;
}

static uint64_t output_offset(const struct core_session *session, uint32_t sequence) {
    return DUCK_KERNEL_SLOTS * session->input_stride +
           (sequence % DUCK_KERNEL_SLOTS) * session->output_stride;
}

static void publish(struct duck_core *core, struct core_call *call, uint64_t now) {
    struct core_session *session = &core->session;
    struct duck_kernel_mailbox *mailbox = session->shared.mailbox;
    struct duck_kernel_slot slot = {
        .call_number = call->sequence,
        .input_bytes = call->message_bytes,
        .input_offset = input_offset(session, call->sequence),
        .output_offset = output_offset(session, call->sequence),
        .output_bytes_max = session->result_bytes_max,
    };
    memcpy(&mailbox->slot[call->sequence % DUCK_KERNEL_SLOTS], &slot, sizeof slot);
    if (session->published == session->completed) session->busy_since_ns = now;
    session->published = call->sequence;
    call->published_ns = now;
    core->stats.calls_started++;
    __atomic_store_n(&mailbox->call_published, call->sequence, __ATOMIC_RELEASE);
    plat_session_wake();
}

static void publish_in_order(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    struct core_call *call = calls_find(core, session->published + 1);
    while (call != NULL && call->state == CORE_CALL_WHOLE) {
        publish(core, call, now);
        call = calls_find(core, session->published + 1);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Calls before this one that nothing has come of must have been lost: ask for them too, out of the
 * bytes of this packet. */
static void expect_earlier(struct duck_core *core, struct core_call *call, uint64_t now) {
    const uint64_t price = sizeof(struct duck_packet_header) + 16;
    for (uint32_t sequence = core->session.completed + 1; sequence != call->sequence; sequence++) {
        struct core_call *earlier = slot_of(core, sequence);
        if (calls_find(core, sequence) != NULL) continue;
        calls_expect(earlier, sequence, now);
        if (call->asked_bytes >= price) {
            earlier->asked_bytes = price;
            call->asked_bytes -= price;
        }
    }
}

static bool begin_call(struct duck_core *core, struct core_call *call,
                       const struct core_received *received, uint64_t now) {
    const struct duck_packet_header *header = received->header;
    uint32_t fragments = duck_fragment_count(header->message_bytes, header->fragment_bytes);
    if (header->message_bytes > core->session.call_bytes_max) {
        struct duck_fault fault = {
            .status = DUCK_ERR_CALL_TOO_LARGE,
            .core = UINT32_MAX,
            .call = header->sequence,
            .address = core->session.call_bytes_max,
            .instruction = UINT64_MAX,
            .text = "the call is larger than OPEN's call_bytes_max (address = that)",
        };
        if (packet_is_last_fragment(header))
            packet_send_fault(core, received->from, header->sequence, &fault,
                              received->packet_bytes);
        return false;
    }
    if (fragments > DUCK_WIRE_FRAGMENTS_MAX) {
        core->stats.dropped_size++;
        return false;
    }
    uint64_t asked = call->state == CORE_CALL_EXPECTED ? call->asked_bytes : 0;
    call->state = CORE_CALL_RECEIVING;
    call->nacks = 0;
    call->sequence = header->sequence;
    call->message_bytes = header->message_bytes;
    call->stride = header->fragment_bytes;
    call->fragments = fragments;
    call->received = 0;
    call->progress_ns = now;
    call->asked_bytes = asked;
    call->send_count = 0;
    bits_clear(call->bits, fragments);
    return true;
}

static void take_fragment(struct duck_core *core, struct core_call *call,
                          const struct core_received *received, uint64_t now) {
    const struct duck_packet_header *header = received->header;
    call->asked_bytes += received->packet_bytes;
    if (bits_test(call->bits, header->fragment_index)) return;
    bits_set(call->bits, header->fragment_index);
    uint8_t *input = core->session.shared.calls + input_offset(&core->session, call->sequence);
    if (header->payload_bytes != 0)
        memcpy(input + (size_t)header->fragment_index * call->stride, received->payload,
               header->payload_bytes);
    note_pause(&core->session, call, received, now);
    call->received++;
    call->progress_ns = call->arrived_ns = now;
    call->nacks = 0;
    if (call->received < call->fragments) return;
    call->state = CORE_CALL_WHOLE;
    call->whole_ns = now;
    publish_in_order(core, now);
}

static bool is_stale(const struct core_session *session, const struct core_received *received) {
    uint64_t counter = received->header->counter;
    if (received->domain != NULL) return counter <= received->domain->floor;
    if (received->epoch != session->floor_epoch) return received->epoch < session->floor_epoch;
    return counter <= session->floor_counter;
}

void calls_receive(struct duck_core *core, const struct core_received *received) {
    const struct duck_packet_header *header = received->header;
    struct core_session *session = &core->session;
    uint64_t now = plat_now_ns();
    if (results_refuse(core, received)) return;
    if (is_stale(session, received)) {
        core->stats.dropped_session++;
        return;
    }
    bool is_new = false;
    struct core_call *call = calls_find(core, header->sequence);
    if (call == NULL) {
        /* Only the next few calls may begin; older ones have left the cache, later ones break the
         * credit. */
        uint32_t credit = session->is_one_shot ? 1 - session->completed : DUCK_KERNEL_SLOTS;
        if (header->sequence - session->completed - 1 >= credit) {
            core->stats.dropped_limit++;
            return;
        }
        call = slot_of(core, header->sequence);
    }
    if (call->sequence != header->sequence || call->state == CORE_CALL_EMPTY ||
        call->state == CORE_CALL_EXPECTED) {
        if (!begin_call(core, call, received, now)) return;
        is_new = true;
    }
    if (call->message_bytes != header->message_bytes || call->stride != header->fragment_bytes) {
        core->stats.dropped_size++;
        return;
    }
    if (call->state == CORE_CALL_RECEIVING) {
        take_fragment(core, call, received, now);
        if (is_new) expect_earlier(core, call, now);
    } else if (call->state == CORE_CALL_FINISHED &&
               now - call->answered_ns >= CORE_REPEAT_QUIET_NS) {
        core->stats.calls_repeated++;
        results_send_all(core, call, now);
    }
}

/* ---- completion ------------------------------------------------------------------------------ */

static uint32_t saturate(uint64_t ns) { return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX; }

/* The platform's times come from memory that the kernel can write: use them only when they are
 * possible. */
static void account_time(struct duck_core *core, struct core_call *call, uint64_t now) {
    struct core_session *session = &core->session;
    uint64_t start = 0, end = 0;
    plat_session_call_times(call->sequence, &start, &end);
    if (start < call->published_ns || end < start || end > now) {
        start = session->busy_since_ns;
        end = now;
    }
    uint64_t queue = start > call->whole_ns ? start - call->whole_ns : 0;
    call->start = (uint32_t)(start >> 6);
    call->prefix.kernel_ns = saturate(end - start);
    call->prefix.queue_ns = saturate(queue);
    core->stats.kernel_ns_total += end - start;
    core->stats.queue_ns_total += queue;
    if (end - start > core->stats.kernel_ns_max) core->stats.kernel_ns_max = end - start;
}

static bool finish_next(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    struct core_call *call = calls_find(core, session->completed + 1);
    struct duck_kernel_slot slot;
    if (call == NULL) return false; /* can't be: published calls keep their slot */
    memcpy(&slot, &session->shared.mailbox->slot[call->sequence % DUCK_KERNEL_SLOTS], sizeof slot);
    if (slot.status == 0 && slot.output_bytes > session->result_bytes_max) {
        compute_fault_named(core, DUCK_ERR_KERNEL_FAULT,
                            "the kernel reported more output than its buffer holds");
        return false;
    }
    account_time(core, call, now);
    call->state = CORE_CALL_FINISHED;
    call->status = slot.status;
    call->output_bytes = slot.status == 0 ? slot.output_bytes : 0;
    memcpy(call->text, slot.text, sizeof call->text);
    session->completed = call->sequence;
    session->busy_since_ns = now;
    core->stats.calls_finished++;
    results_send_all(core, call, now);
    return true;
}

void calls_complete(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    uint32_t done = __atomic_load_n(&session->shared.mailbox->call_completed, __ATOMIC_ACQUIRE);
    if (done - session->completed > session->published - session->completed) {
        compute_fault_named(core, DUCK_ERR_KERNEL_FAULT,
                            "the kernel completed a call that was not published");
        return;
    }
    while (session->state == CORE_SERVING && session->completed != done)
        if (!finish_next(core, now)) return;
}
