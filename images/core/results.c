/* SPDX-License-Identifier: Apache-2.0
 *
 * RESULT: sent once when the call is finished, in pieces when the host misses some, as a whole when
 * it asks where its call is. RESULT is the one answer that may be longer than what asked for it:
 * its size was agreed on by OPEN, and only the owner of the compute session, whose address is
 * proven by its session key, can ask.
 */
#include "parts.h"

/* ---- sending --------------------------------------------------------------------------------- */

static void send_fragment(struct duck_core *core, struct core_association *to,
                          const struct core_call *call, uint32_t index) {
    const struct core_session *session = &core->session;
    const uint8_t *output = session->shared.calls + DUCK_KERNEL_SLOTS * session->input_stride +
                            (call->sequence % DUCK_KERNEL_SLOTS) * session->output_stride;
    uint32_t at = index * call->stride;
    uint32_t bytes = call->output_bytes - at;
    if (bytes > call->stride) bytes = call->stride;
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = DUCK_MSG_RESULT,
        .key = DUCK_KEY_SESSION,
        .session = to->session,
        .sequence = call->sequence,
        .message_bytes = call->output_bytes,
        .fragment_index = index,
        .fragment_bytes = call->stride,
        .payload_bytes = (uint16_t)(bytes + sizeof call->prefix),
        .start = call->start,
    };
    uint8_t *packet = plat_packet_buffer();
    memcpy(packet + sizeof header, &call->prefix, sizeof call->prefix);
    if (bytes != 0) memcpy(packet + sizeof header + sizeof call->prefix, output + at, bytes);
    packet_send_built(core, to, packet, &header);
}

static void send_refusal(struct duck_core *core, const struct core_call *call) {
    struct core_association *owner = association_owner(core);
    struct duck_fault fault = {
        .status = DUCK_ERR_BAD_REQUEST,
        .core = UINT32_MAX,
        .call = call->sequence,
        .address = (uint32_t)call->status,
        .instruction = UINT64_MAX,
    };
    struct text text = text_start(fault.text, sizeof fault.text);
    text_add_foreign(&text, call->text, sizeof call->text);
    if (owner != NULL) packet_send_fault(core, owner, call->sequence, &fault, UINT64_MAX);
}

static bool is_sending(const struct core_call *call) { return call->send_count != 0; }

void results_send_all(struct duck_core *core, struct core_call *call, uint64_t now) {
    call->answered_ns = now;
    if (call->status != 0) {
        send_refusal(core, call);
        return;
    }
    call->send_count = 1;
    call->send_index = 0;
    call->send_at = 0;
    call->send[0] =
        (struct duck_nack_range){0, duck_fragment_count(call->output_bytes, call->stride)};
}

/* Send up to a burst of what is waiting for one call. */
static void send_some(struct duck_core *core, struct core_association *to, struct core_call *call) {
    for (uint32_t sent = 0; sent < CORE_RESULT_BURST && is_sending(call); sent++) {
        send_fragment(core, to, call, call->send_at);
        call->send_at++;
        if (call->send_at < call->send[call->send_index].end) continue;
        call->send_index++;
        if (call->send_index == call->send_count)
            call->send_count = 0;
        else
            call->send_at = call->send[call->send_index].begin;
    }
}

bool results_step(struct duck_core *core) {
    struct core_session *session = &core->session;
    if (session->state != CORE_SERVING) return false;
    struct core_association *owner = association_owner(core);
    if (owner == NULL) return false;
    bool more = false;
    /* Oldest first. */
    for (uint32_t age = DUCK_KERNEL_SLOTS; age-- > 0;) {
        struct core_call *call = calls_find(core, session->completed - age);
        if (call == NULL || call->state != CORE_CALL_FINISHED || !is_sending(call)) continue;
        send_some(core, owner, call);
        more = more || is_sending(call);
    }
    return more;
}

/* ---- what the host asks ---------------------------------------------------------------------- */

bool results_refuse(struct duck_core *core, const struct core_received *received) {
    const struct core_session *session = &core->session;
    if (session->state == CORE_SERVING && compute_is_owner(core, received->from)) return false;
    if (session->state == CORE_STARTING) {
        core->stats.dropped_limit++;
        return true;
    }
    struct duck_fault fault = {
        .status = DUCK_ERR_NO_SESSION,
        .core = UINT32_MAX,
        .instruction = UINT64_MAX,
        .text = "no compute session of this host is open",
    };
    if (session->state == CORE_FAULTED && session->owner_generation == received->from->generation)
        fault = session->fault;
    if (packet_is_last_fragment(received->header))
        packet_send_fault(core, received->from, received->header->sequence, &fault,
                          received->packet_bytes);
    return true;
}

void results_nack(struct duck_core *core, const struct core_received *received) {
    struct duck_nack nack = {0};
    const size_t fixed = offsetof(struct duck_nack, range[0]);
    uint32_t bytes = received->header->payload_bytes;
    if (bytes < fixed || bytes > sizeof nack) {
        core->stats.dropped_size++;
        return;
    }
    memcpy(&nack, received->payload, bytes);
    if (nack.range_count > DUCK_WIRE_NACK_RANGES_MAX || nack.message_type != DUCK_MSG_RESULT ||
        bytes != fixed + nack.range_count * sizeof nack.range[0]) {
        core->stats.dropped_size++;
        return;
    }
    core->stats.nacks_received++;
    if (results_refuse(core, received)) return;
    struct core_call *call = calls_find(core, received->header->sequence);
    /* While fragments are still on their way out, what is missing is not known yet. */
    if (call == NULL || call->state != CORE_CALL_FINISHED || call->status != 0 || is_sending(call))
        return;
    uint32_t fragments = duck_fragment_count(call->output_bytes, call->stride);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < nack.range_count; i++) {
        struct duck_nack_range range = nack.range[i];
        if (range.end > fragments) range.end = fragments;
        if (range.begin < range.end) call->send[kept++] = range;
    }
    if (kept == 0) return;
    call->send_count = kept;
    call->send_index = 0;
    call->send_at = call->send[0].begin;
    call->answered_ns = plat_now_ns();
    core->stats.results_resent++;
}

static void answer_unknown(struct duck_core *core, const struct core_received *received,
                           uint64_t now) {
    uint32_t sequence = received->header->sequence;
    if (sequence - core->session.completed - 1 < DUCK_WIRE_CALLS_IN_FLIGHT_MAX) {
        struct core_call *call = &core->session.call[sequence % DUCK_KERNEL_SLOTS];
        calls_expect(call, sequence, now);
        call->asked_bytes = received->packet_bytes;
        calls_nack(core, call, now);
        return;
    }
    struct duck_fault fault = {
        .status = DUCK_ERR_BAD_REQUEST,
        .core = UINT32_MAX,
        .call = sequence,
        .instruction = UINT64_MAX,
        .text = "the result of this call is no longer kept, or the call is beyond the credit",
    };
    packet_send_fault(core, received->from, sequence, &fault, received->packet_bytes);
}

void results_query(struct duck_core *core, const struct core_received *received) {
    core->stats.queries_received++;
    if (results_refuse(core, received)) return;
    uint64_t now = plat_now_ns();
    uint32_t sequence = received->header->sequence;
    struct core_call *call = calls_find(core, sequence);
    if (call == NULL) {
        answer_unknown(core, received, now);
        return;
    }
    switch (call->state) {
    case CORE_CALL_FINISHED:
        if (is_sending(call)) return;
        core->stats.results_resent++;
        results_send_all(core, call, now);
        return;
    case CORE_CALL_WHOLE: {
        struct duck_done busy = {.status = DUCK_OK, .value = now - call->whole_ns};
        packet_send(core, received->from, DUCK_MSG_BUSY, sequence, &busy, sizeof busy);
        return;
    }
    default:
        call->nacks = 0;
        call->asked_bytes += received->packet_bytes;
        calls_nack(core, call, now);
        return;
    }
}
