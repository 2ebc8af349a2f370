/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping one receive and one send ring, as all Intel families do it; what a descriptor looks like
 * is the family's.
 *
 * Who owns what: the device owns descriptors from head up to, not including, tail; the device moves
 * the heads, the driver the tails. Receive: the tail is one behind the oldest frame that we still
 * have, so the ring never looks empty when it is full. Send: the tail is the next descriptor that
 * we fill; one descriptor always stays unused, because head == tail means empty.
 */
#ifndef DUCKOS_NIC_INTEL_QUEUES_H
#define DUCKOS_NIC_INTEL_QUEUES_H

#include "nic/intel.h"

/* What a receive descriptor says. A frame longer than a buffer takes several: only its last one is
 * marked as an end. */
struct intel_received {
    bool is_done; /* the device has finished it; the rest is valid only then */
    bool is_end;
    bool is_error;
    uint32_t bytes;
};

struct intel_queues {
    volatile uint8_t *registers;
    struct nic_memory memory;
    uint32_t receive_tail, send_tail; /* registers */
    uint32_t receive_next;            /* the descriptor of the oldest frame */
    uint32_t released;    /* descriptors behind it that the device has not been told of */
    bool in_long_frame;   /* the descriptors before belong to a frame longer than a buffer */
    uint32_t send_next;   /* = tail */
    uint32_t send_oldest; /* the oldest descriptor that may still be the device's */

    /* The family's descriptors. */
    void (*give)(struct intel_queues *queues, uint32_t index); /* ready for the next frame */
    struct intel_received (*received)(struct intel_queues *queues, uint32_t index);
    void (*put)(struct intel_queues *queues, uint32_t index, size_t bytes);
    bool (*sent)(struct intel_queues *queues, uint32_t index);
};

static inline uint8_t *intel_receive_buffer(struct intel_queues *queues, uint32_t index) {
    return queues->memory.receive_buffers + (size_t)index * NIC_BUFFER_BYTES;
}
static inline uint8_t *intel_send_buffer(struct intel_queues *queues, uint32_t index) {
    return queues->memory.send_buffers + (size_t)index * NIC_BUFFER_BYTES;
}

/* Sets receive, release, refill, send_buffer, send and sending; nic->state is the queues. */
void intel_queues_attach(struct nic *nic, struct intel_queues *queues);

/* Both rings as after a reset: every receive descriptor given, nothing to send. */
void intel_queues_empty(struct intel_queues *queues);

/* Where a ring lies: registers `base` (low; high at +4) and `bytes`, head and tail 0. */
struct intel_ring_registers {
    uint32_t base, bytes, head, tail;
};
void intel_ring_place(volatile uint8_t *registers, struct intel_ring_registers at,
                      const volatile void *ring, uint32_t bytes);

#endif
