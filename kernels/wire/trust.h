/* SPDX-License-Identifier: Apache-2.0
 *
 * Who speaks to whom: the handshake's signature, key agreement and key derivation (wire.h tells the
 * formulas), shared by the duck core and the host transport. Cryptography is BearSSL's; nothing
 * here allocates or calls the system. All keys are bytes as RFC 7748 and SEC 1 write them.
 */
#ifndef DUCK_TRUST_H
#define DUCK_TRUST_H

#include <bearssl.h>
#include <duck/wire.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What both sides of a handshake must agree on; PROOF signs its digest. */
struct duck_transcript {
    uint32_t session;
    uint64_t boot_id;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t duck_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t host_ephemeral[DUCK_WIRE_KEY_BYTES];
    uint8_t duck_ephemeral[DUCK_WIRE_KEY_BYTES];
    uint8_t duck_identity[DUCK_WIRE_KEY_BYTES];
};
void duck_transcript_digest(const struct duck_transcript *transcript,
                            const uint8_t fleet_public[DUCK_WIRE_PUBLIC_BYTES],
                            uint8_t digest[DUCK_WIRE_DIGEST_BYTES]);

/* ---- the fleet's key: ECDSA P-256 ------------------------------------------------------------ */
/* Makes a key out of 32 random bytes. */
void duck_fleet_make(const uint8_t seed[32], uint8_t private_key[DUCK_WIRE_KEY_BYTES]);
/* False: not a private key (zero, or not below the order of the curve). */
bool duck_fleet_public(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                       uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES]);
bool duck_fleet_sign(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                     const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                     uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]);
bool duck_fleet_verify(const uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES],
                       const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                       const uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]);

/* ---- key agreement: X25519 ------------------------------------------------------------------- */
/* Any 32 random bytes are a private key. */
void duck_agree_public(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                       uint8_t public_key[DUCK_WIRE_KEY_BYTES]);
/* False: the other side's key is one of the few that give the same secret to everybody. */
bool duck_agree(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                const uint8_t other_public[DUCK_WIRE_KEY_BYTES],
                uint8_t secret[DUCK_WIRE_KEY_BYTES]);

/* ---- session keys ---------------------------------------------------------------------------- */
struct duck_session_keys {
    uint8_t to_duck[16];
    uint8_t to_host[16];
    uint8_t chain[32]; /* the next REKEY begins here */
    uint8_t wrap[16];  /* for the domain key; the same for the whole session */
};
void duck_session_keys_derive(const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                              const uint8_t ephemeral_secret[DUCK_WIRE_KEY_BYTES],
                              const uint8_t identity_secret[DUCK_WIRE_KEY_BYTES],
                              struct duck_session_keys *keys);
/* The next epoch's keys, in place. */
void duck_session_keys_next(struct duck_session_keys *keys,
                            const uint8_t secret[DUCK_WIRE_KEY_BYTES]);

/* ---- domain key ------------------------------------------------------------------------------ */
/* Fills sealed_key and tag from domain_session and wrap_counter. */
void duck_domain_key_wrap(const uint8_t wrap[16], const uint8_t key[16],
                          struct duck_domain_key *message);
bool duck_domain_key_unwrap(const uint8_t wrap[16], const struct duck_domain_key *message,
                            uint8_t key[16]);

/* ---- cookies --------------------------------------------------------------------------------- */
/* HMAC-SHA-256 cut to a nonce. */
void duck_cookie_make(const uint8_t secret[DUCK_WIRE_KEY_BYTES], const void *facts, size_t bytes,
                      uint8_t nonce[DUCK_WIRE_NONCE_BYTES]);

/* 1 when equal; takes the same time wherever the first difference is. */
bool duck_equal(const void *a, const void *b, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
