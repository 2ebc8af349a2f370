/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct duck_core core;
const uint8_t fake_fleet_private[DUCK_WIRE_KEY_BYTES] = {1, 2, 3, 4, 5};
uint8_t fake_fleet_public[DUCK_WIRE_PUBLIC_BYTES];

static void must(bool true_thing, const char *what) {
    if (true_thing) return;
    fprintf(stderr, "fake host: %s\n", what);
    abort();
}

void fake_core_start(uint64_t seed) {
    struct core_config config = {.name = "fake", .identity_private = {7, 7, 7}};
    fake_reset(seed);
    must(duck_fleet_public(fake_fleet_private, fake_fleet_public), "fleet key");
    memcpy(config.fleet_public, fake_fleet_public, sizeof config.fleet_public);
    core_init(&core, &config);
}

void core_settle(void) {
    for (int i = 0; i < 100000; i++)
        if (core_tick(&core) != 0) return;
    must(false, "the core never comes to rest");
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The core gets a heap block of exactly the packet's size. */
static void deliver(const struct fake_host *host, const uint8_t *packet, uint32_t bytes) {
    uint8_t *copy = malloc(bytes != 0 ? bytes : 1);
    must(copy != NULL, "memory");
    memcpy(copy, packet, bytes);
    core_packet(&core, &host->peer, copy, bytes);
    free(copy);
}

void host_make(struct fake_host *host, uint16_t port, bool with_domain) {
    memset(host, 0, sizeof *host);
    host->peer = (struct plat_peer){0x0100007f, port, 0};
    plat_random(host->host_nonce, sizeof host->host_nonce);
    plat_random(host->ephemeral, sizeof host->ephemeral);
    host->session = (uint32_t)fake_random() | 1u;
    if (!with_domain) return;
    host->domain_session = (uint32_t)fake_random() | 1u;
    plat_random(host->domain_raw, sizeof host->domain_raw);
    duck_seal_key_set(&host->domain_key, host->domain_raw, DUCK_KEY_DOMAIN, DUCK_TO_DUCK);
}

static void send_clear(const struct fake_host *host, uint8_t type, const void *payload,
                       uint16_t bytes) {
    uint8_t packet[sizeof(struct duck_packet_header) + sizeof(struct duck_proof)];
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = type,
        .key = DUCK_KEY_CLEAR,
        .session = host->session,
        .sequence = 1,
        .message_bytes = bytes,
        .fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500,
        .payload_bytes = bytes,
    };
    memcpy(packet, &header, sizeof header);
    memcpy(packet + sizeof header, payload, bytes);
    deliver(host, packet, (uint32_t)sizeof header + bytes);
}

void host_send_hello(struct fake_host *host) {
    struct duck_hello hello = {.session = host->session, .protocol_version = DUCK_WIRE_VERSION};
    memcpy(hello.host_nonce, host->host_nonce, sizeof hello.host_nonce);
    send_clear(host, DUCK_MSG_HELLO, &hello, sizeof hello);
}

void host_send_proof(struct fake_host *host, const struct duck_proof *proof) {
    send_clear(host, DUCK_MSG_PROOF, proof, sizeof *proof);
}

uint32_t host_send(struct fake_host *host, const struct fake_fragment *fragment,
                   const void *payload, uint32_t bytes) {
    static uint8_t packet[DUCK_WIRE_PACKET_BYTES_MAX];
    bool domain = fragment->key == DUCK_KEY_DOMAIN;
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = fragment->type,
        .key = fragment->key,
        .epoch = domain ? 0 : (uint8_t)host->epoch,
        .session = domain ? host->domain_session : host->session,
        .sequence = fragment->sequence,
        .message_bytes = fragment->message_bytes,
        .fragment_index = fragment->index,
        .fragment_bytes = fragment->stride,
        .payload_bytes = (uint16_t)bytes,
    };
    memcpy(packet, &header, sizeof header);
    if (bytes != 0) memcpy(packet + sizeof header, payload, bytes);
    duck_seal(domain ? &host->domain_key : &host->send_key, packet, sizeof header + bytes);
    deliver(host, packet, (uint32_t)sizeof header + bytes);
    return (uint32_t)sizeof header + bytes;
}

uint32_t host_send_one(struct fake_host *host, uint8_t type, uint32_t sequence, const void *payload,
                       uint32_t bytes) {
    const struct fake_fragment whole = {
        .type = type,
        .key = DUCK_KEY_SESSION,
        .sequence = sequence,
        .message_bytes = bytes,
        .stride = DUCK_WIRE_FRAGMENT_BYTES_1500,
    };
    return host_send(host, &whole, payload, bytes);
}

/* ---- what came back -------------------------------------------------------------------------- */

struct duck_packet_header header_of(const struct fake_packet *packet) {
    struct duck_packet_header header;
    memcpy(&header, packet->data, sizeof header);
    return header;
}

const uint8_t *payload_of(const struct fake_packet *packet) {
    return packet->data + sizeof(struct duck_packet_header);
}

static bool is_for(const struct fake_host *host, const struct fake_packet *packet, uint8_t type) {
    struct duck_packet_header header = header_of(packet);
    return packet->to.port == host->peer.port && header.type == type;
}

const struct fake_packet *host_last(const struct fake_host *host, uint8_t type) {
    for (uint32_t i = fake.sent_count; i-- > 0;)
        if (is_for(host, &fake.sent[i], type)) return &fake.sent[i];
    return NULL;
}

uint32_t host_count(const struct fake_host *host, uint8_t type) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < fake.sent_count; i++)
        if (is_for(host, &fake.sent[i], type)) count++;
    return count;
}

void host_make_proof(struct fake_host *host, struct duck_proof *proof) {
    struct duck_cookie cookie;
    uint8_t digest[32], by_ephemeral[32], by_identity[32];
    const struct fake_packet *packet = host_last(host, DUCK_MSG_COOKIE);
    must(packet != NULL, "no COOKIE");
    memcpy(&cookie, payload_of(packet), sizeof cookie);
    struct duck_transcript transcript = {.session = host->session, .boot_id = cookie.boot_id};
    memset(proof, 0, sizeof *proof);
    proof->session = host->session;
    memcpy(proof->host_nonce, host->host_nonce, sizeof proof->host_nonce);
    memcpy(proof->duck_nonce, cookie.duck_nonce, sizeof proof->duck_nonce);
    duck_agree_public(host->ephemeral, proof->ephemeral);
    memcpy(transcript.host_nonce, host->host_nonce, sizeof transcript.host_nonce);
    memcpy(transcript.duck_nonce, cookie.duck_nonce, sizeof transcript.duck_nonce);
    memcpy(transcript.host_ephemeral, proof->ephemeral, sizeof transcript.host_ephemeral);
    memcpy(transcript.duck_ephemeral, cookie.ephemeral, sizeof transcript.duck_ephemeral);
    memcpy(transcript.duck_identity, cookie.identity, sizeof transcript.duck_identity);
    duck_transcript_digest(&transcript, fake_fleet_public, digest);
    must(duck_agree(host->ephemeral, cookie.ephemeral, by_ephemeral), "agree");
    must(duck_agree(host->ephemeral, cookie.identity, by_identity), "agree");
    must(duck_fleet_sign(fake_fleet_private, digest, proof->signature), "sign");
    duck_session_keys_derive(digest, by_ephemeral, by_identity, &host->keys);
    duck_seal_key_set(&host->send_key, host->keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    host->epoch = 0;
}

bool host_can_open(struct fake_host *host, const struct fake_packet *packet) {
    uint8_t copy[DUCK_WIRE_PACKET_BYTES_MAX];
    struct duck_replay_window window = {0};
    struct duck_seal_key key;
    memcpy(copy, packet->data, packet->bytes);
    duck_seal_key_set(&key, host->keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    return header_of(packet).epoch == (uint8_t)host->epoch &&
           duck_open_sealed(&key, &window, copy, packet->bytes) == DUCK_CHECK_OK;
}

struct duck_done host_give_domain_key(struct fake_host *host) {
    struct duck_domain_key message = {.domain_session = host->domain_session,
                                      .wrap_counter = ++host->wrap_counter};
    duck_domain_key_wrap(host->keys.wrap, host->domain_raw, &message);
    return host_request(host, DUCK_MSG_DOMAIN_KEY, &message, sizeof message);
}

/* As if time had passed since the last join: the duck is willing to check the next signature. */
void host_join(struct fake_host *host) {
    struct duck_proof proof;
    struct duck_ping ping = {0};
    memset(core.handshake.verify_ns, 0, sizeof core.handshake.verify_ns);
    host_send_hello(host);
    host_make_proof(host, &proof);
    host_send_proof(host, &proof);
    const struct fake_packet *packet = host_last(host, DUCK_MSG_INFO);
    must(packet != NULL && host_can_open(host, packet), "no INFO");
    host_send_one(host, DUCK_MSG_PING, 1, &ping, sizeof ping);
    must(host_last(host, DUCK_MSG_PONG) != NULL, "no PONG");
    host->wrap_counter = 0;
    if (host->domain_session != 0) must(host_give_domain_key(host).status == DUCK_OK, "domain key");
}

bool host_rekey(struct fake_host *host, const struct duck_rekey *request,
                const uint8_t private_key[DUCK_WIRE_KEY_BYTES]) {
    struct duck_rekey answer;
    uint8_t secret[DUCK_WIRE_KEY_BYTES];
    uint32_t before = fake.sent_count;
    host_send_one(host, DUCK_MSG_REKEY, request->epoch, request, sizeof *request);
    const struct fake_packet *packet = host_last(host, DUCK_MSG_REKEY);
    if (fake.sent_count == before || packet == NULL) return false;
    memcpy(&answer, payload_of(packet), sizeof answer);
    must(answer.epoch == request->epoch, "epoch of REKEY's answer");
    must(duck_agree(private_key, answer.ephemeral, secret), "agree");
    duck_session_keys_next(&host->keys, secret);
    duck_seal_key_set(&host->send_key, host->keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    host->epoch = request->epoch;
    return true;
}

struct duck_done host_request(struct fake_host *host, uint8_t type, const void *payload,
                              uint32_t bytes) {
    struct duck_done done;
    host_send_one(host, type, ++host->requests, payload, bytes);
    core_settle();
    const struct fake_packet *packet = host_last(host, DUCK_MSG_DONE);
    must(packet != NULL && header_of(packet).sequence == host->requests, "no DONE");
    memcpy(&done, payload_of(packet), sizeof done);
    return done;
}

/* ---- the usual ------------------------------------------------------------------------------- */

void host_load(struct fake_host *host, uint32_t region, const uint8_t *bytes, uint32_t count) {
    struct duck_reserve reserve = {.region = region, .flags = DUCK_RESERVE_FRESH, .bytes = count};
    must(host_request(host, DUCK_MSG_RESERVE, &reserve, sizeof reserve).status == DUCK_OK,
         "RESERVE");
    static uint8_t payload[sizeof(struct duck_write_prefix) + 1344];
    host->writes++;
    for (uint32_t at = 0, index = 0; at < count; at += 1344, index++) {
        struct duck_write_prefix prefix = {.region = region};
        uint32_t part = count - at < 1344 ? count - at : 1344;
        struct fake_fragment fragment = {
            DUCK_MSG_WRITE, DUCK_KEY_SESSION, host->writes, count, index, 1344};
        memcpy(payload, &prefix, sizeof prefix);
        memcpy(payload + sizeof prefix, bytes + at, part);
        host_send(host, &fragment, payload, (uint32_t)sizeof prefix + part);
    }
    struct duck_commit commit = {.region = region, .flags = DUCK_COMMIT_LAST, .bytes = count};
    duck_sha256 hash;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, bytes, count);
    duck_sha256_end(&hash, commit.sha256);
    memcpy(commit.set_id, commit.sha256, sizeof commit.set_id);
    must(host_request(host, DUCK_MSG_COMMIT, &commit, sizeof commit).status == DUCK_OK, "COMMIT");
}

void kernel_ready(void) {
    __atomic_store_n(&fake.session.mailbox->init_status, 0, __ATOMIC_RELEASE);
}

struct duck_done host_open(struct fake_host *host, uint32_t flags) {
    struct duck_open request = {
        .flags = flags,
        .call_bytes_max = 256u << 10,
        .result_bytes_max = 256u << 10,
        .call_time_limit_ms = 1000,
        .domain_session = host->domain_session,
    };
    struct duck_done done = {.status = UINT32_MAX};
    uint32_t before = fake.sessions_started;
    host_send_one(host, DUCK_MSG_OPEN, ++host->requests, &request, sizeof request);
    if (fake.sessions_started != before) kernel_ready();
    core_settle();
    const struct fake_packet *packet = host_last(host, DUCK_MSG_DONE);
    if (packet != NULL && header_of(packet).sequence == host->requests)
        memcpy(&done, payload_of(packet), sizeof done);
    return done;
}

void kernel_echo(void) {
    struct duck_kernel_mailbox *mailbox = fake.session.mailbox;
    while (mailbox->call_completed != mailbox->call_published) {
        uint32_t number = mailbox->call_completed + 1;
        struct duck_kernel_slot *slot = &mailbox->slot[number % DUCK_KERNEL_SLOTS];
        memcpy(fake.session.calls + slot->output_offset, fake.session.calls + slot->input_offset,
               slot->input_bytes);
        slot->output_bytes = slot->input_bytes;
        slot->status = 0;
        mailbox->call_completed = number;
    }
}

/* ---- an ELF ---------------------------------------------------------------------------------- */

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* Header, three program headers (code, note, stack), the note, one `ret`. */
uint32_t tiny_elf(uint8_t *out) {
    enum { NOTE_AT = 64 + 3 * 56, CODE_AT = NOTE_AT + 12 + 8 + 32, BYTES = CODE_AT + 8 };
    memset(out, 0, BYTES);
    memcpy(out, "\177ELF\2\1\1", 7);
    put(out + 16, 3, 2);
    put(out + 18, 62, 2);
    put(out + 20, 1, 4);
    put(out + 24, CODE_AT, 8);
    put(out + 32, 64, 8);
    put(out + 52, 64, 2);
    put(out + 54, 56, 2);
    put(out + 56, 3, 2);
    const uint64_t program[3][8] = {{1, 5, 0, 0, 0, BYTES, BYTES, 4096},
                                    {4, 4, NOTE_AT, NOTE_AT, NOTE_AT, 52, 52, 4},
                                    {0x6474E551, 6, 0, 0, 0, 0, 0, 16}};
    for (int i = 0; i < 3; i++) {
        uint8_t *at = out + 64 + 56 * i;
        put(at, program[i][0], 4);
        put(at + 4, program[i][1], 4);
        for (int field = 2; field < 8; field++) put(at + 8 * (field - 1), program[i][field], 8);
    }
    put(out + NOTE_AT, 5, 4);
    put(out + NOTE_AT + 4, 32, 4);
    put(out + NOTE_AT + 8, DUCK_KERNEL_NOTE_TYPE, 4);
    memcpy(out + NOTE_AT + 12, "duck", 5);
    put(out + NOTE_AT + 20, DUCK_KERNEL_ABI_VERSION, 4);
    out[CODE_AT] = 0xC3;
    return BYTES;
}
