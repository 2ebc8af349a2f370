/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing and opening packets: the one place where MACs are made and checked, shared by the duck
 * core (C) and the
 * host transport (C++). Cryptography is BearSSL's; nothing here allocates or calls the system.
 */
#ifndef DUCK_SEAL_H
#define DUCK_SEAL_H

#include "trust.h"

#ifdef __cplusplus
extern "C" {
#endif

enum duck_direction { DUCK_TO_DUCK = 0, DUCK_TO_HOST = 1 };

/* One GMAC key for one direction of one key kind. It points into itself: never copy it after
 * duck_seal_key_set. */
struct duck_seal_key {
    br_aes_gen_ctr_keys aes;
    br_gcm_context gcm;
    uint64_t counter;   /* last one used for sending */
    uint32_t nonce_tag; /* key kind << 8 | direction */
    uint32_t is_set;
};

/* The newest counter accepted and a bitmap of the DUCK_WIRE_REPLAY_WINDOW before it. */
struct duck_replay_window {
    uint64_t newest;
    uint64_t seen[DUCK_WIRE_REPLAY_WINDOW / 64];
};

enum duck_check {
    DUCK_CHECK_OK = 0,
    DUCK_CHECK_SHORT, /* fewer bytes than a header */
    DUCK_CHECK_MAGIC,
    /* another protocol version (HELLO and COOKIE are exempt: they say so themselves) */
    DUCK_CHECK_VERSION,
    DUCK_CHECK_SIZE, /* lengths disagree with each other or with the datagram */
    DUCK_CHECK_MAC,
    DUCK_CHECK_REPLAY
};

void duck_seal_key_set(struct duck_seal_key *key, const uint8_t raw[16], enum duck_wire_key kind,
                       enum duck_direction direction);

/* Header checks that need no key: lengths, magic, version, fragment arithmetic. `packet` is the
 * whole datagram, `prefix_bytes` what the message type puts in front of each fragment's data
 * (duck_prefix_bytes). */
enum duck_check duck_packet_check(const uint8_t *packet, size_t bytes,
                                  struct duck_packet_header *out);

/* Bytes in front of the data in every fragment of this message type: 16 for WRITE, 8 for RESULT,
 * else 0. */
uint32_t duck_prefix_bytes(uint8_t type);

/* ceil(message_bytes / fragment_bytes); an empty message has one (empty) fragment. */
uint32_t duck_fragment_count(uint32_t message_bytes, uint32_t fragment_bytes);

/* Fill counter and mac of a finished packet (header + payload contiguous). */
void duck_seal(struct duck_seal_key *key, uint8_t *packet, size_t bytes);
/* Verify mac, then counter; marks the counter as seen when both are right. */
enum duck_check duck_open_sealed(struct duck_seal_key *key, struct duck_replay_window *window,
                                 uint8_t *packet, size_t bytes);

void duck_replay_reset(struct duck_replay_window *window);

/* SHA-256 in steps, so that a polling loop can hash gigabytes between packets. */
typedef br_sha256_context duck_sha256;
void duck_sha256_start(duck_sha256 *context);
void duck_sha256_add(duck_sha256 *context, const void *data, size_t bytes);
void duck_sha256_end(const duck_sha256 *context, uint8_t out[32]);

#ifdef __cplusplus
}
#endif

#endif
