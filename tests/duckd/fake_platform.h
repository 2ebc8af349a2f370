/* SPDX-License-Identifier: Apache-2.0
 *
 * A platform for tests of the duck core: time stands still until a test moves it, packets go into a
 * list, a session is a piece of memory that the test plays the kernel in. Every block is a heap
 * block of exactly the size asked for, so that the address sanitizer sees each access beyond it.
 */
#ifndef FAKE_PLATFORM_H
#define FAKE_PLATFORM_H

#include "core.h"

#define FAKE_SENT_MAX 65536

struct fake_packet {
    struct plat_peer to;
    uint32_t bytes;
    uint8_t *data;
};

struct fake_platform {
    uint64_t now_ns;
    uint64_t random; /* state of the generator */
    uint64_t memory_limit;
    bool session_runs;
    bool session_dies; /* report `verdict` at the next look */
    struct duck_fault verdict;
    bool has_spare_cores;
    uint32_t sessions_started, wakes, reboots, spare_core_runs;
    struct plat_session_request request;
    struct plat_session_memory session;
    uint32_t sent_count;
    struct fake_packet sent[FAKE_SENT_MAX];
};

extern struct fake_platform fake;

void fake_reset(uint64_t seed);
void fake_forget_sent(void);
void fake_free(void); /* everything, so that the leak checker is content */
uint64_t fake_random(void);
uint32_t fake_below(uint32_t limit);

#endif
