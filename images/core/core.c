/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

void core_init(struct duck_core *core, const struct core_config *config) {
    memset(core, 0, sizeof *core);
    core->config = *config;
    core->start_ns = plat_now_ns();
    while (core->boot_id == 0) plat_random(&core->boot_id, sizeof core->boot_id);
    handshake_init(core);
    core_say(core, "duck core started");
}

/* ---- dispatch -------------------------------------------------------------------------------- */

struct message_rule {
    void (*handle)(struct duck_core *core, const struct core_received *received);
    uint32_t bytes;   /* exact message size, 0 = the handler checks */
    uint8_t domain;   /* may be sealed with a domain key */
    uint8_t in_parts; /* may come in several fragments */
};

/* Requests are as long as their replies, so CLOSE and REBOOT, which carry nothing, are padded to
 * DONE's size. */
static const struct message_rule rules[64] = {
    [DUCK_MSG_PING] = {.handle = control_ping, .bytes = sizeof(struct duck_ping)},
    [DUCK_MSG_LOG] = {.handle = control_log, .bytes = sizeof(struct duck_log_request)},
    [DUCK_MSG_STATS] = {.handle = control_stats, .bytes = sizeof(struct duck_stats)},
    [DUCK_MSG_USAGE] = {.handle = control_usage, .bytes = sizeof(struct duck_usage)},
    [DUCK_MSG_REBOOT] = {.handle = control_reboot, .bytes = sizeof(struct duck_done)},
    [DUCK_MSG_DOMAIN_KEY] = {.handle = domain_key, .bytes = sizeof(struct duck_domain_key)},
    [DUCK_MSG_REKEY] = {.handle = association_rekey, .bytes = sizeof(struct duck_rekey)},
    [DUCK_MSG_RESERVE] = {.handle = bulk_reserve, .bytes = sizeof(struct duck_reserve)},
    [DUCK_MSG_WRITE] = {.handle = bulk_write, .in_parts = 1},
    [DUCK_MSG_COMMIT] = {.handle = commit_request, .bytes = sizeof(struct duck_commit)},
    [DUCK_MSG_READ] = {.handle = bulk_read, .bytes = sizeof(struct duck_read)},
    [DUCK_MSG_OPEN] = {.handle = compute_open, .bytes = sizeof(struct duck_open)},
    [DUCK_MSG_CALL] = {.handle = calls_receive, .domain = 1, .in_parts = 1},
    [DUCK_MSG_NACK] = {.handle = results_nack},
    [DUCK_MSG_QUERY] = {.handle = results_query, .bytes = sizeof(struct duck_query)},
    [DUCK_MSG_CLOSE] = {.handle = compute_close, .bytes = sizeof(struct duck_done)},
};

static const struct message_rule *rule_of(const struct duck_packet_header *header) {
    if (header->type >= sizeof rules / sizeof rules[0]) return NULL;
    const struct message_rule *rule = &rules[header->type];
    if (rule->handle == NULL) return NULL;
    if (header->key == DUCK_KEY_SESSION) return rule;
    return header->key == DUCK_KEY_DOMAIN && rule->domain ? rule : NULL;
}

/* The two messages that come before there are keys; 0 = not one of them. */
static uint32_t clear_bytes(const struct duck_packet_header *header) {
    if (header->key != DUCK_KEY_CLEAR) return 0;
    if (header->type == DUCK_MSG_HELLO) return sizeof(struct duck_hello);
    return header->type == DUCK_MSG_PROOF ? sizeof(struct duck_proof) : 0;
}

static bool size_fits(const struct message_rule *rule, const struct duck_packet_header *header) {
    if (rule->bytes != 0 && header->message_bytes != rule->bytes) return false;
    return rule->in_parts || header->message_bytes <= header->fragment_bytes;
}

static void count_drop(struct duck_stats *stats, enum duck_check check) {
    switch (check) {
    case DUCK_CHECK_OK: break;
    case DUCK_CHECK_SHORT: stats->dropped_short++; break;
    case DUCK_CHECK_MAGIC: stats->dropped_magic++; break;
    case DUCK_CHECK_VERSION: stats->dropped_version++; break;
    case DUCK_CHECK_SIZE: stats->dropped_size++; break;
    case DUCK_CHECK_MAC: stats->dropped_mac++; break;
    case DUCK_CHECK_REPLAY: stats->dropped_replay++; break;
    }
}

void core_packet(struct duck_core *core, const struct plat_peer *from, uint8_t *packet,
                 size_t bytes) {
    struct duck_packet_header header;
    core->stats.packets_received++;
    core->stats.bytes_received += bytes;
    enum duck_check check = duck_packet_check(packet, bytes, &header);
    if (check != DUCK_CHECK_OK && check != DUCK_CHECK_SIZE) {
        count_drop(&core->stats, check);
        return;
    }
    const struct message_rule *rule = rule_of(&header);
    uint32_t clear = clear_bytes(&header);
    if (rule == NULL && clear == 0) {
        core->stats.dropped_type++;
        return;
    }
    bool fits = rule != NULL ? size_fits(rule, &header) : header.payload_bytes == clear;
    if (check == DUCK_CHECK_SIZE || !fits) {
        core->stats.dropped_size++;
        return;
    }
    if (rule == NULL) {
        if (header.type == DUCK_MSG_HELLO)
            handshake_hello(core, from, packet, &header);
        else
            handshake_proof(core, from, packet, &header);
        return;
    }
    struct core_received received = {
        .header = &header,
        .payload = packet + sizeof header,
        .packet_bytes = (uint32_t)bytes,
    };
    if (association_open(core, from, packet, &received)) rule->handle(core, &received);
}

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t core_tick(struct duck_core *core) {
    uint64_t now = plat_now_ns();
    uint64_t next = compute_tick(core, now);
    uint64_t forget = handshake_tick(core, now);
    if (forget < next) next = forget;
    if (results_step(core)) next = 0;
    uint64_t hash_at = commit_step(core, now);
    if (hash_at < next) next = hash_at;
    if (core->reboot_at_ns != 0) {
        if (now >= core->reboot_at_ns) {
            core_stop(core);
            plat_reboot();
            core->reboot_at_ns = 0;
        } else if (core->reboot_at_ns < next) {
            next = core->reboot_at_ns;
        }
    }
    return next;
}

void core_stop(struct duck_core *core) {
    commit_recall(core);
    plat_session_stop();
    core->session.state = CORE_CLOSED;
}
