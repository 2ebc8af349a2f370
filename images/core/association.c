/* SPDX-License-Identifier: Apache-2.0
 *
 * Host sessions. HELLO only makes a waiting association; it becomes active when the first packet
 * arrives that is sealed with its session key, which nobody who merely replays a HELLO can make. So
 * a replayed HELLO costs one place of the table for a while and disturbs no one.
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

/* ---- domain keys ----------------------------------------------------------------------------- */

static bool same_nonce(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, DUCK_WIRE_NONCE_BYTES) == 0;
}

static struct core_domain *domain_find(struct duck_core *core, uint32_t session,
                                       const uint8_t *nonce) {
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (domain->session == session && same_nonce(domain->nonce, nonce)) return domain;
    }
    return NULL;
}

static bool domain_is_in_use(struct duck_core *core, const struct core_domain *domain) {
    const struct core_association *owner = association_owner(core);
    return compute_is_open(core) && owner != NULL &&
           domain->session == core->session.domain_session &&
           same_nonce(domain->nonce, owner->domain_nonce);
}

/* The key used longest ago, but never the one that the compute session's calls come by. */
static struct core_domain *place_for_domain(struct duck_core *core) {
    struct core_domain *best = NULL;
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        struct core_domain *domain = &core->domain[i];
        if (domain_is_in_use(core, domain)) continue;
        if (best == NULL || domain->used_ns < best->used_ns) best = domain;
    }
    return best;
}

/* Make sure the key of this association's domain is there. An existing one keeps its replay window:
 * a key that met packets once must never accept them again. */
static void domain_join(struct duck_core *core, const struct core_association *association) {
    uint32_t session = association->domain_session;
    if (session == 0) return;
    struct core_domain *domain = domain_find(core, session, association->domain_nonce);
    if (domain == NULL) {
        domain = place_for_domain(core);
        uint8_t raw[16];
        duck_domain_key_derive(core->config.fleet_key, association->domain_nonce, raw);
        duck_seal_key_set(&domain->key, raw, DUCK_KEY_DOMAIN, DUCK_TO_DUCK);
        memset(raw, 0, sizeof raw);
        duck_replay_reset(&domain->window);
        domain->session = session;
        memcpy(domain->nonce, association->domain_nonce, sizeof domain->nonce);
    }
    domain->used_ns = plat_now_ns();
}

uint64_t association_domain_newest(const struct duck_core *core, uint32_t domain_session,
                                   const struct core_association *association) {
    for (uint32_t i = 0; i < CORE_DOMAINS; i++) {
        const struct core_domain *domain = &core->domain[i];
        if (domain->session == domain_session &&
            same_nonce(domain->nonce, association->domain_nonce))
            return domain->window.newest;
    }
    return 0;
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

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

static struct core_association *make_association(struct duck_core *core,
                                                 const struct duck_hello *hello) {
    struct core_association *association = place_for_new(core);
    struct duck_session_keys keys;
    memset(association, 0, sizeof *association);
    association->state = CORE_PENDING;
    association->generation = ++core->generations;
    association->session = hello->session;
    association->domain_session = hello->domain_session;
    memcpy(association->host_nonce, hello->host_nonce, DUCK_WIRE_NONCE_BYTES);
    memcpy(association->domain_nonce, hello->domain_nonce, DUCK_WIRE_NONCE_BYTES);
    plat_random(association->duck_nonce, DUCK_WIRE_NONCE_BYTES);
    duck_session_keys_derive(core->config.fleet_key, hello->host_nonce, association->duck_nonce,
                             &keys);
    duck_seal_key_set(&association->receive_key, keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    duck_seal_key_set(&association->send_key, keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    memset(&keys, 0, sizeof keys);
    association->heard_ns = plat_now_ns();
    return association;
}

/* A HELLO that came again (its INFO was lost, or somebody replays it) gets the same nonce, so the
 * host may use any answer. */
static struct core_association *find_hello(struct duck_core *core, const struct duck_hello *hello) {
    for (uint32_t i = 0; i < CORE_ASSOCIATIONS; i++) {
        struct core_association *association = &core->association[i];
        if (association->state != CORE_FREE && association->session == hello->session &&
            association->domain_session == hello->domain_session &&
            same_nonce(association->host_nonce, hello->host_nonce) &&
            same_nonce(association->domain_nonce, hello->domain_nonce))
            return association;
    }
    return NULL;
}

static void fill_info(const struct duck_core *core, const struct core_association *association,
                      uint16_t interface, struct duck_info *info) {
    const struct core_region *weights = &core->region[DUCK_REGION_WEIGHTS];
    memset(info, 0, sizeof *info);
    plat_describe(interface, info);
    info->session = association->session;
    info->protocol_version = DUCK_WIRE_VERSION;
    memcpy(info->host_nonce, association->host_nonce, DUCK_WIRE_NONCE_BYTES);
    memcpy(info->duck_nonce, association->duck_nonce, DUCK_WIRE_NONCE_BYTES);
    info->boot_id = core->boot_id;
    memcpy(info->build, core->config.build, sizeof info->build);
    memcpy(info->name, core->config.name, sizeof info->name);
    info->weight_bytes_max = plat_region_bytes_max(DUCK_REGION_WEIGHTS);
    info->state = core_state(core);
    info->abi_version = DUCK_KERNEL_ABI_VERSION;
    if (core->session.state == CORE_SERVING) {
        memcpy(info->kernel, core->session.kernel_words, sizeof info->kernel);
    }
    if (weights->whole) memcpy(info->weights_id, weights->set_id, sizeof info->weights_id);
    info->uptime_ns = plat_now_ns() - core->start_ns;
}

void association_hello(struct duck_core *core, const struct plat_peer *from, uint8_t *packet,
                       const struct duck_packet_header *header) {
    struct duck_hello hello;
    struct duck_info info;
    if (header->message_bytes != sizeof info || header->payload_bytes != sizeof info) {
        core->stats.dropped_size++;
        return;
    }
    size_t bytes = sizeof *header + sizeof info;
    if (duck_open_fleet(core->config.fleet_key, packet, bytes) != DUCK_CHECK_OK) {
        core->stats.dropped_mac++;
        return;
    }
    memcpy(&hello, packet + sizeof *header, sizeof hello);
    if (hello.session == 0 || hello.session != header->session) {
        core->stats.dropped_session++;
        return;
    }
    struct core_association *association = find_hello(core, &hello);
    if (association == NULL) association = make_association(core, &hello);
    fill_info(core, association, from->interface, &info);
    struct duck_packet_header answer = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = DUCK_MSG_INFO,
        .key = DUCK_KEY_FLEET,
        .session = hello.session,
        .sequence = header->sequence,
        .message_bytes = sizeof info,
        .fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500,
        .payload_bytes = sizeof info,
    };
    uint8_t *out = plat_packet_buffer();
    memcpy(out, &answer, sizeof answer);
    memcpy(out + sizeof answer, &info, sizeof info);
    duck_seal_fleet(core->config.fleet_key, out, bytes);
    core->stats.packets_sent++;
    core->stats.bytes_sent += bytes;
    plat_packet_send(from, bytes);
}

/* ---- sealed packets -------------------------------------------------------------------------- */

static struct core_association *activate(struct duck_core *core,
                                         struct core_association *association,
                                         const struct plat_peer *from) {
    if (association->state == CORE_PENDING) {
        association->state = CORE_ACTIVE;
        domain_join(core, association);
    }
    association->peer = *from;
    association->heard_ns = plat_now_ns();
    return association;
}

/* Calls by domain key count only for the association that opened the compute session with this
 * domain session. */
static struct core_association *open_domain(struct duck_core *core, uint8_t *packet, size_t bytes,
                                            const struct duck_packet_header *header,
                                            enum duck_check *check) {
    if (!compute_is_open(core) || core->session.domain_session != header->session) return NULL;
    struct core_association *owner = association_owner(core);
    if (owner == NULL) return NULL;
    struct core_domain *domain = domain_find(core, header->session, owner->domain_nonce);
    if (domain == NULL) return NULL;
    domain->used_ns = plat_now_ns();
    *check = duck_open_sealed(&domain->key, &domain->window, packet, bytes);
    return owner;
}

struct core_association *association_open(struct duck_core *core, const struct plat_peer *from,
                                          uint8_t *packet, size_t bytes,
                                          const struct duck_packet_header *header) {
    enum duck_check check = DUCK_CHECK_MAC;
    bool known = false;
    if (header->session != 0 && header->key == DUCK_KEY_DOMAIN) {
        struct core_association *owner = open_domain(core, packet, bytes, header, &check);
        if (owner != NULL && check == DUCK_CHECK_OK) return activate(core, owner, from);
        known = owner != NULL;
    }
    for (uint32_t i = 0; header->key == DUCK_KEY_SESSION && i < CORE_ASSOCIATIONS; i++) {
        struct core_association *candidate = &core->association[i];
        if (candidate->state == CORE_FREE || candidate->session != header->session) continue;
        known = true;
        check = duck_open_sealed(&candidate->receive_key, &candidate->window, packet, bytes);
        if (check == DUCK_CHECK_OK) return activate(core, candidate, from);
        if (check == DUCK_CHECK_REPLAY) break;
    }
    if (!known)
        core->stats.dropped_session++;
    else if (check == DUCK_CHECK_REPLAY)
        core->stats.dropped_replay++;
    else
        core->stats.dropped_mac++;
    return NULL;
}
