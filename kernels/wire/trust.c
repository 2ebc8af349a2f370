/* SPDX-License-Identifier: Apache-2.0 */
#include "trust.h"

#include <string.h>

/* ---- transcript ------------------------------------------------------------------------------ */

void duck_transcript_digest(const struct duck_transcript *transcript,
                            const uint8_t fleet_public[DUCK_WIRE_PUBLIC_BYTES],
                            uint8_t digest[DUCK_WIRE_DIGEST_BYTES]) {
    static const char label[] = "duck handshake 2";
    br_sha256_context hash;
    br_sha256_init(&hash);
    br_sha256_update(&hash, label, sizeof label - 1);
    br_sha256_update(&hash, fleet_public, DUCK_WIRE_PUBLIC_BYTES);
    br_sha256_update(&hash, &transcript->session, sizeof transcript->session);
    br_sha256_update(&hash, &transcript->boot_id, sizeof transcript->boot_id);
    br_sha256_update(&hash, transcript->host_nonce, DUCK_WIRE_NONCE_BYTES);
    br_sha256_update(&hash, transcript->duck_nonce, DUCK_WIRE_NONCE_BYTES);
    br_sha256_update(&hash, transcript->host_ephemeral, DUCK_WIRE_KEY_BYTES);
    br_sha256_update(&hash, transcript->duck_ephemeral, DUCK_WIRE_KEY_BYTES);
    br_sha256_update(&hash, transcript->duck_identity, DUCK_WIRE_KEY_BYTES);
    br_sha256_out(&hash, digest);
}

/* ---- the fleet's key ------------------------------------------------------------------------- */

void duck_fleet_make(const uint8_t seed[32], uint8_t private_key[DUCK_WIRE_KEY_BYTES]) {
    br_hmac_drbg_context random;
    br_ec_private_key key;
    br_hmac_drbg_init(&random, &br_sha256_vtable, seed, 32);
    br_ec_keygen(&random.vtable, &br_ec_p256_m31, &key, private_key, BR_EC_secp256r1);
    memset(&random, 0, sizeof random);
}

/* 0 < key < order of the curve; not in constant time, which is fine for a yes or no about a file.
 */
static bool is_private_key(const uint8_t key[DUCK_WIRE_KEY_BYTES]) {
    size_t bytes;
    const uint8_t *order = br_ec_p256_m31.order(BR_EC_secp256r1, &bytes);
    static const uint8_t zero[DUCK_WIRE_KEY_BYTES];
    return memcmp(key, zero, sizeof zero) != 0 && memcmp(key, order, DUCK_WIRE_KEY_BYTES) < 0;
}

bool duck_fleet_public(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                       uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES]) {
    if (!is_private_key(private_key)) return false;
    return br_ec_p256_m31.mulgen(public_key, private_key, DUCK_WIRE_KEY_BYTES, BR_EC_secp256r1) ==
           DUCK_WIRE_PUBLIC_BYTES;
}

bool duck_fleet_sign(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                     const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                     uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]) {
    uint8_t copy[DUCK_WIRE_KEY_BYTES]; /* BearSSL's struct is not const */
    memcpy(copy, private_key, sizeof copy);
    const br_ec_private_key key = {BR_EC_secp256r1, copy, sizeof copy};
    size_t bytes =
        br_ecdsa_i31_sign_raw(&br_ec_p256_m31, &br_sha256_vtable, digest, &key, signature);
    memset(copy, 0, sizeof copy);
    return bytes == DUCK_WIRE_SIGNATURE_BYTES;
}

bool duck_fleet_verify(const uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES],
                       const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                       const uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]) {
    uint8_t copy[DUCK_WIRE_PUBLIC_BYTES];
    memcpy(copy, public_key, sizeof copy);
    const br_ec_public_key key = {BR_EC_secp256r1, copy, sizeof copy};
    return br_ecdsa_i31_vrfy_raw(&br_ec_p256_m31, digest, DUCK_WIRE_DIGEST_BYTES, &key, signature,
                                 DUCK_WIRE_SIGNATURE_BYTES) == 1;
}

/* ---- X25519 ---------------------------------------------------------------------------------- */

void duck_agree_public(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                       uint8_t public_key[DUCK_WIRE_KEY_BYTES]) {
    br_ec_c25519_m31.mulgen(public_key, private_key, DUCK_WIRE_KEY_BYTES, BR_EC_curve25519);
}

bool duck_agree(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                const uint8_t other_public[DUCK_WIRE_KEY_BYTES],
                uint8_t secret[DUCK_WIRE_KEY_BYTES]) {
    static const uint8_t zero[DUCK_WIRE_KEY_BYTES];
    memcpy(secret, other_public, DUCK_WIRE_KEY_BYTES);
    br_ec_c25519_m31.mul(secret, DUCK_WIRE_KEY_BYTES, private_key, DUCK_WIRE_KEY_BYTES,
                         BR_EC_curve25519);
    return !duck_equal(secret, zero, sizeof zero);
}

/* ---- session keys ---------------------------------------------------------------------------- */

void duck_session_keys_derive(const uint8_t digest[DUCK_WIRE_DIGEST_BYTES],
                              const uint8_t ephemeral_secret[DUCK_WIRE_KEY_BYTES],
                              const uint8_t identity_secret[DUCK_WIRE_KEY_BYTES],
                              struct duck_session_keys *keys) {
    static const char label[] = "duck session 2";
    uint8_t out[80];
    br_hkdf_context context;
    br_hkdf_init(&context, &br_sha256_vtable, digest, DUCK_WIRE_DIGEST_BYTES);
    br_hkdf_inject(&context, ephemeral_secret, DUCK_WIRE_KEY_BYTES);
    br_hkdf_inject(&context, identity_secret, DUCK_WIRE_KEY_BYTES);
    br_hkdf_flip(&context);
    br_hkdf_produce(&context, label, sizeof label - 1, out, sizeof out);
    memcpy(keys->to_duck, out, 16);
    memcpy(keys->to_host, out + 16, 16);
    memcpy(keys->chain, out + 32, 32);
    memcpy(keys->wrap, out + 64, 16);
    memset(out, 0, sizeof out);
    memset(&context, 0, sizeof context);
}

void duck_session_keys_next(struct duck_session_keys *keys,
                            const uint8_t secret[DUCK_WIRE_KEY_BYTES]) {
    static const char label[] = "duck rekey 2";
    uint8_t out[64];
    br_hkdf_context context;
    br_hkdf_init(&context, &br_sha256_vtable, keys->chain, sizeof keys->chain);
    br_hkdf_inject(&context, secret, DUCK_WIRE_KEY_BYTES);
    br_hkdf_flip(&context);
    br_hkdf_produce(&context, label, sizeof label - 1, out, sizeof out);
    memcpy(keys->to_duck, out, 16);
    memcpy(keys->to_host, out + 16, 16);
    memcpy(keys->chain, out + 32, 32);
    memset(out, 0, sizeof out);
    memset(&context, 0, sizeof context);
}

/* ---- domain key ------------------------------------------------------------------------------ */

/* AES-128-GCM over the 16 bytes at `data`, in place. */
static void wrap_run(const uint8_t wrap[16], const struct duck_domain_key *message, uint8_t *data,
                     int encrypt, uint8_t tag[16]) {
    br_aes_ct64_ctr_keys aes;
    br_gcm_context gcm;
    uint8_t nonce[12];
    memcpy(nonce, &message->wrap_counter, 8);
    memcpy(nonce + 8, &message->domain_session, 4);
    br_aes_ct64_ctr_init(&aes, wrap, 16);
    br_gcm_init(&gcm, &aes.vtable, br_ghash_ctmul64);
    br_gcm_reset(&gcm, nonce, sizeof nonce);
    br_gcm_flip(&gcm);
    br_gcm_run(&gcm, encrypt, data, 16);
    br_gcm_get_tag(&gcm, tag);
    memset(&aes, 0, sizeof aes);
}

void duck_domain_key_wrap(const uint8_t wrap[16], const uint8_t key[16],
                          struct duck_domain_key *message) {
    memcpy(message->sealed_key, key, 16);
    wrap_run(wrap, message, message->sealed_key, 1, message->tag);
}

bool duck_domain_key_unwrap(const uint8_t wrap[16], const struct duck_domain_key *message,
                            uint8_t key[16]) {
    uint8_t tag[16];
    memcpy(key, message->sealed_key, 16);
    wrap_run(wrap, message, key, 0, tag);
    if (duck_equal(tag, message->tag, sizeof tag)) return true;
    memset(key, 0, 16);
    return false;
}

/* ---- cookies --------------------------------------------------------------------------------- */

void duck_cookie_make(const uint8_t secret[DUCK_WIRE_KEY_BYTES], const void *facts, size_t bytes,
                      uint8_t nonce[DUCK_WIRE_NONCE_BYTES]) {
    uint8_t out[32];
    br_hmac_key_context key;
    br_hmac_context context;
    br_hmac_key_init(&key, &br_sha256_vtable, secret, DUCK_WIRE_KEY_BYTES);
    br_hmac_init(&context, &key, 0);
    br_hmac_update(&context, facts, bytes);
    br_hmac_out(&context, out);
    memcpy(nonce, out, DUCK_WIRE_NONCE_BYTES);
}

bool duck_equal(const void *a, const void *b, size_t bytes) {
    const uint8_t *left = a, *right = b;
    uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++) difference = (uint8_t)(difference | (left[i] ^ right[i]));
    return difference == 0;
}
