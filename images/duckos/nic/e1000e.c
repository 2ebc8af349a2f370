/* SPDX-License-Identifier: Apache-2.0
 *
 * 82574L, and the controllers inside Intel's chipsets: I217, I218, I219. Sections are those of the
 * "Intel 82574 GbE Controller Family Datasheet" (rev 3.4) unless another document is named. Legacy
 * descriptors, one queue each way (3.2.6, 3.3.3.3; nic/intel_queues.h).
 *
 * STATUS bit 22 (2.5 Gbit/s on I226) is reserved zero here.
 */
#include "memory/memory.h"
#include "nic/intel_queues.h"

#include <assert.h>

/* 82574: 10.2; offsets that differ from the later families. */
enum {
    INTERRUPT_MASK_CLEAR = 0x00d8,
    INTERRUPT_CAUSE = 0x00c0,
    RECEIVE_BASE = 0x2800,
    RECEIVE_BYTES = 0x2808,
    RECEIVE_HEAD = 0x2810,
    RECEIVE_TAIL = 0x2818,
    RECEIVE_DELAY = 0x2820,
    RECEIVE_CONTROL = 0x2828,
    SEND_BASE = 0x3800,
    SEND_BYTES = 0x3808,
    SEND_HEAD = 0x3810,
    SEND_TAIL = 0x3818,
    SEND_CONTROL = 0x3828,
    CHECKSUM_CONTROL = 0x5000,
    FILTER_CONTROL = 0x5008,
    SEND_GAP = 0x0410,
    PACKET_BUFFER = 0x1000,
    EXTENDED_OWNER = 0x0f00, /* PCH: EXTCNF_CTRL, bit 5 is the software's claim on the PHY */
};
enum { EXTENDED_OWNER_SOFTWARE = 1u << 5 };
#define OWNER_LIMIT_US 100000u

/* 10.2.6.14: bit 22 keeps the count of descriptors still to be sent, bit 24 counts descriptors, not
 * cache lines. */
#define SEND_CONTROL_VALUE (1u << 22 | 1u << 24)
/* 10.2.6.2: the values for copper. */
#define SEND_GAP_VALUE (8u | 8u << 10 | 6u << 20)
/* 10.2.3.23: KB for reception. 9018-byte frames need room for two on reception and one to send; 40
 * KB in all. */
#define PACKET_BUFFER_RECEIVE_KB 20u

struct receive_descriptor { /* 7.1.4 */
    uint64_t address;
    uint16_t bytes, checksum;
    uint8_t status, errors;
    uint16_t tag;
};
static_assert(sizeof(struct receive_descriptor) == 16, "7.1.4");
enum { RECEIVED = 1, RECEIVED_END = 2 };
/* 7.1.4.5: CE, SE, SEQ, CXE, RXE; not the two checksum bits, which we don't ask for. */
enum { RECEIVE_ERRORS = 0x97 };

struct send_descriptor { /* 7.2.10.1 */
    uint64_t address;
    uint16_t bytes;
    uint8_t checksum_offset, command, status, checksum_start;
    uint16_t tag;
};
static_assert(sizeof(struct send_descriptor) == 16, "7.2.10.1");
enum { SEND_END = 1, SEND_ADD_CRC = 2, SEND_REPORT = 8, SENT = 1 };

struct e1000e {
    struct intel_queues queues; /* first: nic->state is both */
    volatile struct receive_descriptor *receive;
    volatile struct send_descriptor *send;
    bool is_pch;
};

static const struct nic_model discrete_models[] = {{0x10d3, "82574L"}, {0x10f6, "82574L"}, {0, ""}};
static const struct nic_model pch_models[] = {{0x153a, "I217-LM"}, {0x153b, "I217-V"},
                                              {0x155a, "I218-LM"}, {0x1559, "I218-V"},
                                              {0x15a0, "I218-LM"}, {0x15a1, "I218-V"},
                                              {0x15a2, "I218-LM"}, {0x15a3, "I218-V"},
                                              {0x156f, "I219-LM"}, {0x1570, "I219-V"},
                                              {0x15b7, "I219-LM"}, {0x15b8, "I219-V"},
                                              {0x15b9, "I219-LM"}, {0x15d7, "I219-LM"},
                                              {0x15d8, "I219-V"},  {0x15e3, "I219-LM"},
                                              {0x15d6, "I219-V"},  {0x15bd, "I219-LM"},
                                              {0x15be, "I219-V"},  {0x15bb, "I219-LM"},
                                              {0x15bc, "I219-V"},  {0x15df, "I219-LM"},
                                              {0x15e0, "I219-V"},  {0x15e1, "I219-LM"},
                                              {0x15e2, "I219-V"},  {0x0d4e, "I219-LM"},
                                              {0x0d4f, "I219-V"},  {0x0d4c, "I219-LM"},
                                              {0x0d4d, "I219-V"},  {0x0d53, "I219-LM"},
                                              {0x0d55, "I219-V"},  {0x15fb, "I219-LM"},
                                              {0x15fc, "I219-V"},  {0x15f9, "I219-LM"},
                                              {0x15fa, "I219-V"},  {0x15f4, "I219-LM"},
                                              {0x15f5, "I219-V"},  {0x1a1e, "I219-LM"},
                                              {0x1a1f, "I219-V"},  {0x1a1c, "I219-LM"},
                                              {0x1a1d, "I219-V"},  {0x550a, "I219-LM"},
                                              {0x550b, "I219-V"},  {0x550c, "I219-LM"},
                                              {0x550d, "I219-V"},  {0, ""}};

/* ---- starting -------------------------------------------------------------------------------- */
/* 4.6.2 and 4.6.3: interrupts off, master disable, reset, interrupts off again. */
static enum nic_status reset(struct e1000e *e1000e) {
    volatile uint8_t *registers = e1000e->queues.registers;
    intel_write(registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    intel_quiesce(registers);
    nic_pause_us(10000); /* frames in flight leave the packet buffer */
    intel_write(registers, INTEL_CTRL, intel_read(registers, INTEL_CTRL) | CTRL_RESET);
    nic_pause_us(10000); /* 10.2.2.1: no register access for 1 us; the NVM is read again */
    if (!nic_wait32(registers + INTEL_CTRL, CTRL_RESET, 0, NIC_RESET_LIMIT_US))
        return NIC_NO_ANSWER;
    intel_write(registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    (void)intel_read(registers, INTERRUPT_CAUSE); /* reading clears */
    return NIC_OK;
}

/* I217 datasheet 9.x, "Low Power Idle Control" (PHY page 772, register 20): bits 14:13 enable
 * energy efficient Ethernet at 1000 and 100 Mbit/s. The PHY is shared with the management engine.
 * */
static void pch_energy_saving_off(volatile uint8_t *registers) {
    enum { PHY = 1, PAGE_SELECT = 31, PAGE = 772 << 5, LPI_CONTROL = 20, LPI_ENABLE = 3 << 13 };
    uint32_t owner = intel_read(registers, EXTENDED_OWNER) | EXTENDED_OWNER_SOFTWARE;
    intel_write(registers, EXTENDED_OWNER, owner);
    if (!nic_wait32(registers + EXTENDED_OWNER, EXTENDED_OWNER_SOFTWARE, EXTENDED_OWNER_SOFTWARE,
                    OWNER_LIMIT_US))
        return; /* the engine keeps the PHY: the link works, with its latencies */
    uint16_t control;
    if (intel_phy_write(registers, PHY, PAGE_SELECT, PAGE) &&
        intel_phy_read(registers, PHY, LPI_CONTROL, &control))
        (void)intel_phy_write(registers, PHY, LPI_CONTROL, control & (uint16_t)~LPI_ENABLE);
    (void)intel_phy_write(registers, PHY, PAGE_SELECT, 0);
    intel_write(registers, EXTENDED_OWNER,
                intel_read(registers, EXTENDED_OWNER) & ~(uint32_t)EXTENDED_OWNER_SOFTWARE);
}

/* ---- descriptors ----------------------------------------------------------------------------- */
static struct e1000e *of(struct intel_queues *queues) { return (struct e1000e *)queues; }

static void give(struct intel_queues *queues, uint32_t index) {
    volatile struct receive_descriptor *at = &of(queues)->receive[index];
    at->address = nic_dma(intel_receive_buffer(queues, index));
    at->status = 0;
    at->errors = 0;
}

static struct intel_received received(struct intel_queues *queues, uint32_t index) {
    volatile struct receive_descriptor *at = &of(queues)->receive[index];
    uint8_t status = at->status;
    if ((status & RECEIVED) == 0) return (struct intel_received){.is_done = false};
    ring_barrier(); /* the status before the rest */
    return (struct intel_received){true, (status & RECEIVED_END) != 0,
                                   (at->errors & RECEIVE_ERRORS) != 0, at->bytes};
}

static void put(struct intel_queues *queues, uint32_t index, size_t bytes) {
    volatile struct send_descriptor *at = &of(queues)->send[index];
    at->bytes = (uint16_t)bytes;
    at->checksum_offset = at->checksum_start = 0;
    at->status = 0;
    at->command = SEND_END | SEND_ADD_CRC | SEND_REPORT;
}

static bool sent(struct intel_queues *queues, uint32_t index) {
    return (of(queues)->send[index].status & SENT) != 0;
}

/* 4.6.5 */
static void start_receiver(struct e1000e *e1000e, bool jumbo) {
    volatile uint8_t *registers = e1000e->queues.registers;
    uint32_t count = e1000e->queues.memory.receive_count;
    intel_write(registers, CHECKSUM_CONTROL, 0);
    intel_write(registers, FILTER_CONTROL, 0); /* legacy descriptors */
    intel_write(registers, RECEIVE_DELAY, 0);
    intel_ring_place(
        registers,
        (struct intel_ring_registers){RECEIVE_BASE, RECEIVE_BYTES, RECEIVE_HEAD, RECEIVE_TAIL},
        e1000e->receive, count * (uint32_t)sizeof(struct receive_descriptor));
    uint32_t control = RCTL_ENABLE | RCTL_BROADCAST | RCTL_STRIP_CRC;
    if (jumbo) control |= RCTL_LONG_PACKETS | (NIC_BUFFER_BYTES >> 10) << RCTL_FLEXIBLE_SHIFT;
    intel_write(registers, INTEL_RCTL, control);
    ring_barrier();
    intel_write(registers, RECEIVE_TAIL, count - 1);
}

/* 4.6.6 */
static void start_sender(struct e1000e *e1000e) {
    volatile uint8_t *registers = e1000e->queues.registers;
    uint32_t count = e1000e->queues.memory.send_count;
    for (uint32_t index = 0; index < count; index++) {
        e1000e->send[index].status = SENT;
        e1000e->send[index].address = nic_dma(intel_send_buffer(&e1000e->queues, index));
    }
    intel_ring_place(registers,
                     (struct intel_ring_registers){SEND_BASE, SEND_BYTES, SEND_HEAD, SEND_TAIL},
                     e1000e->send, count * (uint32_t)sizeof(struct send_descriptor));
    intel_write(registers, SEND_CONTROL, SEND_CONTROL_VALUE);
    intel_write(registers, SEND_GAP, SEND_GAP_VALUE);
    ring_barrier();
    intel_write(registers, INTEL_TCTL,
                TCTL_ENABLE | TCTL_PAD_SHORT | TCTL_COLLISIONS | TCTL_DISTANCE);
}

static void e1000e_poll_link(struct nic *nic) {
    struct e1000e *e1000e = nic->state;
    intel_poll_link(nic, e1000e->queues.registers);
}

static enum nic_status e1000e_start(struct nic *nic) {
    struct e1000e *e1000e = nic->state;
    volatile uint8_t *registers = e1000e->queues.registers;
    enum nic_status status = reset(e1000e);
    if (status == NIC_OK) status = intel_read_mac(nic, registers);
    if (status != NIC_OK) return status;
    intel_set_filter(nic, registers);
    if (e1000e->is_pch) {
        intel_set_loaded(registers, true);
        pch_energy_saving_off(registers);
    } else {
        intel_write(registers, PACKET_BUFFER, PACKET_BUFFER_RECEIVE_KB);
    }
    pci_bus_master_on(nic->device);
    intel_queues_empty(&e1000e->queues);
    start_receiver(e1000e, nic->mtu_bytes_max > NIC_MTU_PLAIN);
    start_sender(e1000e);
    uint32_t control = intel_read(registers, INTEL_CTRL);
    control &= ~(uint32_t)(CTRL_FORCE_SPEED | CTRL_FORCE_DUPLEX | CTRL_MASTER_DISABLE);
    intel_write(registers, INTEL_CTRL, control | CTRL_SET_LINK_UP | CTRL_FULL_DUPLEX);
    nic->broken = false;
    e1000e_poll_link(nic);
    return NIC_OK;
}

static void e1000e_arm_wake(struct nic *nic) {
    intel_arm_wake(((struct intel_queues *)nic->state)->registers);
}

static void e1000e_stop(struct nic *nic) {
    struct e1000e *e1000e = nic->state;
    intel_write(e1000e->queues.registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    intel_quiesce(e1000e->queues.registers);
    if (e1000e->is_pch) intel_set_loaded(e1000e->queues.registers, false);
    pci_take_over(nic->device);
    nic->broken = true;
}

/* ---- probe ----------------------------------------------------------------------------------- */
static struct e1000e *take_memory(volatile uint8_t *registers) {
    struct e1000e *e1000e = memory_take(sizeof *e1000e, 64);
    struct intel_queues *queues = &e1000e->queues;
    queues->registers = registers;
    queues->receive_tail = RECEIVE_TAIL;
    queues->send_tail = SEND_TAIL;
    queues->give = give;
    queues->received = received;
    queues->put = put;
    queues->sent = sent;
    nic_take_buffers(&queues->memory);
    /* 10.2.5.7: bases are 16-byte aligned, lengths multiples of 128 bytes. */
    e1000e->receive = memory_take(queues->memory.receive_count * sizeof *e1000e->receive, 128);
    e1000e->send = memory_take(queues->memory.send_count * sizeof *e1000e->send, 128);
    return e1000e;
}

enum nic_status e1000e_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != INTEL_VENDOR) return NIC_OTHER_DEVICE;
    const struct nic_model *discrete = nic_find_model(discrete_models, device->device_id);
    const struct nic_model *pch = nic_find_model(pch_models, device->device_id);
    if (discrete == NULL && pch == NULL) return NIC_OTHER_DEVICE;
    pci_take_over(device);
    volatile uint8_t *registers = pci_map_bar(device, 0, INTEL_REGISTER_BYTES, NULL);
    if (registers == NULL) return NIC_NO_REGISTERS;
    struct e1000e *e1000e = take_memory(registers);
    e1000e->is_pch = pch != NULL;
    intel_queues_attach(nic, &e1000e->queues);
    nic_set_name(nic->driver, "e1000e");
    nic_set_name(nic->model, pch != NULL ? pch->name : discrete->name);
    /* The PCH parts need PHY settings for 9 KB frames that no public datasheet gives. */
    nic->mtu_bytes_max = pch != NULL ? NIC_MTU_PLAIN : NIC_MTU_JUMBO;
    nic->unproven = pch != NULL;
    nic->start = e1000e_start;
    nic->stop = e1000e_stop;
    nic->arm_wake = e1000e_arm_wake;
    nic->poll_link = e1000e_poll_link;
    pci_link_always_on(device);
    return NIC_OK;
}
