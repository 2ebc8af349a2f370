/* SPDX-License-Identifier: Apache-2.0
 *
 * I210, I211, I225 and I226: one receive and one send queue of advanced descriptors, and what else
 * their ports have in common. Sections are those of the Intel Ethernet Controller I210 Datasheet
 * (333016).
 *
 * The device writes a finished descriptor back over the addresses, so each is written anew before
 * it is given away (7.1.4.3, 7.2.2; nic/intel_queues.h).
 */
#include "memory/memory.h"
#include "nic/intel_queues.h"

#include <assert.h>

enum {                         /* 8.1.3, queue 0 */
       LONGEST_FRAME = 0x5004, /* RLPML */
       CHECKSUM_CONTROL = 0x5000,
       RECEIVE_BASE = 0xc000,
       RECEIVE_BYTES = 0xc008,
       SPLIT_CONTROL = 0xc00c, /* SRRCTL */
       RECEIVE_HEAD = 0xc010,
       RECEIVE_TAIL = 0xc018,
       RECEIVE_CONTROL = 0xc028,
       SEND_BASE = 0xe000,
       SEND_BYTES = 0xe008,
       SEND_HEAD = 0xe010,
       SEND_TAIL = 0xe018,
       SEND_CONTROL = 0xe028,
};
enum {
    INTERRUPT_CAUSE = 0x1500,
    INTERRUPT_MASK_CLEAR = 0x150c,
    EXTENDED_MASK_CLEAR = 0x1528,
    COALESCING = 0x2508,        /* DMACR: holds received frames back to save power */
    EEE_CONTROL = 0x0e30,       /* EEER, 8.24.10 */
    EEE_CONFIGURATION = 0x0e38, /* IPCNFG, 8.24.1 */
};
enum { COALESCING_ENABLE = 1u << 31 };
enum { EEE_NEGOTIATED = 1u << 29, EEE_SEND_IDLE = 1u << 16, EEE_RECEIVE_IDLE = 1u << 17 };
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
    struct intel_queues queues; /* first: nic->state is both */
    volatile union receive_descriptor *receive;
    volatile struct send_descriptor *send;
};

/* ---- descriptors ----------------------------------------------------------------------------- */
static struct intel_rings *of(struct intel_queues *queues) { return (struct intel_rings *)queues; }

static void give(struct intel_queues *queues, uint32_t index) {
    volatile union receive_descriptor *at = &of(queues)->receive[index];
    at->given.buffer = nic_dma(intel_receive_buffer(queues, index));
    at->given.header = 0; /* clears the old status: bit 0 is "done" */
}

static struct intel_received received(struct intel_queues *queues, uint32_t index) {
    volatile union receive_descriptor *at = &of(queues)->receive[index];
    uint32_t status = at->done.status;
    if ((status & RECEIVED) == 0) return (struct intel_received){.is_done = false};
    ring_barrier(); /* the status before the rest */
    return (struct intel_received){true, (status & RECEIVED_END) != 0,
                                   (status & RECEIVE_ERROR) != 0, at->done.bytes};
}

static void put(struct intel_queues *queues, uint32_t index, size_t bytes) {
    volatile struct send_descriptor *at = &of(queues)->send[index];
    at->buffer = nic_dma(intel_send_buffer(queues, index));
    at->options = (uint32_t)bytes << SEND_LENGTH_SHIFT; /* "sent" is clear */
    at->command = SEND_COMMAND | (uint32_t)bytes;
}

static bool sent(struct intel_queues *queues, uint32_t index) {
    return (of(queues)->send[index].options & SENT) != 0;
}

static struct intel_rings *take_rings(volatile uint8_t *registers) {
    struct intel_rings *rings = memory_take(sizeof *rings, 64);
    struct intel_queues *queues = &rings->queues;
    queues->registers = registers;
    queues->receive_tail = RECEIVE_TAIL;
    queues->send_tail = SEND_TAIL;
    queues->give = give;
    queues->received = received;
    queues->put = put;
    queues->sent = sent;
    nic_take_buffers(&queues->memory);
    /* 8.10.5: bases are 128-byte aligned, lengths multiples of 128 bytes. */
    rings->receive = memory_take(queues->memory.receive_count * sizeof *rings->receive, 128);
    rings->send = memory_take(queues->memory.send_count * sizeof *rings->send, 128);
    return rings;
}

/* ---- starting -------------------------------------------------------------------------------- */
/* 4.5.9 */
static enum nic_status start_receiver(struct intel_rings *rings) {
    volatile uint8_t *registers = rings->queues.registers;
    uint32_t count = rings->queues.memory.receive_count;
    intel_write(registers, CHECKSUM_CONTROL, 0);
    intel_write(registers, LONGEST_FRAME, TAGGED_FRAME_BYTES_MAX);
    intel_write(registers, SPLIT_CONTROL, SPLIT_CONTROL_VALUE);
    intel_ring_place(
        registers,
        (struct intel_ring_registers){RECEIVE_BASE, RECEIVE_BYTES, RECEIVE_HEAD, RECEIVE_TAIL},
        rings->receive, count * (uint32_t)sizeof(union receive_descriptor));
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
    volatile uint8_t *registers = rings->queues.registers;
    intel_ring_place(
        registers, (struct intel_ring_registers){SEND_BASE, SEND_BYTES, SEND_HEAD, SEND_TAIL},
        rings->send, rings->queues.memory.send_count * (uint32_t)sizeof(struct send_descriptor));
    intel_write(registers, SEND_CONTROL, SEND_THRESHOLDS | QUEUE_ENABLE);
    if (!nic_wait32(registers + SEND_CONTROL, QUEUE_ENABLE, QUEUE_ENABLE, NIC_RESET_LIMIT_US))
        return NIC_REFUSED;
    ring_barrier();
    intel_write(registers, INTEL_TCTL,
                TCTL_ENABLE | TCTL_PAD_SHORT | TCTL_COLLISIONS | TCTL_DISTANCE);
    return NIC_OK;
}

/* 4.5.9.1, 4.5.10.1: a queue is off when its enable bit reads zero. */
static void stop_rings(volatile uint8_t *registers) {
    intel_write(registers, RECEIVE_CONTROL, 0);
    intel_write(registers, SEND_CONTROL, 0);
    (void)nic_wait32(registers + RECEIVE_CONTROL, QUEUE_ENABLE, 0, NIC_RESET_LIMIT_US);
    (void)nic_wait32(registers + SEND_CONTROL, QUEUE_ENABLE, 0, NIC_RESET_LIMIT_US);
}

/* ---- the port -------------------------------------------------------------------------------- */
volatile uint8_t *intel_rings_registers(struct nic *nic) {
    return ((struct intel_queues *)nic->state)->registers;
}

static void interrupts_off(volatile uint8_t *registers) {
    intel_write(registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    intel_write(registers, EXTENDED_MASK_CLEAR, UINT32_MAX);
    (void)intel_read(registers, INTERRUPT_CAUSE); /* reading clears */
}

/* 4.3.1, 4.5.3 */
static enum nic_status reset(volatile uint8_t *registers) {
    interrupts_off(registers);
    intel_quiesce(registers);
    intel_write(registers, INTEL_CTRL, intel_read(registers, INTEL_CTRL) | CTRL_RESET);
    nic_pause_us(3000); /* 4.3.1: at least 1 ms before any register access */
    if (!nic_wait32(registers + INTEL_CTRL, CTRL_RESET, 0, NIC_RESET_LIMIT_US))
        return NIC_NO_ANSWER;
    intel_wait_for_nvm(registers);
    interrupts_off(registers);
    return NIC_OK;
}

enum nic_status intel_rings_reset(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    enum nic_status status = reset(registers);
    if (status == NIC_OK) status = intel_read_mac(nic, registers);
    if (status != NIC_OK) return status;
    intel_set_loaded(registers, true);
    intel_set_filter(nic, registers);
    return NIC_OK;
}

bool intel_rings_energy_saving_agreed(struct nic *nic) {
    return (intel_read(intel_rings_registers(nic), EEE_CONTROL) & EEE_NEGOTIATED) != 0;
}

void intel_rings_energy_saving_off(struct nic *nic, uint32_t advertised) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    intel_write(registers, EEE_CONTROL,
                intel_read(registers, EEE_CONTROL) & ~(uint32_t)(EEE_SEND_IDLE | EEE_RECEIVE_IDLE));
    intel_write(registers, EEE_CONFIGURATION,
                intel_read(registers, EEE_CONFIGURATION) & ~advertised);
    intel_write(registers, COALESCING,
                intel_read(registers, COALESCING) & ~(uint32_t)COALESCING_ENABLE);
}

static void poll_link(struct nic *nic) { intel_poll_link(nic, intel_rings_registers(nic)); }

enum nic_status intel_rings_start(struct nic *nic) {
    struct intel_rings *rings = nic->state;
    volatile uint8_t *registers = intel_rings_registers(nic);
    uint32_t control = intel_read(registers, INTEL_CTRL);
    control &= ~(uint32_t)(CTRL_FORCE_SPEED | CTRL_FORCE_DUPLEX | CTRL_MASTER_DISABLE);
    intel_write(registers, INTEL_CTRL, control | CTRL_SET_LINK_UP);
    pci_bus_master_on(nic->device);
    intel_queues_empty(&rings->queues);
    enum nic_status status = start_receiver(rings);
    if (status == NIC_OK) status = start_sender(rings);
    if (status != NIC_OK) return status;
    nic->broken = false;
    poll_link(nic);
    return NIC_OK;
}

static void arm_wake(struct nic *nic) { intel_arm_wake(intel_rings_registers(nic)); }

static void stop(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    interrupts_off(registers);
    intel_quiesce(registers);
    stop_rings(registers);
    intel_set_loaded(registers, false);
    pci_take_over(nic->device);
    nic->broken = true;
}

enum nic_status intel_rings_probe(struct nic *nic, const struct pci_device *device,
                                  const char *driver, const struct nic_model *model) {
    pci_take_over(device);
    volatile uint8_t *registers = pci_map_bar(device, 0, INTEL_REGISTER_BYTES, NULL);
    if (registers == NULL) return NIC_NO_REGISTERS;
    intel_queues_attach(nic, &take_rings(registers)->queues);
    nic_set_name(nic->driver, driver);
    nic_set_name(nic->model, model->name);
    nic->mtu_bytes_max = NIC_MTU_JUMBO;
    nic->stop = stop;
    nic->arm_wake = arm_wake;
    nic->poll_link = poll_link;
    return NIC_OK;
}
