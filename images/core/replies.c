/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply cache: a request that comes again is answered again, never done again. Requests count
 * 1, 2, 3, ... within a host session, at most a few outstanding.
 */
#include "parts.h"

struct duck_done done_make(enum duck_status status, uint64_t value, const char *text) {
    struct duck_done done = {.status = status, .value = value};
    struct text out = text_start(done.text, sizeof done.text);
    text_add(&out, text);
    return done;
}

struct core_ticket reply_ticket(const struct duck_core *core,
                                const struct core_received *received) {
    return (struct core_ticket){
        .association = association_index(core, received->from),
        .generation = received->from->generation,
        .sequence = received->header->sequence,
    };
}

static struct core_reply *find(struct core_association *from, uint32_t sequence) {
    for (uint32_t i = 0; i < CORE_REPLIES; i++) {
        struct core_reply *reply = &from->reply[i];
        if (reply->state != CORE_REPLY_NONE && reply->sequence == sequence) return reply;
    }
    return NULL;
}

/* Was this sequence met before, though its reply may be forgotten? Marks it as met. */
static bool met_before(struct core_association *from, uint32_t sequence) {
    const uint32_t window = sizeof from->requests_seen * 8;
    if (sequence > from->request_newest) {
        uint32_t steps = sequence - from->request_newest;
        if (steps >= window) memset(from->requests_seen, 0, sizeof from->requests_seen);
        for (uint32_t i = 1; steps < window && i <= steps; i++) {
            uint32_t bit = (from->request_newest + i) % window;
            from->requests_seen[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
        }
        from->request_newest = sequence;
    } else if (from->request_newest - sequence >= window) {
        return true;
    }
    uint32_t bit = sequence % window;
    if ((from->requests_seen[bit / 64] >> (bit % 64) & 1) != 0) return true;
    from->requests_seen[bit / 64] |= UINT64_C(1) << (bit % 64);
    return false;
}

/* An unused entry, else the oldest finished one. */
static struct core_reply *place_for_new(struct core_association *from) {
    struct core_reply *best = NULL;
    for (uint32_t i = 0; i < CORE_REPLIES; i++) {
        struct core_reply *reply = &from->reply[i];
        if (reply->state == CORE_REPLY_NONE) return reply;
        if (reply->state == CORE_REPLY_WORKING) continue;
        if (best == NULL || reply->sequence < best->sequence) best = reply;
    }
    return best;
}

bool reply_begin(struct duck_core *core, const struct core_received *received) {
    struct core_association *from = received->from;
    uint32_t sequence = received->header->sequence;
    struct core_reply *reply = find(from, sequence);
    if (reply != NULL && reply->type == received->header->type) {
        if (reply->state == CORE_REPLY_READY)
            packet_send_done(core, from, sequence, &reply->done, received->packet_bytes);
        return false;
    }
    if (reply != NULL || sequence == 0 || met_before(from, sequence)) {
        core->stats.dropped_limit++;
        return false;
    }
    reply = place_for_new(from);
    if (reply == NULL) {
        core->stats.dropped_limit++;
        return false;
    }
    reply->state = CORE_REPLY_WORKING;
    reply->sequence = sequence;
    reply->type = received->header->type;
    return true;
}

void reply_finish(struct duck_core *core, struct core_ticket ticket, const struct duck_done *done) {
    struct core_association *to = &core->association[ticket.association];
    if (to->generation != ticket.generation) return;
    struct core_reply *reply = find(to, ticket.sequence);
    if (reply == NULL || reply->state != CORE_REPLY_WORKING) return;
    reply->state = CORE_REPLY_READY;
    reply->done = *done;
    /* Every request that is answered by DONE is as long as DONE or longer (rules in core.c). */
    packet_send_done(core, to, ticket.sequence, done, UINT64_MAX);
}
