/* SPDX-License-Identifier: Apache-2.0
 *
 * Attacks the duck core with packets, time and a hostile kernel, and checks after every step that
 * it stayed within its rules (fuzz_rules.h), and that it comes to rest. The mutator knows the
 * protocol and both keys (most of the code lies behind the MAC), joins new hosts with proofs right
 * and wrong, and changes keys.
 *
 *     fuzz_core SEED SECONDS
 *     fuzz_core SEED 0 FILE     writes the first steps as a script: a seed for fuzz_script.c
 */
#include "check.h"
#include "elf.h"
#include "fuzz_rules.h"
#include "fuzz_script.h"
#include <string.h>
#include <time.h>

/* ---- scripts of what happens, when they are wanted ------------------------------------------- */

static struct script_writer script;

static void note_packet(uint32_t host, bool by_domain, const struct duck_packet_header *header,
                        const uint8_t *payload) {
    const bool is_relative = header->type == DUCK_MSG_CALL || header->type == DUCK_MSG_NACK ||
                             header->type == DUCK_MSG_QUERY;
    const struct script_packet packet = {
        .type = header->type,
        .is_relative = is_relative,
        .fragment_bytes = header->fragment_bytes,
        .sequence = is_relative ? header->sequence - core.session.completed : header->sequence,
        .message_bytes = header->message_bytes,
        .fragment_index = header->fragment_index,
        .payload_bytes = header->payload_bytes,
    };
    if (!script_step(&script, by_domain ? SCRIPT_DOMAIN : SCRIPT_SEALED, host)) return;
    script_add(&script, &packet, sizeof packet);
    script_add(&script, payload, header->payload_bytes);
}

static void note_kernel(uint32_t act, uint32_t value, uint32_t other) {
    const struct script_kernel told = {act, value, other};
    if (script_step(&script, SCRIPT_KERNEL, 0)) script_add(&script, &told, sizeof told);
}

static void pass_time(uint32_t microseconds) {
    fake.now_ns += (uint64_t)microseconds * 1000u;
    if (script_step(&script, SCRIPT_TIME, 0)) script_add(&script, &microseconds, 4);
}

/* ---- a mutator that knows the protocol ------------------------------------------------------- */

static uint64_t interesting(void) {
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      7,
                                      8,
                                      16,
                                      63,
                                      64,
                                      65,
                                      255,
                                      256,
                                      1023,
                                      1024,
                                      1025,
                                      1344,
                                      1408,
                                      4095,
                                      4096,
                                      4097,
                                      8896,
                                      65535,
                                      65536,
                                      0xFFFFF,
                                      0x100000,
                                      0x100001,
                                      0x1FFFFFF,
                                      0x2000000,
                                      0x2000001,
                                      0x7FFFFFFF,
                                      0x80000000,
                                      0xFFFFFFFE,
                                      0xFFFFFFFF,
                                      UINT64_MAX,
                                      UINT64_MAX - 1,
                                      UINT64_MAX / 2};
    if (fake_below(3) != 0) return values[fake_below(sizeof values / sizeof values[0])];
    return fake_below(2) ? fake_random() : fake_below(5000);
}

static void put_field(uint8_t *payload, uint32_t bytes) {
    uint64_t value = interesting();
    uint32_t width = fake_below(2) ? 4 : 8;
    if (bytes < width) return;
    uint32_t at =
        fake_below(3) != 0 ? fake_below(bytes < 48 ? bytes / 4 : 12) * 4 : fake_below(bytes);
    if (at + width <= bytes) memcpy(payload + at, &value, width);
}

static uint32_t plausible(const struct fake_host *host, uint8_t type, uint8_t *payload) {
    memset(payload, 0, sizeof(struct duck_read));
    switch (type) {
    case DUCK_MSG_PING: return sizeof(struct duck_ping);
    case DUCK_MSG_LOG: return sizeof(struct duck_log_request);
    case DUCK_MSG_STATS: return sizeof(struct duck_stats);
    case DUCK_MSG_USAGE: return sizeof(struct duck_usage);
    case DUCK_MSG_READ: {
        struct duck_read read = {.region = fake_below(2), .bytes = 64, .offset = fake_below(9000)};
        memcpy(payload, &read, sizeof read);
        return sizeof read;
    }
    case DUCK_MSG_RESERVE: {
        struct duck_reserve reserve = {
            .region = fake_below(2), .flags = fake_below(2), .bytes = fake_below(20000)};
        memcpy(payload, &reserve, sizeof reserve);
        return sizeof reserve;
    }
    case DUCK_MSG_COMMIT: {
        struct duck_commit commit = {.region = fake_below(2), .flags = fake_below(2)};
        commit.bytes = core.region[commit.region].bytes;
        if (commit.bytes != 0 && fake_below(2)) {
            duck_sha256 hash;
            duck_sha256_start(&hash);
            duck_sha256_add(&hash, core.region[commit.region].memory, commit.bytes);
            duck_sha256_end(&hash, commit.sha256);
        }
        memcpy(payload, &commit, sizeof commit);
        return sizeof commit;
    }
    case DUCK_MSG_OPEN: {
        struct duck_open open = {.flags = fake_below(2),
                                 .call_bytes_max = 1 + fake_below(20000),
                                 .result_bytes_max = 1 + fake_below(20000),
                                 .call_time_limit_ms = 1 + fake_below(100)};
        if (fake_below(2)) open.domain_session = host->domain_session;
        memcpy(payload, &open, sizeof open);
        return sizeof open;
    }
    case DUCK_MSG_DOMAIN_KEY: {
        struct duck_domain_key message = {.domain_session = host->domain_session,
                                          .wrap_counter = fake_random()};
        duck_domain_key_wrap(host->keys.wrap, host->domain_raw, &message);
        memcpy(payload, &message, sizeof message);
        return sizeof message;
    }
    case DUCK_MSG_REKEY: { /* out of turn, mostly: keys really change in change_keys() */
        struct duck_rekey message = {.epoch = host->epoch + fake_below(3)};
        if (message.epoch == host->epoch + 1) message.epoch += 7;
        plat_random(message.ephemeral, sizeof message.ephemeral);
        memcpy(payload, &message, sizeof message);
        return sizeof message;
    }
    case DUCK_MSG_NACK: {
        struct duck_nack nack = {.message_type = DUCK_MSG_RESULT, .range_count = fake_below(65)};
        for (uint32_t i = 0; i < nack.range_count; i++) {
            nack.range[i].begin = fake_below(20);
            nack.range[i].end = nack.range[i].begin + fake_below(20);
        }
        memcpy(payload, &nack, 8 + 8 * nack.range_count);
        return 8 + 8 * nack.range_count;
    }
    default: return sizeof(struct duck_done);
    }
}

/* WRITE and CALL: one fragment of a message whose shape depends only on its sequence, so that
 * messages become complete. */
static uint32_t plausible_fragment(uint8_t type, struct duck_packet_header *header,
                                   uint8_t *payload) {
    static const uint16_t strides[] = {64, 128, 1344, 1408};
    header->fragment_bytes = strides[header->sequence % 4];
    header->message_bytes = header->sequence * 977 % (type == DUCK_MSG_CALL ? 700 : 5000);
    uint32_t fragments = duck_fragment_count(header->message_bytes, header->fragment_bytes);
    header->fragment_index = fake_below(fragments);
    uint32_t data = header->message_bytes - header->fragment_index * header->fragment_bytes;
    if (data > header->fragment_bytes) data = header->fragment_bytes;
    if (type == DUCK_MSG_CALL) return data;
    struct duck_write_prefix prefix = {.region = header->sequence % 2,
                                       .chunk_offset = header->sequence * 64 % 8192};
    memcpy(payload, &prefix, sizeof prefix);
    for (uint32_t i = 0; i < data; i++) payload[sizeof prefix + i] = (uint8_t)fake_random();
    return (uint32_t)sizeof prefix + data;
}

static struct fake_host *owner_of_session(void) {
    const struct core_association *owner = &core.association[core.session.owner];
    for (uint32_t i = 0; i < FUZZ_HOSTS; i++)
        if (hosts[i].session == owner->session) return &hosts[i];
    return &hosts[0];
}

static void send_mutated(void) {
    static const uint8_t types[] = {
        DUCK_MSG_PING,  DUCK_MSG_LOG,        DUCK_MSG_STATS, DUCK_MSG_RESERVE, DUCK_MSG_WRITE,
        DUCK_MSG_WRITE, DUCK_MSG_READ,       DUCK_MSG_OPEN,  DUCK_MSG_COMMIT,  DUCK_MSG_COMMIT,
        DUCK_MSG_CALL,  DUCK_MSG_CALL,       DUCK_MSG_CALL,  DUCK_MSG_NACK,    DUCK_MSG_QUERY,
        DUCK_MSG_CALL,  DUCK_MSG_CALL,       DUCK_MSG_CALL,  DUCK_MSG_CLOSE,   DUCK_MSG_REBOOT,
        DUCK_MSG_REKEY, DUCK_MSG_DOMAIN_KEY, DUCK_MSG_USAGE};
    static uint8_t packet[DUCK_WIRE_PACKET_BYTES_MAX + 64];
    struct fake_host *host = &hosts[fake_below(FUZZ_HOSTS)];
    uint8_t *payload = packet + sizeof(struct duck_packet_header);
    uint8_t type = types[fake_below(sizeof types)];
    /* What ends a session comes rarely, so that some of them get somewhere. */
    bool is_open = core.session.state == CORE_STARTING || core.session.state == CORE_SERVING;
    bool ends = type == DUCK_MSG_CLOSE || type == DUCK_MSG_REBOOT || type == DUCK_MSG_OPEN;
    if (is_open && ends && fake_below(20) != 0) type = DUCK_MSG_CALL;
    if (type == DUCK_MSG_CALL && is_open && fake_below(8) != 0) host = owner_of_session();
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = type,
        .key = DUCK_KEY_SESSION,
        .session = host->session,
        .sequence = ++host->requests,
        .fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500,
    };
    if (type == DUCK_MSG_CALL || type == DUCK_MSG_NACK || type == DUCK_MSG_QUERY)
        header.sequence = core.session.completed + (fake_below(2) ? 1 : fake_below(7) - 1);
    if (type == DUCK_MSG_WRITE) header.sequence = 1 + host->writes++ / 16;
    bool domain = type == DUCK_MSG_CALL && fake_below(2) != 0;
    header.epoch = (uint8_t)host->epoch;
    if (domain) {
        header.key = DUCK_KEY_DOMAIN;
        header.session = host->domain_session;
        header.epoch = 0;
    }
    uint32_t bytes;
    if (type == DUCK_MSG_CALL || type == DUCK_MSG_WRITE) {
        bytes = plausible_fragment(type, &header, payload);
    } else {
        bytes = plausible(host, type, payload);
        header.message_bytes = bytes;
    }
    if (fake_below(4) == 0) put_field(payload, bytes);
    header.payload_bytes = (uint16_t)bytes;
    memcpy(packet, &header, sizeof header);
    note_packet((uint32_t)(host - hosts), domain, &header, payload);
    uint32_t total = (uint32_t)sizeof header + bytes;
    if (fake_below(8) == 0) put_field(packet, sizeof header);
    if (fake_below(50) == 0) packet[6] = (uint8_t)fake_below(4);
    duck_seal(domain ? &host->domain_key : &host->send_key, packet, total);
    if (fake_below(30) == 0) packet[fake_below(total)] ^= (uint8_t)(1u << fake_below(8));
    if (fake_below(30) == 0) total = fake_below(total + 64);
    fuzz_deliver(&host->peer, packet, total);
    if (fake_below(20) == 0) fuzz_deliver(&host->peer, packet, total); /* replay */
}

/* A new host comes, with a proof that is right or has one bit changed, from its address or another.
 * Only right ones become associations. */
static void join_anew(void) {
    static struct fake_host newcomer;
    struct duck_proof proof;
    uint32_t generations = core.generations;
    host_make(&newcomer, (uint16_t)(2000 + fake_below(50)), false);
    host_send_hello(&newcomer);
    host_make_proof(&newcomer, &proof);
    bool right = fake_below(2) != 0;
    if (!right) ((uint8_t *)&proof)[fake_below(offsetof(struct duck_proof, pad))] ^= 1;
    if (fake_below(8) == 0) fake.now_ns += CORE_COOKIE_NS;
    if (fake_below(8) == 0) newcomer.peer.port++;
    uint32_t times = 1 + fake_below(3);
    for (uint32_t i = 0; i < times; i++) host_send_proof(&newcomer, &proof);
    asked_bytes += sizeof(struct duck_packet_header) + sizeof(struct duck_hello) +
                   times * (sizeof(struct duck_packet_header) + sizeof proof);
    /* Only the reserved word is not part of what is signed. */
    struct duck_proof unreserved = proof;
    unreserved.reserved = 0;
    if (!right && memcmp(&proof, &unreserved, sizeof proof) == 0)
        CHECK_EQUAL(generations, core.generations);
    CHECK(core.generations - generations <= 1);
}

static void change_keys(void) {
    struct fake_host *host = &hosts[fake_below(FUZZ_HOSTS)];
    struct duck_rekey request = {.epoch = host->epoch + 1};
    uint8_t private_key[DUCK_WIRE_KEY_BYTES];
    plat_random(private_key, sizeof private_key);
    duck_agree_public(private_key, request.ephemeral);
    asked_bytes += sizeof(struct duck_packet_header) + sizeof request;
    host_rekey(host, &request, private_key);
}

static void send_noise(void) {
    static uint8_t packet[10000];
    uint32_t bytes = fake_below(fake_below(4) ? 400 : sizeof packet);
    for (uint32_t i = 0; i < bytes; i++) packet[i] = (uint8_t)fake_random();
    if (bytes >= 8 && fake_below(2)) memcpy(packet, "DUCK\1", 5);
    fuzz_deliver(&hosts[0].peer, packet, bytes);
}

/* ---- the kernel and the clock ---------------------------------------------------------------- */

static void act_as_kernel(void) {
    struct duck_kernel_mailbox *mailbox = fake.session.mailbox;
    if (!fake.session_runs) return;
    switch (fake_below(40)) {
    case 0: /* write anything anywhere in the mailbox */
        if (fake_below(10) != 0) break;
        for (uint32_t i = 0; i < sizeof *mailbox; i++)
            if (fake_below(8) == 0) ((uint8_t *)mailbox)[i] = (uint8_t)fake_random();
        break;
    case 1:
        if (fake_below(10) != 0) break;
        fake.session_dies = true;
        fake.verdict.status = 1 + fake_below(18);
        fake.verdict.fault_kind = fake_below(9);
        break;
    case 2: mailbox->init_status = (int32_t)fake_below(3); break;
    default:
        if (mailbox->init_status == DUCK_KERNEL_INIT_PENDING) {
            mailbox->init_status = 0;
            note_kernel(KERNEL_STARTS, 0, 0);
        }
        if (fake_below(2) || mailbox->call_completed == mailbox->call_published) break;
        mailbox->call_completed++;
        struct duck_kernel_slot *slot = &mailbox->slot[mailbox->call_completed % 4];
        slot->output_bytes = fake_below(20000);
        slot->status = fake_below(10) == 0;
        note_kernel(KERNEL_COMPLETES, slot->output_bytes, (uint32_t)slot->status);
    }
}

/* ---- ELF files ------------------------------------------------------------------------------- */

static void fuzz_elf(void) {
    uint8_t elf[1024];
    struct elf_plan plan;
    uint32_t bytes = tiny_elf(elf);
    for (uint32_t i = 0; i < 1 + fake_below(4); i++) put_field(elf + fake_below(bytes - 16), 16);
    if (fake_below(10) == 0) bytes = fake_below(bytes);
    uint8_t *copy = malloc(bytes != 0 ? bytes : 1);
    CHECK(copy != NULL);
    memcpy(copy, elf, bytes);
    enum elf_error error = elf_check(copy, bytes, &plan);
    CHECK(elf_error_text(error)[0] != 0);
    if (error == ELF_OK) {
        uint8_t *memory = calloc(1, plan.span);
        CHECK(memory != NULL);
        elf_load(copy, &plan, memory, 0x10000);
        free(memory);
    }
    free(copy);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void one_round(uint64_t seed) {
    fuzz_join(seed);
    fuzz_open();
    for (int step = 0; step < 2000; step++) {
        switch (fake_below(16)) {
        case 0: send_noise(); break;
        case 1: fuzz_hello(&hosts[fake_below(FUZZ_HOSTS)]); break;
        case 2: pass_time(fake_below(2) ? fake_below(1000) : fake_below(50000)); break;
        case 3: fuzz_elf(); break;
        case 5:
            if (fake_below(20) == 0) join_anew();
            break;
        case 6:
            if (fake_below(10) == 0) change_keys();
            break;
        case 4:
            if (fake_below(100) == 0) pass_time(4000000);
            break;
        default: send_mutated();
        }
        act_as_kernel();
        core_tick(&core);
        fuzz_check_rules();
    }
    core_settle();
    fuzz_check_rules();
}

int main(int count, char **words) {
    uint64_t seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    long seconds = count > 2 ? strtol(words[2], NULL, 10) : 5;
    if (count > 3) script.file = fopen(words[3], "wb");
    time_t end = time(NULL) + seconds;
    uint64_t rounds = 0, calls = 0, sessions = 0, commits = 0;
    do {
        printf("seed %llu\n", (unsigned long long)seed); /* the last one printed failed */
        fflush(stdout);
        one_round(seed++);
        rounds++;
        calls += core.stats.calls_finished;
        sessions += core.stats.sessions_opened;
        commits += core.stats.commits;
    } while (time(NULL) < end);
    fake_free();
    if (script.file != NULL) fclose(script.file);
    printf("%llu rounds: %llu calls finished, %llu sessions opened, %llu commits\n",
           (unsigned long long)rounds, (unsigned long long)calls, (unsigned long long)sessions,
           (unsigned long long)commits);
    return 0;
}
