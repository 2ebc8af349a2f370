/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the duck core's rules for bulk loading against a fake platform: chunks survive loss, what
 * is committed is what was hashed, on this core or on others.
 */
#include "check.h"
#include "fake_host.h"
#include <string.h>

static struct fake_host a, b;
static uint64_t seed;

/* ---- bulk ------------------------------------------------------------------------------------ */

static void send_part_of(struct fake_host *host, const uint8_t *bytes, uint32_t count,
                         uint64_t offset, uint32_t index, uint16_t stride) {
    static uint8_t payload[DUCK_WIRE_PACKET_BYTES_MAX];
    struct duck_write_prefix prefix = {.region = DUCK_REGION_WEIGHTS, .chunk_offset = offset};
    uint32_t at = index * stride;
    uint32_t part = count - at < stride ? count - at : stride;
    struct fake_fragment fragment = {DUCK_MSG_WRITE, DUCK_KEY_SESSION, host->writes, count, index,
                                     stride};
    memcpy(payload, &prefix, sizeof prefix);
    memcpy(payload + sizeof prefix, bytes + at, part);
    host_send(host, &fragment, payload, (uint32_t)sizeof prefix + part);
}

static void send_chunk_part(const uint8_t *bytes, uint32_t count, uint64_t offset, uint32_t index,
                            uint16_t stride) {
    send_part_of(&a, bytes, count, offset, index, stride);
}

/* COMMIT of [offset, offset + count), which is to hold `bytes`. */
static struct duck_commit commit_of(const uint8_t *bytes, uint64_t offset, uint32_t count,
                                    uint32_t flags) {
    struct duck_commit commit = {
        .region = DUCK_REGION_WEIGHTS, .flags = flags, .offset = offset, .bytes = count};
    duck_sha256 hash;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, bytes, count);
    duck_sha256_end(&hash, commit.sha256);
    return commit;
}

static uint32_t ack_ranges(struct duck_nack *nack) {
    const struct fake_packet *packet = host_last(&a, DUCK_MSG_WRITE_ACK);
    CHECK(packet != NULL);
    memset(nack, 0, sizeof *nack);
    memcpy(nack, payload_of(packet), header_of(packet).payload_bytes);
    CHECK_EQUAL(DUCK_MSG_WRITE, nack->message_type);
    CHECK_EQUAL(a.writes, header_of(packet).sequence);
    return nack->range_count;
}

/* Lose fragments at random, then send what the acknowledgements ask for, until the chunk is
 * complete. */
static void transfer_chunk(const uint8_t *bytes, uint32_t count, uint64_t offset, uint16_t stride) {
    uint32_t fragments = duck_fragment_count(count, stride);
    struct duck_nack nack;
    a.writes++;
    fake_forget_sent();
    for (uint32_t i = 0; i < fragments; i++)
        if (fake_below(100) < 60) send_chunk_part(bytes, count, offset, i, stride);
    for (int round = 0; round < 200; round++) {
        send_chunk_part(bytes, count, offset, fragments - 1, stride);
        if (ack_ranges(&nack) == 0) return;
        for (uint32_t r = nack.range_count; r-- > 0;)
            for (uint32_t i = nack.range[r].begin; i < nack.range[r].end; i++) {
                CHECK(i < fragments);
                if (fake_below(100) < 80) send_chunk_part(bytes, count, offset, i, stride);
            }
        fake_forget_sent();
    }
    CHECK(!"the chunk never became complete");
}

static void test_bulk_with_loss(void) {
    static uint8_t bytes[300000];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)fake_random();
    struct duck_reserve reserve = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof bytes};
    host_request(&a, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    for (uint32_t at = 0; at < sizeof bytes;) {
        const uint16_t strides[] = {64, 1344, 1408, 8896};
        uint32_t count = 1 + fake_below(60000);
        if (count > sizeof bytes - at) count = (uint32_t)sizeof bytes - at;
        transfer_chunk(bytes + at, count, at, strides[fake_below(4)]);
        at += count;
    }
    CHECK(memcmp(core.region[DUCK_REGION_WEIGHTS].memory, bytes, sizeof bytes) == 0);
}

/* Every second fragment is missing, and the host only probes: all answers together are no longer
 * than what came, and each names something that is missing. */
static void test_acknowledgements_are_no_longer_than_what_came(void) {
    static uint8_t bytes[400 * 64 + 1];
    struct duck_nack nack;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    struct duck_reserve reserve = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof bytes};
    host_request(&a, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    fake_forget_sent();
    a.writes++;
    for (uint32_t i = 0; i < 400; i += 2) send_chunk_part(bytes, sizeof bytes, 0, i, 64);
    uint64_t asked = 200 * (sizeof(struct duck_packet_header) + 16 + 64), answered = 0;
    for (int probe = 0; probe < 1000; probe++) {
        send_chunk_part(bytes, sizeof bytes, 0, 400, 64);
        asked += sizeof(struct duck_packet_header) + 16 + 1;
        answered += fake.sent[fake.sent_count - 1].bytes;
        CHECK(answered <= asked);
        CHECK(ack_ranges(&nack) >= 1);
        if (probe == 0) CHECK_EQUAL(DUCK_WIRE_NACK_RANGES_MAX, nack.range_count);
    }
}

static void test_commit_pieces_and_gaps(void) {
    static uint8_t bytes[8192];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
    /* One byte written anew: no longer whole, and only that part must be committed again. */
    a.writes++;
    bytes[5000] = 9;
    send_chunk_part(bytes + 4992, 64, 4992, 0, 64);
    CHECK(!core.region[DUCK_REGION_WEIGHTS].whole);
    struct duck_commit commit = commit_of(bytes, 0, 64, DUCK_COMMIT_LAST);
    struct duck_done done = host_request(&a, DUCK_MSG_COMMIT, &commit, sizeof commit);
    CHECK_EQUAL(DUCK_ERR_NOT_COMMITTED, done.status);
    CHECK_EQUAL(4992, done.value);
    commit = commit_of(bytes + 4992, 4992, 64, DUCK_COMMIT_LAST);
    CHECK_EQUAL(DUCK_OK, host_request(&a, DUCK_MSG_COMMIT, &commit, sizeof commit).status);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
}

static void test_write_during_hash_restarts_it(void) {
    static uint8_t bytes[1 << 20];
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    bytes[3] = 1; /* the digest of what is written in the middle of the hash */
    struct duck_commit commit = commit_of(bytes, 0, sizeof bytes, 0);
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_COMMIT, ++a.requests, &commit, sizeof commit);
    CHECK_EQUAL(0, core_tick(&core));
    CHECK_EQUAL(0, core_tick(&core));
    a.writes++;
    send_chunk_part(bytes, 64, 0, 0, 64);
    core_settle();
    struct duck_done done;
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_OK, done.status);
}

/* One host stalls in the midst of a chunk, another writes and commits the same bytes: what comes
 * late of the first is no longer committed, and only that. */
static void test_late_fragment_takes_the_mark_away(void) {
    static uint8_t good[192], bad[192];
    const struct core_region *region = &core.region[DUCK_REGION_WEIGHTS];
    memset(good, 1, sizeof good);
    memset(bad, 0xee, sizeof bad);
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_make(&b, 1001, false);
    host_join(&b);
    struct duck_reserve reserve = {.region = DUCK_REGION_WEIGHTS, .bytes = sizeof good};
    host_request(&a, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    a.writes++;
    send_part_of(&a, bad, sizeof bad, 0, 0, 64);
    b.writes++;
    for (uint32_t i = 0; i < 3; i++) send_part_of(&b, good, sizeof good, 0, i, 64);
    struct duck_commit commit = commit_of(good, 0, sizeof good, DUCK_COMMIT_LAST);
    CHECK_EQUAL(DUCK_OK, host_request(&b, DUCK_MSG_COMMIT, &commit, sizeof commit).status);
    send_part_of(&a, bad, sizeof bad, 0, 0, 64); /* a repeated one changes nothing */
    CHECK(region->whole && memcmp(region->memory, good, sizeof good) == 0);
    send_part_of(&a, bad, sizeof bad, 0, 1, 64);
    CHECK(!region->whole && region->memory[64] == 0xee);
    CHECK_EQUAL(2, region->committed.count);
    CHECK_EQUAL(64, region->committed.range[0].end);
    CHECK_EQUAL(128, region->committed.range[1].begin);
    /* Nobody takes it for committed: the last piece says where the gap is. */
    commit = commit_of(good + 128, 128, 64, DUCK_COMMIT_LAST);
    struct duck_done done = host_request(&b, DUCK_MSG_COMMIT, &commit, sizeof commit);
    CHECK_EQUAL(DUCK_ERR_NOT_COMMITTED, done.status);
    CHECK_EQUAL(64, done.value);
}

static void test_late_fragment_during_hash_restarts_it(void) {
    static uint8_t bytes[1 << 20];
    struct duck_done done;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    a.writes++;
    send_chunk_part(bytes, 128, 0, 0, 64);
    bytes[64 + 3] = 1;
    struct duck_commit commit = commit_of(bytes, 0, sizeof bytes, DUCK_COMMIT_LAST);
    fake_forget_sent();
    host_send_one(&a, DUCK_MSG_COMMIT, ++a.requests, &commit, sizeof commit);
    CHECK_EQUAL(0, core_tick(&core));
    CHECK_EQUAL(0, core_tick(&core));
    send_chunk_part(bytes, 128, 0, 1, 64);
    core_settle();
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_OK, done.status);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
}

/* Two pieces hashed by other cores, one of them written meanwhile: all are right, in order. */
static void test_hashes_on_other_cores(void) {
    static uint8_t bytes[1 << 20];
    const uint32_t piece = 1 << 19;
    struct duck_done done;
    fake_core_start(seed);
    host_make(&a, 1000, false);
    host_join(&a);
    for (uint32_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)fake_random();
    host_load(&a, DUCK_REGION_WEIGHTS, bytes, sizeof bytes);
    fake.has_spare_cores = true;
    fake_forget_sent();
    bytes[piece + 3] ^= 1; /* written in the middle of the hash */
    for (uint32_t i = 0; i < 2; i++) {
        struct duck_commit commit =
            commit_of(bytes + i * piece, i * piece, piece, i == 1 ? DUCK_COMMIT_LAST : 0);
        host_send_one(&a, DUCK_MSG_COMMIT, ++a.requests, &commit, sizeof commit);
    }
    core_tick(&core);
    CHECK_EQUAL(2, fake.spare_core_runs);
    a.writes++;
    send_chunk_part(bytes + piece, 64, piece, 0, 64);
    while (core.commit_count != 0) core_tick(&core);
    CHECK(core.region[DUCK_REGION_WEIGHTS].whole);
    memcpy(&done, payload_of(host_last(&a, DUCK_MSG_DONE)), sizeof done);
    CHECK_EQUAL(DUCK_OK, done.status);
}

int main(int count, char **words) {
    static void (*const tests[])(void) = {
        test_bulk_with_loss,
        test_acknowledgements_are_no_longer_than_what_came,
        test_commit_pieces_and_gaps,
        test_write_during_hash_restarts_it,
        test_late_fragment_takes_the_mark_away,
        test_late_fragment_during_hash_restarts_it,
        test_hashes_on_other_cores,
    };
    seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) tests[i]();
    fake_free();
    printf("%zu tests passed\n", sizeof tests / sizeof tests[0]);
    return 0;
}
