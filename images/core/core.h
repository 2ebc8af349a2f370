/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck core: everything a duck does, without knowing what machine it runs on. A platform calls
 * three functions; all state is in one struct that the platform provides, and nothing is allocated
 * after core_init.
 *
 *     core_init(core, config)
 *     loop: core_packet(core, from, packet, bytes) for each datagram;  deadline = core_tick(core)
 *
 * Files: packet.c (checks, counters, sending), handshake.c (HELLO, PROOF, cookies), association.c
 * (sessions and their keys), domains.c (keys of broadcast calls), replies.c (reply cache),
 * control.c (PING, LOG, STATS, REBOOT), bulk.c and commit.c (RESERVE, WRITE, READ, COMMIT),
 * compute.c (OPEN, CLOSE, faults), calls.c (CALL in, order, completion), results.c (RESULT out,
 * QUERY, NACK).
 */
#ifndef DUCK_CORE_H
#define DUCK_CORE_H

#include "log.h"
#include "platform.h"
#include "ranges.h"
#include <seal.h>

/* ---- limits ---------------------------------------------------------------------------------- */
/* Host sessions, waiting and active; the least recently heard one is reused. */
#define CORE_ASSOCIATIONS 16u
#define CORE_PENDING_STALE_NS 2000000000ull /* a handshake takes milliseconds */
#define CORE_ACTIVE_STALE_NS 60000000000ull /* hosts send a heartbeat every second or so */
#define CORE_DOMAINS 16u                    /* domain keys */
/* An ephemeral key is given out in cookies for so long, and accepted for so long. */
#define CORE_EPHEMERAL_NS 5000000000ull
#define CORE_COOKIE_NS 10000000000ull
/* Sessions made with one ephemeral key; then it is given up, so that each is remembered. */
#define CORE_PROOFS 32u
/* Signature checks (about a millisecond each): one per period in the long run, a few at once. Hosts
 * that were believed before have a share of their own. */
#define CORE_VERIFY_PERIOD_NS 50000000ull
#define CORE_VERIFY_BURST 8u
#define CORE_KNOWN_HOSTS 4u
#define CORE_REPLIES 32u /* remembered replies per association */
#define CORE_COMMITS 16u /* COMMITs waiting for their hash */
/* Hashed between two looks at the network, or until a recall is seen: about 1 ms. */
#define CORE_HASH_STEP_BYTES (256u << 10)
#define CORE_HASH_SERVING_BYTES (4u << 10) /* beside an open session, between calls: 20 us */
#define CORE_HASH_LOOK_NS 200000ull        /* how often a hash on another core is looked at */
#define CORE_CHUNK_FRAGMENTS_MAX (DUCK_WIRE_WRITE_CHUNK_BYTES / 64u)
#define CORE_SCRATCH_BYTES_MAX (4ull << 30)
#define CORE_CALL_TIME_LIMIT_MS_MAX 600000u
#define CORE_START_LIMIT_NS 60000000000ull /* OPEN until the kernel's init_status */
#define CORE_START_LOOK_NS 500000ull       /* how often init_status is looked at */
/* No progress on an incomplete call for so long: ask for what is missing. Each try waits twice as
 * long as the one before. On a path (or behind a scheduler) that makes fragments late, the first
 * wait is twice the longest pause seen lately, within these bounds. */
#define CORE_NACK_QUIET_NS 300000ull
#define CORE_NACK_QUIET_NS_MAX 10000000ull
#define CORE_PAUSE_DECAY 64u /* the longest pause is forgotten by this part with each fragment */
#define CORE_NACK_TRIES 8u
/* RESULT packets of one call sent between two looks at the network. */
#define CORE_RESULT_BURST 32u
/* A result is repeated at most this often for a repeated CALL; QUERY and NACK always get theirs. */
#define CORE_REPEAT_QUIET_NS 1000000ull
#define CORE_REBOOT_DELAY_NS 50000000ull /* REBOOT's DONE may have to be sent twice */

/* ---- associations ---------------------------------------------------------------------------- */
enum core_association_state { CORE_FREE = 0, CORE_PENDING = 1, CORE_ACTIVE = 2 };

enum core_reply_state { CORE_REPLY_NONE = 0, CORE_REPLY_WORKING = 1, CORE_REPLY_READY = 2 };

struct core_reply {
    uint32_t sequence;
    uint8_t type; /* of the request */
    uint8_t state;
    struct duck_done done;
};

/* Receiving state of one bulk chunk; place = sequence % DUCK_WIRE_WRITES_IN_FLIGHT_MAX. */
struct core_chunk {
    uint32_t sequence; /* 0 = none yet */
    uint32_t region;
    uint32_t generation; /* of the region */
    uint32_t message_bytes;
    uint32_t fragments;
    uint32_t received;
    uint16_t stride;
    uint64_t offset;
    uint64_t asked_bytes; /* received for this chunk and not yet spent on answers */
    uint64_t bits[CORE_CHUNK_FRAGMENTS_MAX / 64u];
};

struct core_receive_key {
    struct duck_seal_key key;
    struct duck_replay_window window;
};

struct core_association {
    uint8_t state; /* enum core_association_state */
    uint32_t session;
    uint32_t generation;     /* tells a reused place from its former holder */
    struct duck_proof proof; /* that made it: the same again is answered, not checked again */
    struct plat_peer peer;
    uint64_t heard_ns;
    /* Keys by epoch (REKEY). The host is sent to under `send_epoch`; `newest_epoch` is that or the
     * one after it, which begins when the host is heard under it. */
    uint32_t send_epoch, newest_epoch;
    struct duck_session_keys keys;      /* of newest_epoch */
    struct core_receive_key receive[2]; /* place = epoch % 2: the newest two */
    struct duck_seal_key send_key;
    struct duck_rekey rekey_asked, rekey_answer; /* for newest_epoch */
    uint64_t requests_seen[4];                   /* bitmap of the 256 newest request sequences */
    uint32_t request_newest;
    struct core_reply reply[CORE_REPLIES];
    struct core_chunk chunk[DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
};

/* One domain key. It outlives associations: the same key keeps its replay window. */
struct core_domain {
    uint32_t session; /* 0 = unused */
    uint8_t raw[16];
    uint32_t owner; /* association that gave it last, and which of its holders */
    uint32_t owner_generation;
    uint64_t floor; /* calls sealed before the owner's OPEN belong to an earlier session */
    uint64_t used_ns;
    struct core_receive_key receive;
};

/* A key pair of the duck for handshakes, and the proofs that were believed with it. */
struct core_ephemeral {
    bool is_set;
    uint64_t born_ns;
    uint8_t private_key[DUCK_WIRE_KEY_BYTES];
    uint8_t public_key[DUCK_WIRE_KEY_BYTES];
    uint32_t proofs;
    uint8_t nonce[CORE_PROOFS][DUCK_WIRE_NONCE_BYTES]; /* duck nonces */
};

struct core_handshake {
    uint8_t cookie_secret[DUCK_WIRE_KEY_BYTES];
    uint8_t identity_public[DUCK_WIRE_KEY_BYTES];
    struct core_ephemeral ephemeral[2]; /* the one in use and the one before it */
    uint32_t in_use;
    uint64_t verify_ns[2]; /* limiters of signature checks: strangers, known hosts */
    uint32_t known_host[CORE_KNOWN_HOSTS]; /* addresses */
    uint32_t known_next;
};

/* Names a request whose reply comes later. */
struct core_ticket {
    uint32_t association;
    uint32_t generation;
    uint32_t sequence;
};

/* ---- regions --------------------------------------------------------------------------------- */
struct core_region {
    uint8_t *memory;
    uint64_t bytes; /* 0 = not reserved */
    uint32_t generation;
    bool whole; /* the last piece of a set was committed and no byte was written since */
    uint8_t set_id[DUCK_WIRE_DIGEST_BYTES];
    struct byte_ranges committed;
};

struct core_commit_job {
    struct core_ticket ticket;
    struct duck_commit request;
    uint32_t generation; /* of the region */
    bool is_away;        /* a spare core hashes: `memory`, `done_bytes` and `hash` are its own */
    uint32_t is_back;    /* owner: the spare core, which sets it when it lets go */
    uint32_t recall;     /* owner: this core. 1: let go after the present step */
    const uint8_t *memory;
    uint64_t done_bytes;
    duck_sha256 hash;
};

/* ---- compute --------------------------------------------------------------------------------- */
enum core_session_state { CORE_CLOSED = 0, CORE_STARTING = 1, CORE_SERVING = 2, CORE_FAULTED = 3 };

enum core_call_state {
    CORE_CALL_EMPTY = 0,
    CORE_CALL_EXPECTED = 1, /* known to exist, nothing of it has come */
    CORE_CALL_RECEIVING = 2,
    CORE_CALL_WHOLE = 3, /* waits for its turn, or runs */
    CORE_CALL_FINISHED = 4
};

struct core_call {
    uint8_t state; /* enum core_call_state */
    uint8_t nacks; /* sent without progress since */
    uint16_t stride;
    uint32_t sequence;
    uint32_t message_bytes;
    uint32_t fragments;
    uint32_t received;
    uint64_t progress_ns; /* last new fragment, or last NACK */
    uint64_t arrived_ns;  /* last new fragment */
    uint64_t asked_bytes; /* received for this call and not yet spent on NACKs */
    uint64_t whole_ns;
    uint64_t published_ns;
    /* the result, a copy that the kernel can't reach */
    uint32_t output_bytes;
    int32_t status;
    struct duck_result_prefix prefix;
    uint32_t start; /* of the kernel, as in the header of RESULT */
    char text[92];
    uint64_t answered_ns;
    /* RESULT fragments still to be sent */
    uint32_t send_count, send_index, send_at;
    struct duck_nack_range send[DUCK_WIRE_NACK_RANGES_MAX];
    uint64_t bits[(DUCK_WIRE_FRAGMENTS_MAX + 63u) / 64u];
};

struct core_session {
    uint8_t state;             /* enum core_session_state */
    uint32_t owner;            /* association index */
    uint32_t owner_generation; /* and which of its holders */
    bool takes_domain_calls;
    /* calls sealed before this OPEN belong to an earlier session */
    uint32_t floor_epoch;
    uint64_t floor_counter;
    uint32_t call_bytes_max, result_bytes_max;
    uint64_t input_stride, output_stride; /* of the slots in the calls buffer */
    uint64_t call_time_limit_ns;
    uint64_t started_ns;
    bool is_one_shot;
    bool is_over; /* one-shot: every entry has returned, the result may still be asked for */
    struct core_ticket opening;
    struct plat_session_memory shared;
    uint32_t published, completed; /* call numbers */
    uint64_t pause_ns;             /* longest between two fragments of a call, slowly forgotten */
    uint64_t busy_since_ns;        /* when the running call began */
    struct duck_fault fault;       /* of the session that ended, when FAULTED */
    char kernel_words[40];         /* what the kernel said when it was ready; for INFO */
    struct core_call call[DUCK_WIRE_CALLS_IN_FLIGHT_MAX];
};
static_assert(DUCK_WIRE_CALLS_IN_FLIGHT_MAX == DUCK_KERNEL_SLOTS, "the slots are the result cache");

/* ---- the duck -------------------------------------------------------------------------------- */
struct core_config {
    uint8_t fleet_public[DUCK_WIRE_PUBLIC_BYTES];
    uint8_t
        identity_private[DUCK_WIRE_KEY_BYTES]; /* X25519: any 32 random bytes, this duck's own */
    uint8_t build[DUCK_WIRE_BUILD_BYTES];
    char name[DUCK_WIRE_NAME_BYTES];
};

struct duck_core {
    struct core_config config;
    uint64_t boot_id;
    uint32_t platform; /* enum duck_platform */
    uint64_t start_ns;
    uint64_t reboot_at_ns; /* 0 = no reboot is pending */
    uint32_t generations;
    struct duck_stats stats;
    struct core_handshake handshake;
    struct core_association association[CORE_ASSOCIATIONS];
    struct core_domain domain[CORE_DOMAINS];
    struct core_region region[DUCK_REGION_COUNT];
    uint32_t commit_first, commit_count; /* a ring: first in, first answered */
    struct core_commit_job commit[CORE_COMMITS];
    struct core_session session;
    struct core_log log;
};

void core_init(struct duck_core *core, const struct core_config *config);

/* One datagram. It may be changed; it is not needed afterwards. */
void core_packet(struct duck_core *core, const struct plat_peer *from, uint8_t *packet,
                 size_t bytes);

/* Do what is due. Returns when to call again at the latest (monotonic ns): 0 = at once, UINT64_MAX
 * = only packets or the session can bring work. */
uint64_t core_tick(struct duck_core *core);

/* End the compute session before the platform goes away. */
void core_stop(struct duck_core *core);

#endif
