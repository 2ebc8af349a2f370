/* SPDX-License-Identifier: Apache-2.0
 *
 * Host sessions. A believed PROOF makes a waiting association; it becomes active when the first
 * packet arrives that is sealed with its session key.
 */
#include "parts.h"

uint32_t association_index(const struct duck_core *core,
                           const struct core_association *association) {
    return (uint32_t)(association - core->association);
}

bool compute_is_owner(const struct duck_core *core, const struct core_association *association) {
    return compute_is_open(core) && core->session.owner == association_index(core, association) &&
           core->session.owner_generation == association->generation;
}

struct core_association *association_owner(struct duck_core *core) {
    struct core_association *owner = &core->association[core->session.owner];
    if (owner->state != CORE_ACTIVE) return NULL;
    return owner->generation == core->session.owner_generation ? owner : NULL;
}

uint32_t core_state(const struct duck_core *core) {
    const struct core_region *weights = &core->region[DUCK_REGION_WEIGHTS];
    if (compute_is_open(core)) return DUCK_STATE_SERVING;
    if (core->session.state == CORE_FAULTED) return DUCK_STATE_FAULTED;
    if (weights->bytes == 0) return DUCK_STATE_IDLE;
    return weights->whole ? DUCK_STATE_READY : DUCK_STATE_LOADING;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* How readily a place is given to a new association: the lower, the sooner. Places that nobody
 * seems to use any more come before those that somebody may be shaking hands on right now. */
static uint32_t rank(const struct core_association *association, uint64_t now) {
    uint64_t silent = now - association->heard_ns;
    switch (association->state) {
    case CORE_FREE: return 0;
    case CORE_PENDING: return silent > CORE_PENDING_STALE_NS ? 1 : 2;
    default: return silent > CORE_ACTIVE_STALE_NS ? 1 : 3;
    }
}

/* The place for a new association, never that of the compute session's owner. */
static struct core_association *place_for_new(struct duck_core *core) {
    struct core_association *best = NULL;
    uint64_t now = plat_now_ns();
    for (uint32_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        struct core_association *candidate = &core->association[i];
        if (compute_is_owner(core, candidate)) continue;
        if (best == NULL || rank(candidate, now) < rank(best, now) ||
            (rank(candidate, now) == rank(best, now) && candidate->heard_ns < best->heard_ns))
            best = candidate;
    }
    return best;
}

struct core_association *association_find(struct duck_core *core, const struct duck_proof *proof) {
    for (uint32_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        struct core_association *association = &core->association[i];
        if (association->state != CORE_FREE &&
            memcmp(&association->proof, proof, sizeof *proof) == 0)
            return association;
    }
    return NULL;
}

static void set_receive_key(struct core_association *association, uint32_t epoch) {
    struct core_receive_key *receive = &association->receive[epoch % 2];
    duck_seal_key_set(&receive->key, association->keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    duck_replay_reset(&receive->window);
}

static void set_send_key(struct core_association *association, uint32_t epoch) {
    duck_seal_key_set(&association->send_key, association->keys.to_host, DUCK_KEY_SESSION,
                      DUCK_TO_HOST);
    association->send_epoch = epoch;
}

struct core_association *association_make(struct duck_core *core, const struct plat_peer *from,
                                          const struct duck_proof *proof,
                                          const struct duck_session_keys *keys) {
    struct core_association *association = place_for_new(core);
    memset(association, 0, sizeof *association);
    association->state = CORE_PENDING;
    association->generation = ++core->generations;
    association->session = proof->session;
    association->proof = *proof;
    association->peer = *from;
    association->keys = *keys;
    set_receive_key(association, 0);
    set_send_key(association, 0);
    association->heard_ns = plat_now_ns();
    return association;
}

/* ---- fresh keys ------------------------------------------------------------------------------ */

void association_rekey(struct duck_core *core, const struct core_received *received) {
    struct core_association *from = received->from;
    uint32_t sequence = received->header->sequence;
    struct duck_rekey request;
    uint8_t private_key[DUCK_WIRE_KEY_BYTES], secret[DUCK_WIRE_KEY_BYTES];
    memcpy(&request, received->payload, sizeof request);
    bool is_again =
        from->newest_epoch != 0 && memcmp(&request, &from->rekey_asked, sizeof request) == 0;
    if (is_again) {
        packet_send(core, from, DUCK_MSG_REKEY, sequence, &from->rekey_answer, sizeof request);
        return;
    }
    if (from->send_epoch != from->newest_epoch || request.epoch != from->newest_epoch + 1) {
        core->stats.dropped_limit++;
        return;
    }
    plat_random(private_key, sizeof private_key);
    bool is_good = duck_agree(private_key, request.ephemeral, secret);
    if (is_good) {
        from->rekey_asked = request;
        from->rekey_answer = (struct duck_rekey){.epoch = request.epoch};
        duck_agree_public(private_key, from->rekey_answer.ephemeral);
        duck_session_keys_next(&from->keys, secret);
        from->newest_epoch = request.epoch;
        set_receive_key(from, from->newest_epoch);
        packet_send(core, from, DUCK_MSG_REKEY, sequence, &from->rekey_answer, sizeof request);
    } else {
        core->stats.dropped_limit++;
    }
    memset(private_key, 0, sizeof private_key);
    memset(secret, 0, sizeof secret);
}

/* ---- sealed packets -------------------------------------------------------------------------- */

static void heard(struct core_association *association, const struct plat_peer *from) {
    association->state = CORE_ACTIVE;
    association->peer = *from;
    association->heard_ns = plat_now_ns();
}

/* The epoch whose key this packet names; false when it is none of the last two. */
static bool find_epoch(const struct core_association *association,
                       const struct duck_packet_header *header, uint32_t *epoch) {
    *epoch = association->newest_epoch;
    if ((uint8_t)*epoch == header->epoch) return true;
    if (*epoch == 0) return false;
    (*epoch)--;
    return (uint8_t)*epoch == header->epoch;
}

static enum duck_check open_by_session(struct core_association *candidate, uint8_t *packet,
                                       struct core_received *received) {
    uint32_t epoch;
    if (!find_epoch(candidate, received->header, &epoch)) return DUCK_CHECK_MAC;
    struct core_receive_key *receive = &candidate->receive[epoch % 2];
    enum duck_check check =
        duck_open_sealed(&receive->key, &receive->window, packet, received->packet_bytes);
    if (check != DUCK_CHECK_OK) return check;
    received->from = candidate;
    received->epoch = epoch;
    if (epoch != candidate->send_epoch && epoch == candidate->newest_epoch)
        set_send_key(candidate, epoch);
    return DUCK_CHECK_OK;
}

/* Calls by domain key count only for the association that opened the compute session and gave the
 * key. */
static enum duck_check open_by_domain(struct duck_core *core, uint8_t *packet,
                                      struct core_received *received, bool *known) {
    struct core_domain *domain = NULL;
    if (compute_is_open(core) && core->session.takes_domain_calls)
        domain = domain_of_owner(core, received->header->session);
    *known = domain != NULL;
    if (domain == NULL) return DUCK_CHECK_MAC;
    domain->used_ns = plat_now_ns();
    enum duck_check check = duck_open_sealed(&domain->receive.key, &domain->receive.window, packet,
                                             received->packet_bytes);
    if (check != DUCK_CHECK_OK) return check;
    received->from = association_owner(core);
    received->domain = domain;
    return DUCK_CHECK_OK;
}

bool association_open(struct duck_core *core, const struct plat_peer *from, uint8_t *packet,
                      struct core_received *received) {
    const struct duck_packet_header *header = received->header;
    enum duck_check check = DUCK_CHECK_MAC;
    bool known = false;
    if (header->session != 0 && header->key == DUCK_KEY_DOMAIN)
        check = open_by_domain(core, packet, received, &known);
    for (uint32_t i = 0; header->key == DUCK_KEY_SESSION && i < CORE_ASSOCIATIONS; i++) {
        struct core_association *candidate = &core->association[i];
        if (candidate->state == CORE_FREE || candidate->session != header->session) continue;
        known = true;
        check = open_by_session(candidate, packet, received);
        if (check == DUCK_CHECK_OK || check == DUCK_CHECK_REPLAY) break;
    }
    if (received->from != NULL) {
        heard(received->from, from);
        return true;
    }
    if (!known)
        core->stats.dropped_session++;
    else if (check == DUCK_CHECK_REPLAY)
        core->stats.dropped_replay++;
    else
        core->stats.dropped_mac++;
    return false;
}
