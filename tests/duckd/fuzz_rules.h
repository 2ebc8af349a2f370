/* SPDX-License-Identifier: Apache-2.0
 *
 * What both fuzzers of the duck core share: hosts that joined, delivery of packets, and the rules
 * that are checked after every step:
 *   - no answer is longer than what asked for it (RESULT and the one FAULT that ends a session are
 *     the stated exceptions);
 *   - a region that is whole is committed from its first byte to its last;
 *   - no more calls run than the credit allows, and the session's state is the platform's.
 * Memory errors are the sanitizers' to find: every packet, region and buffer is a heap block of its
 * exact size.
 */
#ifndef FUZZ_RULES_H
#define FUZZ_RULES_H

#include "fake_host.h"

#define FUZZ_HOSTS 3

extern struct fake_host hosts[FUZZ_HOSTS];
extern uint64_t asked_bytes; /* of all packets since fuzz_open() */

/* A new core, with all hosts joined. */
void fuzz_join(uint64_t seed);
/* Then: the first host loads a kernel and opens a session. */
void fuzz_open(void);
void fuzz_deliver(const struct plat_peer *from, const uint8_t *packet, size_t bytes);
void fuzz_hello(struct fake_host *host);
void fuzz_check_rules(void);

#endif
