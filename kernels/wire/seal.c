/* SPDX-License-Identifier: Apache-2.0 */
#include "seal.h"

#include <string.h>

/* ---- keys ------------------------------------------------------------------------------------ */

/* AES-NI and carry-less multiplication where the CPU has them, BearSSL's constant-time code
 * elsewhere. */
void duck_seal_key_set(struct duck_seal_key *key, const uint8_t raw[16], enum duck_wire_key kind,
                       enum duck_direction direction) {
    const br_block_ctr_class *aes = br_aes_x86ni_ctr_get_vtable();
    br_ghash ghash = br_ghash_pclmul_get();
    memset(key, 0, sizeof *key);
    if (aes == NULL) aes = &br_aes_ct64_ctr_vtable;
    if (ghash == 0) ghash = &br_ghash_ctmul64;
    aes->init(&key->aes.vtable, raw, 16);
    br_gcm_init(&key->gcm, &key->aes.vtable, ghash);
    key->nonce_tag = (uint32_t)kind << 8 | (uint32_t)direction;
    key->is_set = 1;
}

/* ---- header checks --------------------------------------------------------------------------- */

uint32_t duck_prefix_bytes(uint8_t type) {
    if (type == DUCK_MSG_WRITE) return sizeof(struct duck_write_prefix);
    if (type == DUCK_MSG_RESULT) return sizeof(struct duck_result_prefix);
    return 0;
}

uint32_t duck_fragment_count(uint32_t message_bytes, uint32_t fragment_bytes) {
    if (message_bytes == 0) return 1;
    return (message_bytes - 1) / fragment_bytes + 1;
}

static int sizes_agree(const struct duck_packet_header *header, size_t bytes) {
    if (bytes != sizeof *header + header->payload_bytes) return 0;
    if (bytes > DUCK_WIRE_PACKET_BYTES_MAX) return 0;
    if (header->start != 0 && header->type != DUCK_MSG_RESULT) return 0;
    if (header->epoch != 0 && header->key != DUCK_KEY_SESSION) return 0;
    if (header->fragment_bytes == 0 || header->fragment_bytes % 64 != 0) return 0;
    if (header->fragment_bytes > DUCK_WIRE_FRAGMENT_BYTES_MAX) return 0;
    if (header->message_bytes > DUCK_WIRE_CALL_BYTES_MAX) return 0;
    uint32_t count = duck_fragment_count(header->message_bytes, header->fragment_bytes);
    if (header->fragment_index >= count) return 0;
    uint32_t data = header->fragment_bytes;
    if (header->fragment_index == count - 1)
        data = header->message_bytes - header->fragment_index * (uint32_t)header->fragment_bytes;
    return header->payload_bytes == data + duck_prefix_bytes(header->type);
}

static int is_of_every_version(const struct duck_packet_header *header) {
    if (header->key != DUCK_KEY_CLEAR) return 0;
    return header->type == DUCK_MSG_HELLO || header->type == DUCK_MSG_COOKIE;
}

enum duck_check duck_packet_check(const uint8_t *packet, size_t bytes,
                                  struct duck_packet_header *out) {
    if (bytes < sizeof *out) return DUCK_CHECK_SHORT;
    memcpy(out, packet, sizeof *out);
    if (out->magic != DUCK_WIRE_MAGIC) return DUCK_CHECK_MAGIC;
    if (out->version != DUCK_WIRE_VERSION && !is_of_every_version(out)) return DUCK_CHECK_VERSION;
    if (!sizes_agree(out, bytes)) return DUCK_CHECK_SIZE;
    return DUCK_CHECK_OK;
}

/* ---- GMAC ------------------------------------------------------------------------------------ */

/* Over the whole packet in one piece, its mac field zero: each further piece would cost BearSSL's
 * GHASH its set-up again, a tenth of a short packet's time. */
static void gmac(struct duck_seal_key *key, const uint8_t *packet, size_t bytes, uint64_t counter,
                 uint8_t tag[16]) {
    uint8_t nonce[12];
    memcpy(nonce, &counter, 8);
    memcpy(nonce + 8, &key->nonce_tag, 4);
    br_gcm_reset(&key->gcm, nonce, sizeof nonce);
    br_gcm_aad_inject(&key->gcm, packet, bytes);
    br_gcm_flip(&key->gcm);
    br_gcm_get_tag(&key->gcm, tag);
}

void duck_seal(struct duck_seal_key *key, uint8_t *packet, size_t bytes) {
    uint8_t *mac = packet + offsetof(struct duck_packet_header, mac);
    key->counter++;
    memcpy(packet + offsetof(struct duck_packet_header, counter), &key->counter, 8);
    memset(mac, 0, DUCK_WIRE_MAC_BYTES);
    gmac(key, packet, bytes, key->counter, mac);
}

void duck_replay_reset(struct duck_replay_window *window) { memset(window, 0, sizeof *window); }

static int is_replay(const struct duck_replay_window *window, uint64_t counter) {
    if (counter == 0) return 1;
    if (counter > window->newest) return 0;
    if (window->newest - counter >= DUCK_WIRE_REPLAY_WINDOW) return 1;
    uint64_t bit = counter % DUCK_WIRE_REPLAY_WINDOW;
    return (window->seen[bit / 64] >> (bit % 64) & 1) != 0;
}

static void mark_seen(struct duck_replay_window *window, uint64_t counter) {
    if (counter > window->newest) {
        /* Forget the places that the window's new part reuses. */
        uint64_t steps = counter - window->newest;
        if (steps >= DUCK_WIRE_REPLAY_WINDOW) {
            memset(window->seen, 0, sizeof window->seen);
        } else {
            for (uint64_t c = window->newest + 1; c < counter; c++) {
                uint64_t bit = c % DUCK_WIRE_REPLAY_WINDOW;
                window->seen[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
            }
        }
        window->newest = counter;
    }
    uint64_t bit = counter % DUCK_WIRE_REPLAY_WINDOW;
    window->seen[bit / 64] |= UINT64_C(1) << (bit % 64);
}

enum duck_check duck_open_sealed(struct duck_seal_key *key, struct duck_replay_window *window,
                                 uint8_t *packet, size_t bytes) {
    uint8_t *mac = packet + offsetof(struct duck_packet_header, mac);
    uint64_t counter;
    uint8_t told[DUCK_WIRE_MAC_BYTES], tag[DUCK_WIRE_MAC_BYTES];
    memcpy(&counter, packet + offsetof(struct duck_packet_header, counter), 8);
    memcpy(told, mac, sizeof told);
    memset(mac, 0, sizeof told);
    gmac(key, packet, bytes, counter, tag);
    memcpy(mac, told, sizeof told); /* another key may be tried */
    if (!duck_equal(tag, told, sizeof tag)) return DUCK_CHECK_MAC;
    if (is_replay(window, counter)) return DUCK_CHECK_REPLAY;
    mark_seen(window, counter);
    return DUCK_CHECK_OK;
}

/* ---- SHA-256 --------------------------------------------------------------------------------- */

void duck_sha256_start(duck_sha256 *context) { br_sha256_init(context); }

void duck_sha256_add(duck_sha256 *context, const void *data, size_t bytes) {
    br_sha256_update(context, data, bytes);
}

void duck_sha256_end(const duck_sha256 *context, uint8_t out[32]) { br_sha256_out(context, out); }
