/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's half of the conversation for tests of the duck core: seals packets, and reads what the
 * fake platform caught.
 */
#ifndef FAKE_HOST_H
#define FAKE_HOST_H

#include "fake_platform.h"

struct fake_host {
    struct plat_peer peer;
    uint32_t session;
    uint32_t domain_session;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES]; /* private */
    uint8_t domain_raw[16];
    struct duck_session_keys keys;
    uint32_t epoch;
    uint64_t wrap_counter;
    struct duck_seal_key send_key, domain_key;
    uint32_t requests, writes;
};

extern struct duck_core core;
extern const uint8_t fake_fleet_private[DUCK_WIRE_KEY_BYTES];
extern uint8_t fake_fleet_public[DUCK_WIRE_PUBLIC_BYTES];

struct fake_fragment {
    uint8_t type;
    uint8_t key; /* enum duck_wire_key */
    uint32_t sequence;
    uint32_t message_bytes;
    uint32_t index;
    uint16_t stride;
};

/* Begin a new duck core on a reset platform. */
void fake_core_start(uint64_t seed);
void host_make(struct fake_host *host, uint16_t port, bool with_domain);
void host_send_hello(struct fake_host *host);
/* Agree with the last COOKIE and sign; the keys are in host->keys. */
void host_make_proof(struct fake_host *host, struct duck_proof *proof);
void host_send_proof(struct fake_host *host, const struct duck_proof *proof);
/* HELLO to INFO, the first PING, which makes the association active, and the domain's key. */
void host_join(struct fake_host *host);
/* Under the key that host->domain_raw is now. */
struct duck_done host_give_domain_key(struct fake_host *host);
/* Fresh session keys; false when the duck did not answer. */
bool host_rekey(struct fake_host *host, const struct duck_rekey *request,
                const uint8_t private_key[DUCK_WIRE_KEY_BYTES]);
/* Opens a sealed packet that was sent to this host by its present keys. */
bool host_can_open(struct fake_host *host, const struct fake_packet *packet);
/* Send one fragment; `payload` includes the prefix of its type. Returns the packet's bytes. */
uint32_t host_send(struct fake_host *host, const struct fake_fragment *fragment,
                   const void *payload, uint32_t bytes);
/* A message of one packet. */
uint32_t host_send_one(struct fake_host *host, uint8_t type, uint32_t sequence, const void *payload,
                       uint32_t bytes);
/* Send a request, let the core work until it has nothing more to do, and return the DONE. */
struct duck_done host_request(struct fake_host *host, uint8_t type, const void *payload,
                              uint32_t bytes);
/* The newest packet of a type that was sent to this host; NULL = none. */
const struct fake_packet *host_last(const struct fake_host *host, uint8_t type);
struct duck_packet_header header_of(const struct fake_packet *packet);
const uint8_t *payload_of(const struct fake_packet *packet);
uint32_t host_count(const struct fake_host *host, uint8_t type);

/* Put bytes into a region the short way: reserve, write, commit as the last piece. */
void host_load(struct fake_host *host, uint32_t region, const uint8_t *bytes, uint32_t count);
struct duck_done host_open(struct fake_host *host, uint32_t flags);
void kernel_ready(void);
/* Play the kernel: complete every published call with its own input, `rounds` times. */
void kernel_echo(void);
void core_settle(void); /* tick until nothing is due now */

/* The smallest ELF that elf_check accepts, `bytes` long in the end. */
uint32_t tiny_elf(uint8_t *out);

#endif
