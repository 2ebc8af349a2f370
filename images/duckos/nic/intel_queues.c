/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/intel_queues.h"

void intel_ring_place(volatile uint8_t *registers, struct intel_ring_registers at,
                      const volatile void *ring, uint32_t bytes) {
    uint64_t base = nic_dma(ring);
    intel_write(registers, at.base, (uint32_t)base);
    intel_write(registers, at.base + 4, (uint32_t)(base >> 32));
    intel_write(registers, at.bytes, bytes);
    intel_write(registers, at.head, 0);
    intel_write(registers, at.tail, 0);
}

void intel_queues_empty(struct intel_queues *queues) {
    for (uint32_t index = 0; index < queues->memory.receive_count; index++)
        queues->give(queues, index);
    queues->receive_next = queues->released = 0;
    queues->in_long_frame = false;
    queues->send_next = queues->send_oldest = 0;
}

/* ---- reception ------------------------------------------------------------------------------- */
static void refill(struct nic *nic) {
    struct intel_queues *queues = nic->state;
    if (queues->released == 0) return;
    queues->released = 0;
    ring_barrier(); /* descriptors before the tail */
    intel_write(queues->registers, queues->receive_tail,
                (queues->receive_next - 1) & (queues->memory.receive_count - 1));
}

static void release(struct nic *nic) {
    struct intel_queues *queues = nic->state;
    queues->give(queues, queues->receive_next);
    queues->receive_next = nic_next(queues->receive_next, queues->memory.receive_count);
    if (++queues->released >= NIC_REFILL_FRAMES) refill(nic);
}

/* Whether the descriptor holds a whole frame to hand out; what it is otherwise is counted. */
static bool is_good(struct nic *nic, struct intel_received got) {
    struct intel_queues *queues = nic->state;
    bool is_part = queues->in_long_frame || !got.is_end;
    queues->in_long_frame = !got.is_end;
    if (is_part)
        nic->count.oversized += got.is_end;
    else if (got.is_error)
        nic->count.descriptor_errors++;
    else if (got.bytes < NIC_HEADER_BYTES)
        nic->count.runts++;
    else if (got.bytes > NIC_BUFFER_BYTES)
        nic->count.bad_descriptors++;
    else
        return true;
    return false;
}

static bool receive(struct nic *nic, struct nic_frame *frame) {
    struct intel_queues *queues = nic->state;
    for (uint32_t seen = 0; seen < queues->memory.receive_count; seen++) {
        struct intel_received got = queues->received(queues, queues->receive_next);
        if (!got.is_done) return false;
        if (is_good(nic, got)) {
            frame->bytes = intel_receive_buffer(queues, queues->receive_next);
            frame->size = got.bytes;
            return true;
        }
        release(nic);
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void reclaim(struct nic *nic) {
    struct intel_queues *queues = nic->state;
    while (queues->send_oldest != queues->send_next && queues->sent(queues, queues->send_oldest)) {
        queues->send_oldest = nic_next(queues->send_oldest, queues->memory.send_count);
        nic->count.completed++;
    }
}

static uint8_t *send_buffer(struct nic *nic) {
    struct intel_queues *queues = nic->state;
    reclaim(nic);
    if (nic_next(queues->send_next, queues->memory.send_count) == queues->send_oldest) {
        nic->count.ring_full++;
        return NULL;
    }
    return intel_send_buffer(queues, queues->send_next);
}

static void send(struct nic *nic, size_t bytes) {
    struct intel_queues *queues = nic->state;
    queues->put(queues, queues->send_next, bytes);
    queues->send_next = nic_next(queues->send_next, queues->memory.send_count);
    ring_barrier(); /* the descriptor before the tail */
    intel_write(queues->registers, queues->send_tail, queues->send_next);
}

static bool sending(struct nic *nic) {
    struct intel_queues *queues = nic->state;
    reclaim(nic);
    return queues->send_oldest != queues->send_next;
}

void intel_queues_attach(struct nic *nic, struct intel_queues *queues) {
    nic->state = queues;
    nic->receive = receive;
    nic->release = release;
    nic->refill = refill;
    nic->send_buffer = send_buffer;
    nic->send = send;
    nic->sending = sending;
}
