/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_platform.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct fake_platform fake;
static uint8_t *region[DUCK_REGION_COUNT];
static uint64_t region_bytes[DUCK_REGION_COUNT];
static uint8_t *out;

/* xorshift64*: good enough to choose test inputs, and the same everywhere. */
uint64_t fake_random(void) {
    fake.random ^= fake.random >> 12;
    fake.random ^= fake.random << 25;
    fake.random ^= fake.random >> 27;
    return fake.random * UINT64_C(2685821657736338717);
}

uint32_t fake_below(uint32_t limit) { return (uint32_t)((fake_random() >> 32) * limit >> 32); }

void fake_forget_sent(void) {
    for (uint32_t i = 0; i < fake.sent_count; i++) free(fake.sent[i].data);
    fake.sent_count = 0;
}

void fake_free(void) {
    fake_forget_sent();
    plat_session_stop();
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++) plat_region_release(i);
    free(out);
    out = NULL;
}

void fake_reset(uint64_t seed) {
    fake_free();
    memset(&fake, 0, sizeof fake);
    fake.now_ns = 1000000000;
    fake.random = seed * 2 + 1;
    fake.memory_limit = 64u << 20;
}

uint64_t plat_now_ns(void) { return fake.now_ns; }

void plat_random(void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) ((uint8_t *)bytes)[i] = (uint8_t)fake_random();
}

/* A new block for each packet: a write behind its end can't hide in the next one. */
uint8_t *plat_packet_buffer(void) {
    free(out);
    out = malloc(DUCK_WIRE_PACKET_BYTES_MAX);
    if (out == NULL) abort();
    return out;
}

void plat_packet_send(const struct plat_peer *to, size_t bytes) {
    if (fake.sent_count == FAKE_SENT_MAX) return;
    uint8_t *copy = malloc(bytes);
    if (copy == NULL) abort();
    memcpy(copy, out, bytes);
    fake.sent[fake.sent_count++] = (struct fake_packet){*to, (uint32_t)bytes, copy};
}

uint64_t plat_region_bytes_max(uint32_t which) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++)
        if (i != which) used += region_bytes[i];
    return fake.memory_limit - used;
}

uint64_t plat_session_bytes_max(void) { return plat_region_bytes_max(DUCK_REGION_COUNT); }

uint8_t *plat_region_provide(uint32_t which, uint64_t bytes) {
    region[which] = calloc(1, bytes);
    region_bytes[which] = bytes;
    return region[which];
}

void plat_region_release(uint32_t which) {
    free(region[which]);
    region[which] = NULL;
    region_bytes[which] = 0;
}

enum duck_status plat_session_start(const struct plat_session_request *request,
                                    struct plat_session_memory *memory,
                                    char text[DUCK_WIRE_TEXT_BYTES]) {
    (void)text;
    fake.request = *request;
    fake.session.mailbox = calloc(1, sizeof *fake.session.mailbox);
    fake.session.calls = calloc(1, request->calls_bytes);
    if (fake.session.mailbox == NULL || fake.session.calls == NULL) abort();
    fake.session.mailbox->init_status = DUCK_KERNEL_INIT_PENDING;
    fake.session_runs = true;
    fake.session_dies = false;
    fake.sessions_started++;
    *memory = fake.session;
    return DUCK_OK;
}

bool plat_session_ended(struct duck_fault *verdict) {
    if (!fake.session_dies) return false;
    fake.session_dies = false;
    *verdict = fake.verdict;
    return true;
}

void plat_session_wake(void) { fake.wakes++; }

void plat_session_call_times(uint32_t call_number, uint64_t *start_ns, uint64_t *end_ns) {
    (void)call_number;
    *start_ns = *end_ns = 0;
}

void plat_session_usage(struct duck_usage *usage) {
    usage->run_mode = fake.request.run_mode;
    usage->cycles = 12345;
}

void plat_stats(struct duck_stats *stats) { stats->ring_switches = 7; }

/* A thread for each piece of work, when the test wants that. */
struct fake_work {
    void (*function)(void *argument);
    void *argument;
};

static void *spare_core(void *given) {
    struct fake_work work = *(struct fake_work *)given;
    free(given);
    work.function(work.argument);
    return NULL;
}

bool plat_spare_core_run(void (*function)(void *argument), void *argument) {
    pthread_t thread;
    if (!fake.has_spare_cores) return false;
    struct fake_work *work = malloc(sizeof *work);
    if (work == NULL) abort();
    *work = (struct fake_work){function, argument};
    if (pthread_create(&thread, NULL, spare_core, work) != 0) abort();
    if (pthread_detach(thread) != 0) abort();
    fake.spare_core_runs++;
    return true;
}

void plat_session_stop(void) {
    free(fake.session.mailbox);
    free(fake.session.calls);
    memset(&fake.session, 0, sizeof fake.session);
    fake.session_runs = false;
}

void plat_describe(uint16_t interface, struct duck_info *info) {
    (void)interface;
    info->platform = DUCK_PLATFORM_LINUX_PROCESS;
    info->core_count = plat_core_count();
}

uint32_t plat_cpu_features(void) { return DUCK_CPU_AVX2; }
uint32_t plat_core_count(void) { return 4; }

void plat_log(const char *line, size_t bytes) {
    (void)line;
    (void)bytes;
}

void plat_reboot(void) { fake.reboots++; }
