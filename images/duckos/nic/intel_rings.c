/* SPDX-License-Identifier: Apache-2.0
 *
 * One receive and one send queue of advanced descriptors, as I210, I211, I225 and I226 have them.
 * Sections are those of the Intel Ethernet Controller I210 Datasheet (333016).
 *
 * Who owns what (7.1.4.3, 7.2.2): the device owns descriptors from head up to, not including, tail;
 * the device moves the heads, the driver the tails. The device writes a finished descriptor back
 * over the addresses, so each is written anew before it is given away. Receive: the tail stays one
 * behind the oldest frame that we still have. Send: one descriptor always stays unused.
 */
#include "memory/memory.h"
#include "nic/intel.h"

#include <assert.h>

enum {                         /* 8.1.3, queue 0 */
       LONGEST_FRAME = 0x5004, /* RLPML */
       CHECKSUM_CONTROL = 0x5000,
       RECEIVE_BASE_LOW = 0xc000,
       RECEIVE_BASE_HIGH = 0xc004,
       RECEIVE_BYTES = 0xc008,
       SPLIT_CONTROL = 0xc00c, /* SRRCTL */
       RECEIVE_HEAD = 0xc010,
       RECEIVE_TAIL = 0xc018,
       RECEIVE_CONTROL = 0xc028,
       SEND_BASE_LOW = 0xe000,
       SEND_BASE_HIGH = 0xe004,
       SEND_BYTES = 0xe008,
       SEND_HEAD = 0xe010,
       SEND_TAIL = 0xe018,
       SEND_CONTROL = 0xe028,
};
/* 8.10.2: buffer size in KB, descriptor type 001b (advanced, one buffer), drop when there is no
 * descriptor instead of blocking the packet buffer. */
#define SPLIT_CONTROL_VALUE ((NIC_BUFFER_BYTES >> 10) | 1u << 25 | 1u << 31)
#define QUEUE_ENABLE (1u << 25) /* 8.10.10, 8.12.15 */
/* Prefetch 8, host 8; write-back thresholds (received: 1, sent: 0) that write a finished descriptor
 * at once. */
#define RECEIVE_THRESHOLDS (8u | 8u << 8 | 1u << 16)
#define SEND_THRESHOLDS (8u | 8u << 8)
#define TAGGED_FRAME_BYTES_MAX (NIC_FRAME_BYTES_MAX + 4u + 4u)
static_assert(TAGGED_FRAME_BYTES_MAX <= NIC_BUFFER_BYTES, "a frame fits a buffer");

union receive_descriptor { /* 7.1.5 */
    struct {
        uint64_t buffer, header;
    } given;
    struct {
        uint32_t information, hash;
        uint32_t status; /* 19:0 status, 31:20 errors */
        uint16_t bytes, tag;
    } done;
};
static_assert(sizeof(union receive_descriptor) == 16, "7.1.5");
enum { RECEIVED = 1u << 0, RECEIVED_END = 1u << 1, RECEIVE_ERROR = 1u << 31 /* RXE */ };

struct send_descriptor { /* 7.2.2.3; written back: status in `options` */
    uint64_t buffer;
    uint32_t command, options;
};
static_assert(sizeof(struct send_descriptor) == 16, "7.2.2.3");
/* Data descriptor (DTYP 0011b): end of packet, insert FCS, report status, advanced. */
#define SEND_COMMAND (3u << 20 | 1u << 24 | 1u << 25 | 1u << 27 | 1u << 29)
#define SEND_LENGTH_SHIFT 14 /* PAYLEN in `options` */
#define SENT 1u

struct intel_rings {
    volatile uint8_t *registers;
    volatile union receive_descriptor *receive;
    volatile struct send_descriptor *send;
    struct nic_memory memory;
    uint32_t receive_next; /* the descriptor of the oldest frame */
    uint32_t released;     /* descriptors behind it that the device has not been told of */
    bool in_long_frame;    /* the descriptors before belong to a frame longer than a buffer */
    uint32_t send_next;    /* = tail */
    uint32_t send_oldest;  /* the oldest descriptor that may still be the device's */
};

volatile uint8_t *intel_rings_registers(struct nic *nic) {
    return ((struct intel_rings *)nic->state)->registers;
}

struct intel_rings *intel_rings_take(volatile uint8_t *registers) {
    struct intel_rings *rings = memory_take(sizeof *rings, 64);
    rings->registers = registers;
    nic_take_buffers(&rings->memory);
    /* 8.10.5: bases are 128-byte aligned, lengths multiples of 128 bytes. */
    rings->receive = memory_take(rings->memory.receive_count * sizeof *rings->receive, 128);
    rings->send = memory_take(rings->memory.send_count * sizeof *rings->send, 128);
    return rings;
}

/* ---- starting -------------------------------------------------------------------------------- */
static uint8_t *receive_buffer(struct intel_rings *rings, uint32_t index) {
    return rings->memory.receive_buffers + (size_t)index * NIC_BUFFER_BYTES;
}

static void give_to_device(struct intel_rings *rings, uint32_t index) {
    rings->receive[index].given.buffer = nic_dma(receive_buffer(rings, index));
    rings->receive[index].given.header = 0; /* clears the old status: bit 0 is "done" */
}

/* 4.5.9 */
static enum nic_status start_receiver(struct intel_rings *rings) {
    volatile uint8_t *registers = rings->registers;
    uint32_t count = rings->memory.receive_count;
    uint64_t base = nic_dma(rings->receive);
    for (uint32_t index = 0; index < count; index++) give_to_device(rings, index);
    rings->receive_next = rings->released = 0;
    rings->in_long_frame = false;
    intel_write(registers, CHECKSUM_CONTROL, 0);
    intel_write(registers, LONGEST_FRAME, TAGGED_FRAME_BYTES_MAX);
    intel_write(registers, RECEIVE_BASE_LOW, (uint32_t)base);
    intel_write(registers, RECEIVE_BASE_HIGH, (uint32_t)(base >> 32));
    intel_write(registers, RECEIVE_BYTES, count * (uint32_t)sizeof(union receive_descriptor));
    intel_write(registers, SPLIT_CONTROL, SPLIT_CONTROL_VALUE);
    intel_write(registers, RECEIVE_HEAD, 0);
    intel_write(registers, RECEIVE_TAIL, 0);
    intel_write(registers, RECEIVE_CONTROL, RECEIVE_THRESHOLDS | QUEUE_ENABLE);
    if (!nic_wait32(registers + RECEIVE_CONTROL, QUEUE_ENABLE, QUEUE_ENABLE, NIC_RESET_LIMIT_US))
        return NIC_REFUSED;
    intel_write(registers, INTEL_RCTL,
                RCTL_ENABLE | RCTL_BROADCAST | RCTL_LONG_PACKETS | RCTL_STRIP_CRC);
    ring_barrier();
    intel_write(registers, RECEIVE_TAIL, count - 1); /* only after the queue is on */
    return NIC_OK;
}

/* 4.5.10 */
static enum nic_status start_sender(struct intel_rings *rings) {
    volatile uint8_t *registers = rings->registers;
    uint64_t base = nic_dma(rings->send);
    rings->send_next = rings->send_oldest = 0;
    intel_write(registers, SEND_BASE_LOW, (uint32_t)base);
    intel_write(registers, SEND_BASE_HIGH, (uint32_t)(base >> 32));
    intel_write(registers, SEND_BYTES,
                rings->memory.send_count * (uint32_t)sizeof(struct send_descriptor));
    intel_write(registers, SEND_HEAD, 0);
    intel_write(registers, SEND_TAIL, 0);
    intel_write(registers, SEND_CONTROL, SEND_THRESHOLDS | QUEUE_ENABLE);
    if (!nic_wait32(registers + SEND_CONTROL, QUEUE_ENABLE, QUEUE_ENABLE, NIC_RESET_LIMIT_US))
        return NIC_REFUSED;
    ring_barrier();
    intel_write(registers, INTEL_TCTL,
                TCTL_ENABLE | TCTL_PAD_SHORT | TCTL_COLLISIONS | TCTL_DISTANCE);
    return NIC_OK;
}

enum nic_status intel_rings_start(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    enum nic_status status = start_receiver(rings);
    return status != NIC_OK ? status : start_sender(rings);
}

/* 4.5.9.1, 4.5.10.1: a queue is off when its enable bit reads zero. */
void intel_rings_stop(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    volatile uint8_t *registers = rings->registers;
    intel_write(registers, RECEIVE_CONTROL, 0);
    intel_write(registers, SEND_CONTROL, 0);
    (void)nic_wait32(registers + RECEIVE_CONTROL, QUEUE_ENABLE, 0, NIC_RESET_LIMIT_US);
    (void)nic_wait32(registers + SEND_CONTROL, QUEUE_ENABLE, 0, NIC_RESET_LIMIT_US);
}

/* ---- reception ------------------------------------------------------------------------------- */
static void refill(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    if (rings->released == 0) return;
    rings->released = 0;
    ring_barrier(); /* descriptors before the tail */
    intel_write(rings->registers, RECEIVE_TAIL,
                (rings->receive_next - 1) & (rings->memory.receive_count - 1));
}

static void release(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    give_to_device(rings, rings->receive_next);
    rings->receive_next = nic_next(rings->receive_next, rings->memory.receive_count);
    if (++rings->released >= NIC_REFILL_FRAMES) refill(nic);
}

/* Whether the descriptor holds a whole frame to hand out; what it is otherwise is counted. A frame
 * longer than a buffer takes several descriptors: only its last one is marked as an end. */
static bool is_good(struct nic *nic, uint32_t status, uint32_t bytes) {
    struct intel_rings *rings = nic->state;
    bool is_end = (status & RECEIVED_END) != 0, is_part = rings->in_long_frame || !is_end;
    rings->in_long_frame = !is_end;
    if (is_part)
        nic->count.oversized += is_end;
    else if ((status & RECEIVE_ERROR) != 0)
        nic->count.descriptor_errors++;
    else if (bytes < NIC_HEADER_BYTES)
        nic->count.runts++;
    else if (bytes > NIC_BUFFER_BYTES)
        nic->count.bad_descriptors++;
    else
        return true;
    return false;
}

static bool receive(struct nic *nic, struct nic_frame *frame) {
    struct intel_rings *rings = nic->state;
    for (uint32_t seen = 0; seen < rings->memory.receive_count; seen++) {
        volatile union receive_descriptor *at = &rings->receive[rings->receive_next];
        uint32_t status = at->done.status;
        if ((status & RECEIVED) == 0) return false;
        ring_barrier(); /* the status before the rest */
        uint32_t bytes = at->done.bytes;
        if (is_good(nic, status, bytes)) {
            frame->bytes = receive_buffer(rings, rings->receive_next);
            frame->size = bytes;
            return true;
        }
        release(nic);
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void reclaim(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    while (rings->send_oldest != rings->send_next &&
           (rings->send[rings->send_oldest].options & SENT) != 0) {
        rings->send_oldest = nic_next(rings->send_oldest, rings->memory.send_count);
        nic->count.completed++;
    }
}

static uint8_t *send_buffer(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    reclaim(nic);
    if (nic_next(rings->send_next, rings->memory.send_count) == rings->send_oldest) {
        nic->count.ring_full++;
        return NULL;
    }
    return rings->memory.send_buffers + (size_t)rings->send_next * NIC_BUFFER_BYTES;
}

static void send(struct nic *nic, size_t bytes) {
    struct intel_rings *rings = nic->state;
    volatile struct send_descriptor *at = &rings->send[rings->send_next];
    at->buffer = nic_dma(rings->memory.send_buffers + (size_t)rings->send_next * NIC_BUFFER_BYTES);
    at->options = (uint32_t)bytes << SEND_LENGTH_SHIFT; /* "sent" is clear */
    at->command = SEND_COMMAND | (uint32_t)bytes;
    rings->send_next = nic_next(rings->send_next, rings->memory.send_count);
    ring_barrier(); /* the descriptor before the tail */
    intel_write(rings->registers, SEND_TAIL, rings->send_next);
}

static bool sending(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    reclaim(nic);
    return rings->send_oldest != rings->send_next;
}

void intel_rings_attach(struct nic *nic, struct intel_rings *rings) {
    nic->state = rings;
    nic->receive = receive;
    nic->release = release;
    nic->refill = refill;
    nic->send_buffer = send_buffer;
    nic->send = send;
    nic->sending = sending;
}
