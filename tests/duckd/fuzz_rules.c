/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz_rules.h"
#include "check.h"
#include <string.h>

struct fake_host hosts[FUZZ_HOSTS];
uint64_t asked_bytes;
static uint64_t answered_bytes;

/* Account for what the core sent since the last look. */
static void look_at_answers(void) {
    for (uint32_t i = 0; i < fake.sent_count; i++) {
        struct duck_packet_header header = header_of(&fake.sent[i]);
        CHECK_EQUAL(fake.sent[i].bytes, sizeof header + header.payload_bytes);
        CHECK(fake.sent[i].bytes <= DUCK_WIRE_PACKET_BYTES_MAX);
        if (header.type == DUCK_MSG_RESULT) continue;
        answered_bytes += fake.sent[i].bytes;
    }
    /* Refused calls (FAULT by the kernel's status) answer the CALL, but possibly a shorter one. */
    uint64_t exceptions = (core.stats.sessions_faulted + core.stats.calls_finished +
                           core.stats.calls_repeated + core.stats.results_resent) *
                          (sizeof(struct duck_packet_header) + sizeof(struct duck_fault));
    CHECK(answered_bytes <= asked_bytes + exceptions);
    fake_forget_sent();
}

void fuzz_deliver(const struct plat_peer *from, const uint8_t *packet, size_t bytes) {
    uint8_t *copy = malloc(bytes != 0 ? bytes : 1);
    CHECK(copy != NULL);
    memcpy(copy, packet, bytes);
    asked_bytes += bytes;
    core_packet(&core, from, copy, bytes);
    free(copy);
}

void fuzz_hello(struct fake_host *host) {
    host_send_hello(host);
    asked_bytes += sizeof(struct duck_packet_header) + sizeof(struct duck_hello);
}

void fuzz_join(uint64_t seed) {
    fake_core_start(seed);
    for (uint16_t i = 0; i < FUZZ_HOSTS; i++) {
        host_make(&hosts[i], (uint16_t)(1000 + i), true);
        host_join(&hosts[i]);
    }
}

void fuzz_open(void) {
    uint8_t elf[1024];
    uint32_t bytes = tiny_elf(elf);
    asked_bytes = answered_bytes = 0;
    host_load(&hosts[0], DUCK_REGION_KERNEL, elf, bytes);
    host_open(&hosts[0], DUCK_OPEN_TAKEOVER);
    fake_forget_sent();
}

/* A request that is still being done is a COMMIT in the queue or the OPEN of a kernel that starts;
 * any other would never be answered, and its place in the reply cache be lost. */
static void look_at_replies(void) {
    uint32_t working = 0;
    for (uint32_t i = 0; i < CORE_ASSOCIATIONS; i++)
        for (uint32_t r = 0; r < CORE_REPLIES; r++)
            if (core.association[i].reply[r].state == CORE_REPLY_WORKING) working++;
    CHECK(working <= core.commit_count + (core.session.state == CORE_STARTING ? 1u : 0u));
}

void fuzz_check_rules(void) {
    look_at_answers();
    look_at_replies();
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++) {
        const struct core_region *region = &core.region[i];
        CHECK((region->memory == NULL) == (region->bytes == 0));
        CHECK(region->committed.count <= RANGES_MAX);
        if (region->whole)
            CHECK_EQUAL(region->bytes, ranges_first_gap(&region->committed, region->bytes));
    }
    CHECK(core.session.published - core.session.completed <= DUCK_WIRE_CALLS_IN_FLIGHT_MAX);
    bool open = core.session.state == CORE_STARTING || core.session.state == CORE_SERVING;
    CHECK_EQUAL(open, fake.session_runs);
}
