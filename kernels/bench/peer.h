/* SPDX-License-Identifier: Apache-2.0
 *
 * ggml's CPU kernels on the same work: a fused expert made of its bare dot products (Q8_0) or its
 * repacked matrix-vector product (Q4_0, 8 rows interleaved), without its graph around them.
 */
#ifndef DUCK_PEER_H
#define DUCK_PEER_H

#include <stdint.h>

#define DUCK_PEER_API __attribute__((visibility("default")))

enum duck_peer_kind { DUCK_PEER_Q8_0 = 0, DUCK_PEER_Q4_0_REPACKED = 1 };

struct duck_peer; /* ggml, loaded */

struct duck_peer_work {
    uint32_t kind; /* enum duck_peer_kind */
    uint32_t hidden, rows;
    uint32_t threads; /* pinned to CPUs 0, 1, ... */
    const uint8_t *weights;
    uint64_t record_bytes; /* from one expert to the next */
    uint32_t first_expert, experts;
};

/* ggml's CPU library (libggml-cpu.so); null when it lacks a function, which `text` then names. */
DUCK_PEER_API struct duck_peer *duck_peer_open(const char *library, char text[128]);

/* Bytes of one expert's weights. */
DUCK_PEER_API uint64_t duck_peer_expert_bytes(uint32_t kind, uint32_t hidden, uint32_t rows);

/* Valid weights of one expert, with pseudo-random integers. */
DUCK_PEER_API void duck_peer_fill(uint32_t kind, uint8_t *weights, uint64_t bytes);

/* One token through `experts` experts, shared out among the threads. Nanoseconds from the moment
 * all threads are ready until the last is done; 0 when a thread was pre-empted meanwhile. */
DUCK_PEER_API uint64_t duck_peer_run(const struct duck_peer *peer,
                                     const struct duck_peer_work *work);

#endif
