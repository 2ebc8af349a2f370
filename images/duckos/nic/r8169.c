/* SPDX-License-Identifier: Apache-2.0
 *
 * Realtek RTL8111/8168 and RTL8125. Sections are those of the "RTL8168B/8111B Registers Datasheet
 * (rev 1.0)"; for the later chips, which have no public one, the register facts that several open
 * drivers agree on. Not yet seen on silicon.
 *
 * Who owns what (datasheet, descriptors): each descriptor has an OWN bit; set, it is the device's,
 * and only the device clears it. The driver sets it last. There are no heads and tails: both sides
 * go round the ring, whose last descriptor has EOR set. The doorbell (TPPoll) only says "look".
 */
#include "memory/memory.h"
#include "nic/mmio.h"
#include "nic/nic.h"

#include <assert.h>

#define VENDOR_REALTEK 0x10ecu
#define REGISTER_BYTES 256u
#define REGISTER_BAR 2u /* on PCI Express; BAR 0 has the same as ports */

enum {
    MAC_ADDRESS = 0x00, /* IDR0..5 */
    MULTICAST = 0x08,
    SEND_BASE = 0x20, /* TNPDS, 64 bit */
    COMMAND = 0x37,
    DOORBELL = 0x38,
    INTERRUPT_MASK = 0x3c,
    INTERRUPT_STATUS = 0x3e,
    SEND_CONFIGURATION = 0x40,
    RECEIVE_CONFIGURATION = 0x44,
    MISSED = 0x4c, /* missed packet counter of the older chips */
    LOCK = 0x50,   /* 9346CR: 0xc0 lets the configuration registers be written */
    PHY_ACCESS = 0x60,
    PHY_STATUS = 0x6c,
    OCP_MAC = 0xb0,     /* MACOCP of the later chips */
    OCP_PHY = 0xb8,     /* GPHY_OCP of the later chips */
    MCU = 0xd3,         /* later chips: who runs the MAC */
    FRAME_BYTES = 0xda, /* RMS */
    COMMAND_PLUS = 0xe0,
    RECEIVE_BASE = 0xe4, /* 64 bit */
    SEND_EARLY = 0xec,   /* sending begins when so many 128-byte parts are in the FIFO */
    MISCELLANEOUS = 0xf0,
    /* RTL8125 */
    INTERRUPT_MASK_8125 = 0x38,
    INTERRUPT_STATUS_8125 = 0x3c,
    DOORBELL_8125 = 0x90,
};
enum { COMMAND_RESET = 1u << 4, COMMAND_RECEIVE = 1u << 3, COMMAND_SEND = 1u << 2 };
enum { DOORBELL_NORMAL = 1u << 6, DOORBELL_QUEUE_0_8125 = 1u << 0 };
/* Unlimited DMA bursts (bits 10:8), standard gap between frames (25:24). */
#define SEND_CONFIGURATION_VALUE (7u << 8 | 3u << 24)
#define SEND_AUTO_FIFO (1u << 7) /* G and later */
/* Accept our address (1) and broadcasts (3); unlimited bursts (10:8). */
#define RECEIVE_CONFIGURATION_VALUE (1u << 1 | 1u << 3 | 7u << 8)
#define RECEIVE_OLD (7u << 13)            /* no FIFO threshold */
#define RECEIVE_NEW (3u << 14 | 1u << 11) /* several descriptors at once, no early reception */
#define RECEIVE_8125 (8u << 27)           /* descriptors fetched ahead */
enum { LOCK_OPEN = 0xc0, LOCK_SHUT = 0x00 };
enum { MCU_LIST_READY = 1u << 1, MCU_QUEUES_EMPTY = 3u << 4, MCU_OUT_OF_BAND = 1u << 7 };
#define RECEIVE_GATED (1u << 19) /* MISCELLANEOUS: received frames are held back */
enum { LINK_UP = 1u << 1, LINK_10 = 1u << 2, LINK_100 = 1u << 3, LINK_1000 = 1u << 4 };
#define LINK_2500 (1u << 10)
#define SEND_EARLY_OLD 0x3fu
#define SEND_EARLY_NEW 0x27u
#define MCU_LIMIT_US 42000u
#define PHY_LIMIT_US 2000u
#define PHY_POWER_UP_US 20000u
#define ROUNDS_PER_DOORBELL 64u

struct descriptor { /* the same for both directions */
    uint32_t command, tag;
    uint64_t buffer;
};
static_assert(sizeof(struct descriptor) == 16, "descriptor");
#define OWN (1u << 31) /* the device's */
#define END_OF_RING (1u << 30)
#define FIRST_AND_LAST (1u << 29 | 1u << 28)
#define RECEIVE_ERROR (1u << 21)    /* RES: one of watchdog, runt and CRC error */
#define RECEIVE_WATCHDOG (1u << 22) /* also on good frames of more than 8191 bytes */
#define RECEIVE_RUNT (1u << 20)
#define RECEIVE_CRC (1u << 19)
#define WATCHDOG_FRAME_BYTES 8191u
#define LENGTH 0x3fffu
#define CRC_BYTES 4u /* the device leaves the frame check sequence in the buffer */

/* Generations, by what differs for a driver that asks for little. */
enum generation {
    OLD_8168, /* B to F: 9 KB frames need settings per revision that are not public */
    NEW_8168, /* G and later: gated reception, PHY through OCP */
    RTL_8125,
};

struct r8169 {
    volatile uint8_t *registers;
    volatile struct descriptor *receive, *send;
    struct nic_memory memory;
    enum generation generation;
    uint32_t receive_next; /* the descriptor of the oldest frame */
    uint32_t send_next;    /* the next one that we fill */
    uint32_t send_oldest;  /* the oldest that may still be the device's */
    uint32_t send_used;
    uint32_t rounds_waited; /* since the last doorbell, with frames in the ring */
};

static const struct nic_model models[] = {
    {0x8168, "RTL8168"}, {0x8161, "RTL8168"}, {0x8125, "RTL8125"}, {0x3000, "E3000"}, {0, ""}};

static uint32_t end_bit(uint32_t index, uint32_t count) {
    return index == count - 1 ? END_OF_RING : 0;
}

static bool wait8(volatile uint8_t *at, uint8_t mask, uint8_t expected, uint32_t limit_us) {
    for (uint32_t waited = 0; (mmio_read8(at) & mask) != expected; waited += 10) {
        if (waited >= limit_us) return false;
        nic_pause_us(10);
    }
    return true;
}

/* ---- PHY ------------------------------------------------------------------------------------- */
/* By number through PHYAR (bits 20:16), on the later chips by address through GPHY_OCP (halved, in
 * bits 30:16). Bit 31: set by us for a write, and by the device after a read. */
static volatile uint8_t *phy_window(struct r8169 *r8169) {
    return r8169->registers + (r8169->generation == OLD_8168 ? PHY_ACCESS : OCP_PHY);
}

static bool phy_access(struct r8169 *r8169, uint32_t at, uint32_t command) {
    bool is_old = r8169->generation == OLD_8168;
    mmio_write32(phy_window(r8169), command | at << (is_old ? 16 : 15));
    bool done = nic_wait32(phy_window(r8169), OWN, ~command & OWN, PHY_LIMIT_US);
    if (is_old) nic_pause_us(20); /* the datasheet asks for a pause between two accesses */
    return done;
}

static bool phy_write(struct r8169 *r8169, uint32_t at, uint16_t value) {
    return phy_access(r8169, at, OWN | value);
}

static bool phy_read(struct r8169 *r8169, uint32_t at, uint16_t *value) {
    if (!phy_access(r8169, at, 0)) return false;
    *value = (uint16_t)mmio_read32(phy_window(r8169));
    return true;
}

/* IEEE 802.3, 45.2.7.13: energy efficient Ethernet. True: it was offered and no longer is. */
static bool offer_no_energy_saving_old(struct r8169 *r8169) {
    enum { CONTROL = 13, DATA = 14, MMD = 7, OFFER = 60, FUNCTION_DATA = 0x4000 };
    uint16_t offered;
    if (!phy_write(r8169, CONTROL, MMD) || !phy_write(r8169, DATA, OFFER) ||
        !phy_write(r8169, CONTROL, FUNCTION_DATA | MMD) || !phy_read(r8169, DATA, &offered))
        return false;
    if (offered == 0 || offered == 0xffffu) return false;
    return phy_write(r8169, DATA, 0);
}

static bool offer_no_energy_saving_new(struct r8169 *r8169) {
    enum { OFFER_OCP = 0xa5d0, OFFER_2500_OCP = 0xa6d4 };
    uint16_t offered, offered_2500 = 0;
    if (!phy_read(r8169, OFFER_OCP, &offered)) return false;
    if (r8169->generation == RTL_8125 && !phy_read(r8169, OFFER_2500_OCP, &offered_2500))
        return false;
    if ((offered & 6u) == 0 && (offered_2500 & 1u) == 0) return false; /* 1000, 100; 2500 */
    bool done = phy_write(r8169, OFFER_OCP, offered & (uint16_t)~6u);
    if (r8169->generation == RTL_8125)
        done = phy_write(r8169, OFFER_2500_OCP, offered_2500 & (uint16_t)~1u) && done;
    return done;
}

/* Powered up (a driver before us may have left it down), and negotiating; anew only where something
 * changed, because that costs seconds. The control register: IEEE 802.3, 22.2.4.1. */
static void set_up_phy(struct r8169 *r8169) {
    enum { NEGOTIATE_AGAIN = 1 << 9, POWER_DOWN = 1 << 11, NEGOTIATE = 1 << 12 };
    bool is_old = r8169->generation == OLD_8168;
    uint32_t at = is_old ? 0 : 0xa400;
    uint16_t control;
    if (!phy_read(r8169, at, &control)) return;
    if ((control & POWER_DOWN) != 0) {
        (void)phy_write(r8169, at, NEGOTIATE);
        nic_pause_us(PHY_POWER_UP_US);
    }
    bool again = is_old ? offer_no_energy_saving_old(r8169) : offer_no_energy_saving_new(r8169);
    if (again || (control & (POWER_DOWN | NEGOTIATE)) != NEGOTIATE)
        (void)phy_write(r8169, at, NEGOTIATE | NEGOTIATE_AGAIN);
}

/* ---- starting -------------------------------------------------------------------------------- */
static void interrupts_off(struct r8169 *r8169) {
    volatile uint8_t *registers = r8169->registers;
    if (r8169->generation == RTL_8125) {
        mmio_write32(registers + INTERRUPT_MASK_8125, 0);
        mmio_write32(registers + INTERRUPT_STATUS_8125, UINT32_MAX);
    } else {
        mmio_write16(registers + INTERRUPT_MASK, 0);
        mmio_write16(registers + INTERRUPT_STATUS, UINT16_MAX);
    }
}

/* MACOCP: as GPHY_OCP, but without waiting. */
static void mac_change(struct r8169 *r8169, uint32_t at, uint16_t clear, uint16_t set) {
    mmio_write32(r8169->registers + OCP_MAC, at << 15);
    uint16_t value = (uint16_t)mmio_read32(r8169->registers + OCP_MAC);
    mmio_write32(r8169->registers + OCP_MAC, OWN | at << 15 | (uint32_t)((value & ~clear) | set));
}

/* On the later chips the management firmware runs the MAC while no driver does ("out of band"). It
 * is told to let go of its descriptor list, then to take the driver's. */
static void take_from_firmware(struct r8169 *r8169) {
    enum { LIST_CONTROL = 0xe8de, LIST_OF_FIRMWARE = 1 << 14, LIST_RELOAD = 1 << 15 };
    volatile uint8_t *registers = r8169->registers;
    uint8_t mcu = mmio_read8(registers + MCU);
    mmio_write8(registers + MCU, mcu & (uint8_t)~MCU_OUT_OF_BAND);
    if ((mcu & MCU_OUT_OF_BAND) == 0) return;
    mac_change(r8169, LIST_CONTROL, LIST_OF_FIRMWARE, 0);
    (void)wait8(registers + MCU, MCU_LIST_READY, MCU_LIST_READY, MCU_LIMIT_US);
    mac_change(r8169, LIST_CONTROL, 0, LIST_RELOAD);
    (void)wait8(registers + MCU, MCU_LIST_READY, MCU_LIST_READY, MCU_LIMIT_US);
}

/* Of the later chips. Not where the device fell off the bus: nothing is known of the other bits. */
static void gate_reception(struct r8169 *r8169, bool shut) {
    volatile uint8_t *at = r8169->registers + MISCELLANEOUS;
    uint32_t value = mmio_read32(at);
    if (r8169->generation == OLD_8168 || value == UINT32_MAX) return;
    mmio_write32(at, shut ? value | RECEIVE_GATED : value & ~RECEIVE_GATED);
}

/* Deaf first, then the queues run empty, then CR.RST. */
static enum nic_status reset(struct r8169 *r8169) {
    volatile uint8_t *registers = r8169->registers;
    interrupts_off(r8169);
    mmio_write32(registers + RECEIVE_CONFIGURATION,
                 mmio_read32(registers + RECEIVE_CONFIGURATION) & ~0x3fu);
    if (r8169->generation != OLD_8168) {
        gate_reception(r8169, true);
        nic_pause_us(2000);
        (void)wait8(registers + MCU, MCU_QUEUES_EMPTY, MCU_QUEUES_EMPTY, MCU_LIMIT_US);
    }
    mmio_write8(registers + COMMAND, COMMAND_RESET);
    if (!wait8(registers + COMMAND, COMMAND_RESET, 0, NIC_RESET_LIMIT_US)) return NIC_NO_ANSWER;
    if (r8169->generation != OLD_8168) take_from_firmware(r8169);
    interrupts_off(r8169);
    return NIC_OK;
}

static uint8_t *receive_buffer(struct r8169 *r8169, uint32_t index) {
    return r8169->memory.receive_buffers + (size_t)index * NIC_BUFFER_BYTES;
}

static void give_to_device(struct r8169 *r8169, uint32_t index) {
    volatile struct descriptor *at = &r8169->receive[index];
    at->tag = 0;
    at->buffer = nic_dma(receive_buffer(r8169, index));
    ring_barrier(); /* OWN last */
    at->command = OWN | end_bit(index, r8169->memory.receive_count) | NIC_BUFFER_BYTES;
}

static void start_rings(struct r8169 *r8169) {
    for (uint32_t index = 0; index < r8169->memory.receive_count; index++)
        give_to_device(r8169, index);
    for (uint32_t index = 0; index < r8169->memory.send_count; index++) {
        r8169->send[index].command = end_bit(index, r8169->memory.send_count);
        r8169->send[index].buffer =
            nic_dma(r8169->memory.send_buffers + (size_t)index * NIC_BUFFER_BYTES);
    }
    r8169->receive_next = r8169->send_next = r8169->send_oldest = r8169->send_used = 0;
    r8169->rounds_waited = 0;
}

/* High half first: the low half's write is what some revisions act on. */
static void write_base(volatile uint8_t *at, const volatile void *ring) {
    mmio_write32(at + 4, (uint32_t)(nic_dma(ring) >> 32));
    mmio_write32(at, (uint32_t)nic_dma(ring));
}

static void configure(struct r8169 *r8169) {
    /* Tag stripping (6), checksums (5) and interrupt mitigation (1:0) off; the rest stays. */
    enum { PLUS_OFF = 1 << 6 | 1 << 5 | 3, SEND_FORMAT = 0xeb58, NEW_SEND_FORMAT = 1 };
    volatile uint8_t *registers = r8169->registers;
    uint16_t plus = mmio_read16(registers + COMMAND_PLUS);
    mmio_write16(registers + COMMAND_PLUS, plus & (uint16_t)~PLUS_OFF);
    mmio_write16(registers + FRAME_BYTES, NIC_BUFFER_BYTES);
    if (r8169->generation == RTL_8125)
        mac_change(r8169, SEND_FORMAT, NEW_SEND_FORMAT, 0);
    else
        mmio_write8(registers + SEND_EARLY,
                    r8169->generation == OLD_8168 ? SEND_EARLY_OLD : SEND_EARLY_NEW);
}

static void start_engines(struct r8169 *r8169) {
    volatile uint8_t *registers = r8169->registers;
    bool is_old = r8169->generation == OLD_8168;
    mmio_write8(registers + LOCK, LOCK_OPEN);
    configure(r8169);
    write_base(registers + SEND_BASE, r8169->send);
    write_base(registers + RECEIVE_BASE, r8169->receive);
    gate_reception(r8169, false);
    mmio_write8(registers + COMMAND, COMMAND_RECEIVE | COMMAND_SEND);
    mmio_write32(registers + SEND_CONFIGURATION,
                 SEND_CONFIGURATION_VALUE | (is_old ? 0 : SEND_AUTO_FIFO));
    mmio_write32(registers + MULTICAST, 0);
    mmio_write32(registers + MULTICAST + 4, 0);
    uint32_t reception = r8169->generation == RTL_8125 ? RECEIVE_8125
                         : is_old                      ? RECEIVE_OLD
                                                       : RECEIVE_NEW;
    mmio_write32(registers + RECEIVE_CONFIGURATION, RECEIVE_CONFIGURATION_VALUE | reception);
    mmio_write8(registers + LOCK, LOCK_SHUT);
}

static enum nic_status read_mac(struct nic *nic, struct r8169 *r8169) {
    uint8_t all = 0xff;
    for (unsigned at = 0; at < 6; at++) {
        nic->mac[at] = mmio_read8(r8169->registers + MAC_ADDRESS + at);
        all &= nic->mac[at];
    }
    if (all == 0xff) return NIC_NO_ANSWER;
    return nic_mac_is_valid(nic->mac) ? NIC_OK : NIC_NO_ADDRESS;
}

static void r8169_poll_link(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    bool is_8125 = r8169->generation == RTL_8125;
    uint32_t status = is_8125 ? mmio_read16(r8169->registers + PHY_STATUS)
                              : mmio_read8(r8169->registers + PHY_STATUS);
    if (mmio_read8(r8169->registers + COMMAND) == 0xff) { /* fell off the bus */
        nic->broken = true;
        nic_set_link(nic, false, 0);
        return;
    }
    uint32_t mbps = (status & LINK_2500) != 0   ? 2500
                    : (status & LINK_1000) != 0 ? 1000
                    : (status & LINK_100) != 0  ? 100
                                                : 10;
    nic_set_link(nic, (status & LINK_UP) != 0, mbps);
    if (!is_8125) { /* writing clears it */
        nic->count.missed += mmio_read32(r8169->registers + MISSED) & 0xffffffu;
        mmio_write32(r8169->registers + MISSED, 0);
    }
}

static enum nic_status r8169_start(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    enum nic_status status = reset(r8169);
    if (status == NIC_OK) status = read_mac(nic, r8169);
    if (status != NIC_OK) return status;
    set_up_phy(r8169);
    start_rings(r8169);
    pci_bus_master_on(nic->device);
    start_engines(r8169);
    nic->broken = false;
    r8169_poll_link(nic);
    return NIC_OK;
}

static void r8169_stop(struct nic *nic) {
    (void)reset(nic->state);
    pci_take_over(nic->device);
    gate_reception(nic->state, false); /* a restart does not open it, nor do boot ROMs' drivers */
    nic->broken = true;
}

/* ---- reception ------------------------------------------------------------------------------- */
static void r8169_release(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    give_to_device(r8169, r8169->receive_next);
    r8169->receive_next = nic_next(r8169->receive_next, r8169->memory.receive_count);
}

static bool is_damaged(uint32_t command, uint32_t bytes) {
    if ((command & RECEIVE_ERROR) == 0) return false;
    uint32_t what = command & (RECEIVE_WATCHDOG | RECEIVE_RUNT | RECEIVE_CRC);
    return what != RECEIVE_WATCHDOG || bytes <= WATCHDOG_FRAME_BYTES;
}

static bool is_good(struct nic *nic, uint32_t command, uint32_t bytes) {
    if ((command & FIRST_AND_LAST) != FIRST_AND_LAST)
        nic->count.oversized++;
    else if ((command & RECEIVE_RUNT) != 0 || bytes < NIC_HEADER_BYTES + CRC_BYTES)
        nic->count.runts++;
    else if (is_damaged(command, bytes))
        nic->count.descriptor_errors++;
    else if (bytes > NIC_BUFFER_BYTES)
        nic->count.bad_descriptors++;
    else
        return true;
    return false;
}

static bool r8169_receive(struct nic *nic, struct nic_frame *frame) {
    struct r8169 *r8169 = nic->state;
    for (uint32_t seen = 0; seen < r8169->memory.receive_count; seen++) {
        uint32_t command = r8169->receive[r8169->receive_next].command;
        if ((command & OWN) != 0) return false;
        ring_barrier(); /* OWN before the buffer */
        uint32_t bytes = command & LENGTH;
        if (is_good(nic, command, bytes)) {
            frame->bytes = receive_buffer(r8169, r8169->receive_next);
            frame->size = bytes - CRC_BYTES;
            return true;
        }
        r8169_release(nic);
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void reclaim(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    while (r8169->send_used != 0 && (r8169->send[r8169->send_oldest].command & OWN) == 0) {
        r8169->send_oldest = nic_next(r8169->send_oldest, r8169->memory.send_count);
        r8169->send_used--;
        nic->count.completed++;
    }
}

static uint8_t *r8169_send_buffer(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    reclaim(nic);
    if (r8169->send_used == r8169->memory.send_count) {
        nic->count.ring_full++;
        return NULL;
    }
    return r8169->memory.send_buffers + (size_t)r8169->send_next * NIC_BUFFER_BYTES;
}

static void ring_doorbell(struct r8169 *r8169) {
    r8169->rounds_waited = 0;
    if (r8169->generation == RTL_8125)
        mmio_write16(r8169->registers + DOORBELL_8125, DOORBELL_QUEUE_0_8125);
    else
        mmio_write8(r8169->registers + DOORBELL, DOORBELL_NORMAL);
}

static void r8169_send(struct nic *nic, size_t bytes) {
    struct r8169 *r8169 = nic->state;
    volatile struct descriptor *at = &r8169->send[r8169->send_next];
    at->tag = 0;
    ring_barrier(); /* OWN last */
    at->command = OWN | end_bit(r8169->send_next, r8169->memory.send_count) | FIRST_AND_LAST |
                  (uint32_t)bytes;
    r8169->send_next = nic_next(r8169->send_next, r8169->memory.send_count);
    r8169->send_used++;
    ring_barrier();
    ring_doorbell(r8169);
}

static bool r8169_sending(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    reclaim(nic);
    return r8169->send_used != 0;
}

/* Received frames went back with their OWN bit. What is done here: a doorbell that rang while the
 * device was finishing a round can be lost, so it rings again while frames wait. */
static void r8169_refill(struct nic *nic) {
    struct r8169 *r8169 = nic->state;
    if (r8169->send_used == 0 || ++r8169->rounds_waited < ROUNDS_PER_DOORBELL) return;
    r8169->rounds_waited = 0;
    reclaim(nic);
    if (r8169->send_used != 0) ring_doorbell(r8169);
}

/* ---- probe ----------------------------------------------------------------------------------- */
/* The revision stands in the send configuration, bits 30:23; G and later have 0x4c or more. */
static enum generation generation_of(const struct pci_device *device, volatile uint8_t *registers) {
    if (device->device_id == 0x8125 || device->device_id == 0x3000) return RTL_8125;
    uint32_t revision = mmio_read32(registers + SEND_CONFIGURATION) >> 20 & 0x7cfu;
    return revision >= 0x4c0u ? NEW_8168 : OLD_8168;
}

enum nic_status r8169_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != VENDOR_REALTEK) return NIC_OTHER_DEVICE;
    const struct nic_model *model = nic_find_model(models, device->device_id);
    if (model == NULL) return NIC_OTHER_DEVICE;
    pci_link_always_on(device);
    pci_take_over(device);
    volatile uint8_t *registers = pci_map_bar(device, REGISTER_BAR, REGISTER_BYTES, NULL);
    if (registers == NULL) return NIC_NO_REGISTERS;
    struct r8169 *r8169 = memory_take(sizeof *r8169, 64);
    r8169->registers = registers;
    r8169->generation = generation_of(device, registers);
    nic_take_buffers(&r8169->memory);
    /* Ring bases are 256-byte aligned, buffers 8-byte aligned. */
    r8169->receive = memory_take(r8169->memory.receive_count * sizeof *r8169->receive, 256);
    r8169->send = memory_take(r8169->memory.send_count * sizeof *r8169->send, 256);
    nic->state = r8169;
    nic_set_name(nic->driver, "r8169");
    nic_set_name(nic->model, model->name);
    nic->unproven = true;
    nic->mtu_bytes_max = r8169->generation == OLD_8168 ? NIC_MTU_PLAIN : NIC_MTU_JUMBO;
    nic->start = r8169_start;
    nic->stop = r8169_stop;
    nic->poll_link = r8169_poll_link;
    nic->receive = r8169_receive;
    nic->release = r8169_release;
    nic->refill = r8169_refill;
    nic->send_buffer = r8169_send_buffer;
    nic->send = r8169_send;
    nic->sending = r8169_sending;
    return NIC_OK;
}
