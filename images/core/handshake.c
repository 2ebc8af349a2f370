/* SPDX-License-Identifier: Apache-2.0
 *
 * HELLO -> COOKIE, PROOF -> INFO. What a stranger can make a duck do is bounded at each step: a
 * HELLO costs one HMAC and leaves nothing behind; a PROOF must carry the cookie that was sent to
 * its own address a few seconds ago; signature checks are limited in rate. Answers are as long as
 * what they answer. A recorded PROOF does nothing: its cookie is too old, or it is known.
 */
#include "parts.h"

/* What a cookie is bound to. */
struct cookie_facts {
    uint32_t address;
    uint16_t port;
    uint16_t zero;
    uint32_t session;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES];
};
static_assert(sizeof(struct cookie_facts) == 60, "no padding to hash");

void handshake_init(struct duck_core *core) {
    struct duck_info machine = {0};
    plat_describe(0, &machine);
    core->platform = machine.platform;
    plat_random(core->handshake.cookie_secret, sizeof core->handshake.cookie_secret);
    duck_agree_public(core->config.identity_private, core->handshake.identity_public);
}

/* ---- ephemeral keys -------------------------------------------------------------------------- */

static void forget(struct core_ephemeral *ephemeral) { memset(ephemeral, 0, sizeof *ephemeral); }

/* The one to give out now. Making one takes less than a millisecond, at most once per
 * CORE_EPHEMERAL_NS however many HELLOs come. */
static struct core_ephemeral *ephemeral_now(struct duck_core *core) {
    struct core_handshake *handshake = &core->handshake;
    struct core_ephemeral *ephemeral = &handshake->ephemeral[handshake->in_use];
    uint64_t now = plat_now_ns();
    if (ephemeral->is_set && now - ephemeral->born_ns < CORE_EPHEMERAL_NS &&
        ephemeral->proofs < CORE_PROOFS)
        return ephemeral;
    handshake->in_use ^= 1u;
    ephemeral = &handshake->ephemeral[handshake->in_use];
    forget(ephemeral);
    plat_random(ephemeral->private_key, sizeof ephemeral->private_key);
    duck_agree_public(ephemeral->private_key, ephemeral->public_key);
    ephemeral->born_ns = now;
    ephemeral->is_set = true;
    return ephemeral;
}

uint64_t handshake_tick(struct duck_core *core, uint64_t now) {
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        struct core_ephemeral *ephemeral = &core->handshake.ephemeral[i];
        if (!ephemeral->is_set) continue;
        uint64_t end = ephemeral->born_ns + CORE_COOKIE_NS;
        if (now >= end)
            forget(ephemeral);
        else if (end < next)
            next = end;
    }
    return next;
}

static void make_cookie(const struct duck_core *core, const struct core_ephemeral *ephemeral,
                        const struct plat_peer *from, uint32_t session,
                        const uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES],
                        uint8_t cookie[DUCK_WIRE_NONCE_BYTES]) {
    struct cookie_facts facts = {.address = from->address, .port = from->port, .session = session};
    memcpy(facts.host_nonce, host_nonce, sizeof facts.host_nonce);
    memcpy(facts.ephemeral, ephemeral->public_key, sizeof facts.ephemeral);
    duck_cookie_make(core->handshake.cookie_secret, &facts, sizeof facts, cookie);
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

void handshake_hello(struct duck_core *core, const struct plat_peer *from, const uint8_t *packet,
                     const struct duck_packet_header *header) {
    struct duck_hello hello;
    memcpy(&hello, packet + sizeof *header, sizeof hello);
    if (hello.session == 0 || hello.session != header->session) {
        core->stats.dropped_session++;
        return;
    }
    const struct core_ephemeral *ephemeral = ephemeral_now(core);
    struct duck_cookie cookie = {
        .session = hello.session,
        .protocol_version = DUCK_WIRE_VERSION,
        .boot_id = core->boot_id,
        .platform = core->platform,
    };
    memcpy(cookie.host_nonce, hello.host_nonce, sizeof cookie.host_nonce);
    make_cookie(core, ephemeral, from, hello.session, hello.host_nonce, cookie.duck_nonce);
    memcpy(cookie.ephemeral, ephemeral->public_key, sizeof cookie.ephemeral);
    memcpy(cookie.identity, core->handshake.identity_public, sizeof cookie.identity);
    memcpy(cookie.build, core->config.build, sizeof cookie.build);
    memcpy(cookie.name, core->config.name, sizeof cookie.name);
    struct duck_packet_header answer = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = DUCK_MSG_COOKIE,
        .key = DUCK_KEY_CLEAR,
        .session = hello.session,
        .sequence = header->sequence,
        .message_bytes = sizeof cookie,
        .fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500,
        .payload_bytes = sizeof cookie,
    };
    uint8_t *out = plat_packet_buffer();
    memcpy(out, &answer, sizeof answer);
    memcpy(out + sizeof answer, &cookie, sizeof cookie);
    core->stats.packets_sent++;
    core->stats.bytes_sent += sizeof answer + sizeof cookie;
    plat_packet_send(from, sizeof answer + sizeof cookie);
}

/* ---- PROOF ----------------------------------------------------------------------------------- */

/* The key pair whose cookie this proof carries; NULL = too old, for another address, or made up. */
static struct core_ephemeral *find_ephemeral(struct duck_core *core, const struct plat_peer *from,
                                             const struct duck_proof *proof) {
    uint64_t now = plat_now_ns();
    for (int i = 0; i < 2; i++) {
        struct core_ephemeral *ephemeral = &core->handshake.ephemeral[i];
        uint8_t cookie[DUCK_WIRE_NONCE_BYTES];
        if (!ephemeral->is_set || now - ephemeral->born_ns >= CORE_COOKIE_NS) continue;
        make_cookie(core, ephemeral, from, proof->session, proof->host_nonce, cookie);
        if (duck_equal(cookie, proof->duck_nonce, sizeof cookie)) return ephemeral;
    }
    return NULL;
}

static bool was_believed(const struct core_ephemeral *ephemeral, const struct duck_proof *proof) {
    for (uint32_t i = 0; i < ephemeral->proofs; i++)
        if (memcmp(ephemeral->nonce[i], proof->duck_nonce, DUCK_WIRE_NONCE_BYTES) == 0) return true;
    return false;
}

static bool is_known_host(const struct duck_core *core, uint32_t address) {
    for (uint32_t i = 0; i < CORE_KNOWN_HOSTS; i++)
        if (core->handshake.known_host[i] == address) return true;
    return false;
}

/* May a signature from there be checked now? */
static bool may_verify(struct duck_core *core, const struct plat_peer *from) {
    uint64_t *next = &core->handshake.verify_ns[is_known_host(core, from->address) ? 1 : 0];
    uint64_t now = plat_now_ns();
    uint64_t base = *next > now ? *next : now;
    if (base - now > (CORE_VERIFY_BURST - 1) * CORE_VERIFY_PERIOD_NS) return false;
    *next = base + CORE_VERIFY_PERIOD_NS;
    return true;
}

static void believe(struct duck_core *core, struct core_ephemeral *ephemeral,
                    const struct plat_peer *from, const struct duck_proof *proof) {
    struct core_handshake *handshake = &core->handshake;
    memcpy(ephemeral->nonce[ephemeral->proofs++], proof->duck_nonce, DUCK_WIRE_NONCE_BYTES);
    if (is_known_host(core, from->address)) return;
    handshake->known_host[handshake->known_next++ % CORE_KNOWN_HOSTS] = from->address;
}

/* Checks the signature and agrees on keys: the expensive part. */
static bool agree(const struct duck_core *core, const struct core_ephemeral *ephemeral,
                  const struct duck_proof *proof, struct duck_session_keys *keys) {
    uint8_t digest[DUCK_WIRE_DIGEST_BYTES];
    uint8_t by_ephemeral[DUCK_WIRE_KEY_BYTES], by_identity[DUCK_WIRE_KEY_BYTES];
    struct duck_transcript transcript = {.session = proof->session, .boot_id = core->boot_id};
    memcpy(transcript.host_nonce, proof->host_nonce, sizeof transcript.host_nonce);
    memcpy(transcript.duck_nonce, proof->duck_nonce, sizeof transcript.duck_nonce);
    memcpy(transcript.host_ephemeral, proof->ephemeral, sizeof transcript.host_ephemeral);
    memcpy(transcript.duck_ephemeral, ephemeral->public_key, sizeof transcript.duck_ephemeral);
    memcpy(transcript.duck_identity, core->handshake.identity_public,
           sizeof transcript.duck_identity);
    duck_transcript_digest(&transcript, core->config.fleet_public, digest);
    if (!duck_fleet_verify(core->config.fleet_public, digest, proof->signature)) return false;
    bool good = duck_agree(ephemeral->private_key, proof->ephemeral, by_ephemeral) &&
                duck_agree(core->config.identity_private, proof->ephemeral, by_identity);
    if (good) duck_session_keys_derive(digest, by_ephemeral, by_identity, keys);
    memset(by_ephemeral, 0, sizeof by_ephemeral);
    memset(by_identity, 0, sizeof by_identity);
    return good;
}

static void fill_info(const struct duck_core *core, const struct core_association *association,
                      struct duck_info *info) {
    const struct core_region *weights = &core->region[DUCK_REGION_WEIGHTS];
    memset(info, 0, sizeof *info);
    plat_describe(association->peer.interface, info);
    info->session = association->session;
    info->protocol_version = DUCK_WIRE_VERSION;
    info->boot_id = core->boot_id;
    memcpy(info->build, core->config.build, sizeof info->build);
    memcpy(info->name, core->config.name, sizeof info->name);
    info->weight_bytes_max = plat_region_bytes_max(DUCK_REGION_WEIGHTS);
    info->state = core_state(core);
    info->abi_version = DUCK_KERNEL_ABI_VERSION;
    if (core->session.state == CORE_SERVING)
        memcpy(info->kernel, core->session.kernel_words, sizeof info->kernel);
    if (weights->whole) memcpy(info->weights_id, weights->set_id, sizeof info->weights_id);
    info->uptime_ns = plat_now_ns() - core->start_ns;
}

/* The association that this proof makes, or made; NULL when it is dropped. */
static struct core_association *admit(struct duck_core *core, const struct plat_peer *from,
                                      const struct duck_proof *proof) {
    struct core_ephemeral *ephemeral = find_ephemeral(core, from, proof);
    if (ephemeral == NULL) {
        core->stats.dropped_session++;
        return NULL;
    }
    if (was_believed(ephemeral, proof)) {
        struct core_association *same = association_find(core, proof);
        if (same == NULL) core->stats.dropped_replay++;
        return same;
    }
    if (ephemeral->proofs == CORE_PROOFS || !may_verify(core, from)) {
        core->stats.dropped_limit++;
        return NULL;
    }
    struct duck_session_keys keys;
    if (!agree(core, ephemeral, proof, &keys)) {
        core->stats.dropped_mac++;
        return NULL;
    }
    believe(core, ephemeral, from, proof);
    struct core_association *made = association_make(core, from, proof, &keys);
    memset(&keys, 0, sizeof keys);
    return made;
}

void handshake_proof(struct duck_core *core, const struct plat_peer *from, const uint8_t *packet,
                     const struct duck_packet_header *header) {
    struct duck_proof proof;
    struct duck_info info;
    memcpy(&proof, packet + sizeof *header, sizeof proof);
    if (proof.session == 0 || proof.session != header->session) {
        core->stats.dropped_session++;
        return;
    }
    struct core_association *association = admit(core, from, &proof);
    if (association == NULL) return;
    fill_info(core, association, &info);
    packet_send(core, association, DUCK_MSG_INFO, header->sequence, &info, sizeof info);
}
