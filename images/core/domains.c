/* SPDX-License-Identifier: Apache-2.0
 *
 * Domain keys: a host seals a call once for all ducks of a domain, under a key that it made and
 * gave to each of them inside its session. It may give the next one at any time: both are good
 * until the place of the older one is needed.
 */
#include "parts.h"

static bool is_given_by(const struct duck_core *core, const struct core_domain *domain,
                        const struct core_association *association) {
    return domain->session != 0 && domain->owner == association_index(core, association) &&
           domain->owner_generation == association->generation;
}

struct core_domain *domain_of_owner(struct duck_core *core, uint32_t session) {
    const struct core_association *owner = association_owner(core);
    if (owner == NULL) return NULL;
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (domain->session == session && is_given_by(core, domain, owner)) return domain;
    }
    return NULL;
}

bool domain_is_known(const struct duck_core *core, uint32_t session,
                     const struct core_association *association) {
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        const struct core_domain *domain = &core->domain[i];
        if (domain->session == session && is_given_by(core, domain, association)) return true;
    }
    return false;
}

void domain_set_floors(struct duck_core *core, const struct core_association *association) {
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (is_given_by(core, domain, association)) domain->floor = domain->receive.window.newest;
    }
}

/* The key used longest ago, but never the one that the compute session's calls came by last. */
static struct core_domain *place_for_new(struct duck_core *core) {
    const struct core_association *owner = association_owner(core);
    struct core_domain *best = NULL, *in_use = NULL;
    for (uint32_t i = 0; compute_is_open(core) && owner != NULL && i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (!is_given_by(core, domain, owner)) continue;
        if (in_use == NULL || domain->used_ns > in_use->used_ns) in_use = domain;
    }
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (domain == in_use) continue;
        if (best == NULL || domain->used_ns < best->used_ns) best = domain;
    }
    return best;
}

/* An existing key keeps its replay window: a key that met packets once must never accept them
 * again. */
static void learn(struct duck_core *core, const struct core_association *from, uint32_t session,
                  const uint8_t raw[16]) {
    struct core_domain *domain = NULL;
    for (uint32_t i = 0; i < CORE_DOMAINS && domain == NULL; i++) {
        struct core_domain *candidate = &core->domain[i];
        if (candidate->session == session && duck_equal(candidate->raw, raw, 16))
            domain = candidate;
    }
    if (domain == NULL) {
        domain = place_for_new(core);
        duck_seal_key_set(&domain->receive.key, raw, DUCK_KEY_DOMAIN, DUCK_TO_DUCK);
        duck_replay_reset(&domain->receive.window);
        domain->session = session;
        domain->floor = 0;
        memcpy(domain->raw, raw, sizeof domain->raw);
    }
    domain->owner = association_index(core, from);
    domain->owner_generation = from->generation;
    domain->used_ns = plat_now_ns();
}

void domain_key(struct duck_core *core, const struct core_received *received) {
    struct duck_domain_key request;
    uint8_t raw[16];
    if (!reply_begin(core, received)) return;
    memcpy(&request, received->payload, sizeof request);
    struct duck_done done = done_make(DUCK_OK, 0, "");
    if (request.domain_session == 0)
        done = done_make(DUCK_ERR_BAD_REQUEST, 0, "DOMAIN_KEY: domain_session is 0");
    else if (!duck_domain_key_unwrap(received->from->keys.wrap, &request, raw))
        done = done_make(DUCK_ERR_BAD_REQUEST, 0, "DOMAIN_KEY: the key does not open");
    else
        learn(core, received->from, request.domain_session, raw);
    memset(raw, 0, sizeof raw);
    reply_finish(core, reply_ticket(core, received), &done);
}
