/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the core offer each other; platforms do not include this.
 */
#ifndef DUCK_CORE_PARTS_H
#define DUCK_CORE_PARTS_H

#include "core.h"
#include <string.h>

/* A checked packet of an association. */
struct core_received {
    struct core_association *from;
    const struct duck_packet_header *header;
    const uint8_t *payload; /* header->payload_bytes of it */
    uint32_t packet_bytes;
    uint32_t epoch;                   /* of the session key that sealed it */
    const struct core_domain *domain; /* whose key sealed it; NULL = the session's */
};

/* ---- packet.c -------------------------------------------------------------------------------- */
/* Send a message of one packet. */
void packet_send(struct duck_core *core, struct core_association *to, uint8_t type,
                 uint32_t sequence, const void *payload, uint32_t bytes);
/* Finish and send a packet whose payload is already in place behind the header in `packet`. */
void packet_send_built(struct duck_core *core, struct core_association *to, uint8_t *packet,
                       const struct duck_packet_header *header);
/* DONE and FAULT with their text cut, so that the answer is no longer than the question. Sends
 * nothing when even the fields would be longer. */
void packet_send_done(struct duck_core *core, struct core_association *to, uint32_t sequence,
                      const struct duck_done *done, uint64_t asked_bytes);
void packet_send_fault(struct duck_core *core, struct core_association *to, uint32_t sequence,
                       const struct duck_fault *fault, uint64_t asked_bytes);
bool packet_is_last_fragment(const struct duck_packet_header *header);

/* ---- handshake.c ----------------------------------------------------------------------------- */
void handshake_init(struct duck_core *core);
void handshake_hello(struct duck_core *core, const struct plat_peer *from, const uint8_t *packet,
                     const struct duck_packet_header *header);
void handshake_proof(struct duck_core *core, const struct plat_peer *from, const uint8_t *packet,
                     const struct duck_packet_header *header);
uint64_t handshake_tick(struct duck_core *core, uint64_t now); /* forgets old keys */

/* ---- association.c --------------------------------------------------------------------------- */
/* The association that this proof made, if it is still there. */
struct core_association *association_find(struct duck_core *core, const struct duck_proof *proof);
struct core_association *association_make(struct duck_core *core, const struct plat_peer *from,
                                          const struct duck_proof *proof,
                                          const struct duck_session_keys *keys);
/* Find who sealed this packet and fill received->from, epoch and domain; counts and returns false
 * when nobody did. */
bool association_open(struct duck_core *core, const struct plat_peer *from, uint8_t *packet,
                      struct core_received *received);
void association_rekey(struct duck_core *core, const struct core_received *received);
uint32_t association_index(const struct duck_core *core,
                           const struct core_association *association);
struct core_association *association_owner(struct duck_core *core); /* NULL: gone */
uint32_t core_state(const struct duck_core *core);                  /* enum duck_state */

/* ---- domains.c ------------------------------------------------------------------------------- */
void domain_key(struct duck_core *core, const struct core_received *received);
/* The key of this number that the owner of the compute session gave; NULL = none. */
struct core_domain *domain_of_owner(struct duck_core *core, uint32_t session);
bool domain_is_known(const struct duck_core *core, uint32_t session,
                     const struct core_association *association);
/* From now on, calls that were sealed before are stale. */
void domain_set_floors(struct duck_core *core, const struct core_association *association);

/* ---- replies.c ------------------------------------------------------------------------------- */
/* True when the request is new and must be done now; otherwise it was answered (or is being worked
 * on). */
bool reply_begin(struct duck_core *core, const struct core_received *received);
void reply_finish(struct duck_core *core, struct core_ticket ticket, const struct duck_done *done);
struct core_ticket reply_ticket(const struct duck_core *core, const struct core_received *received);
struct duck_done done_make(enum duck_status status, uint64_t value, const char *text);

/* ---- the rest: one function per message type ------------------------------------------------- */
void control_ping(struct duck_core *core, const struct core_received *received);
void control_log(struct duck_core *core, const struct core_received *received);
void control_stats(struct duck_core *core, const struct core_received *received);
void control_usage(struct duck_core *core, const struct core_received *received);
void control_reboot(struct duck_core *core, const struct core_received *received);
void core_say(struct duck_core *core, const char *words);
void core_say_text(struct duck_core *core, const struct text *text);

void bulk_reserve(struct duck_core *core, const struct core_received *received);
void bulk_write(struct duck_core *core, const struct core_received *received);
void bulk_read(struct duck_core *core, const struct core_received *received);
void commit_request(struct duck_core *core, const struct core_received *received);
/* Hash a step, or look after what other cores hash. Returns when to call again, as core_tick. */
uint64_t commit_step(struct duck_core *core, uint64_t now);
/* Other cores let go of every hash; what they have done of it is kept. */
void commit_recall(struct duck_core *core);
/* [begin, end) of a region changes: hashes over it begin again. */
void commit_forget(struct duck_core *core, uint32_t region, uint64_t begin, uint64_t end);

void compute_open(struct duck_core *core, const struct core_received *received);
void compute_close(struct duck_core *core, const struct core_received *received);
uint64_t compute_tick(struct duck_core *core, uint64_t now);
bool compute_is_open(const struct duck_core *core); /* starting or serving */
void compute_fault(struct duck_core *core, const struct duck_fault *fault);
void compute_fault_named(struct duck_core *core, enum duck_status status, const char *text);
bool compute_is_owner(const struct duck_core *core, const struct core_association *association);

void calls_receive(struct duck_core *core, const struct core_received *received);
void calls_complete(struct duck_core *core, uint64_t now);
uint64_t calls_tick(struct duck_core *core, uint64_t now);
void calls_nack(struct duck_core *core, struct core_call *call, uint64_t now);
void calls_expect(struct core_call *call, uint32_t sequence, uint64_t now);
struct core_call *calls_find(struct duck_core *core, uint32_t sequence);

void results_send_all(struct duck_core *core, struct core_call *call, uint64_t now);
bool results_step(struct duck_core *core); /* true: more to send */
void results_nack(struct duck_core *core, const struct core_received *received);
void results_query(struct duck_core *core, const struct core_received *received);
/* CALL, QUERY or NACK that no serving session of this host stands behind; true when it was answered
 * or dropped. */
bool results_refuse(struct duck_core *core, const struct core_received *received);

#endif
