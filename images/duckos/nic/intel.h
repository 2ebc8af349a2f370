/* SPDX-License-Identifier: Apache-2.0
 *
 * What Intel's gigabit families have in common: registers, the MDIO window, the semaphore that is
 * shared with the management firmware, the reset sequence's first half. Sections are those of the
 * Intel Ethernet Controller I210 Datasheet (333016) unless another document is named.
 */
#ifndef DUCKOS_NIC_INTEL_H
#define DUCKOS_NIC_INTEL_H

#include "nic/mmio.h"
#include "nic/nic.h"

#define INTEL_VENDOR 0x8086u
#define INTEL_REGISTER_BYTES 0x20000u /* 128 KB of BAR 0 */

/* 8.1.3: the register map; offsets that all families share. */
enum intel_register {
    INTEL_CTRL = 0x0000,
    INTEL_STATUS = 0x0008,
    INTEL_NVM = 0x0010, /* EECD */
    INTEL_CTRL_EXTENDED = 0x0018,
    INTEL_MDIC = 0x0020,
    INTEL_RCTL = 0x0100,
    INTEL_TCTL = 0x0400,
    INTEL_CRC_ERRORS = 0x4000,
    INTEL_MISSED = 0x4010,    /* MPC: no room in the packet buffer; cleared when read */
    INTEL_NO_BUFFER = 0x40a0, /* RNBC: no descriptor; cleared when read */
    INTEL_MULTICAST_TABLE = 0x5200,
    INTEL_RECEIVE_ADDRESS_LOW = 0x5400,
    INTEL_RECEIVE_ADDRESS_HIGH = 0x5404,
};
#define INTEL_MULTICAST_WORDS 128u

enum { /* 8.2.1 */
       CTRL_FULL_DUPLEX = 1u << 0,
       CTRL_MASTER_DISABLE = 1u << 2,
       CTRL_SET_LINK_UP = 1u << 6,
       CTRL_FORCE_SPEED = 1u << 11,
       CTRL_FORCE_DUPLEX = 1u << 12,
       CTRL_WAKE_FROM_D3_COLD = 1u << 20, /* ADVD3WUC */
       /* The port. The "device reset" of I225 and I226, bit 29, leaves values as they were. */
       CTRL_RESET = 1u << 26,
};
#define CTRL_EXTENDED_DRIVER_LOADED (1u << 28) /* 8.2.3 */
enum {                                         /* 8.2.2 */
       STATUS_LINK_UP = 1u << 1,
       STATUS_SPEED_SHIFT = 6,          /* two bits: 10, 100, 1000, 1000 Mbit/s */
       STATUS_PHY_WAS_RESET = 1u << 10, /* PHYRA: stays set until zero is written */
       STATUS_MASTER_ENABLED = 1u << 19,
       STATUS_2500 = 1u << 22, /* I225/I226: with speed 1000 */
};
enum { /* 8.9.1 */
       RCTL_ENABLE = 1u << 1,
       RCTL_LONG_PACKETS = 1u << 5,
       RCTL_BROADCAST = 1u << 15,
       RCTL_STRIP_CRC = 1u << 26,
       RCTL_FLEXIBLE_SHIFT = 27, /* 82574 and PCH: buffer size in KB, 15 at most */
};
enum { /* 8.11.1 */
       TCTL_ENABLE = 1u << 1,
       TCTL_PAD_SHORT = 1u << 3,
       TCTL_COLLISIONS = 0x0fu << 4,
       TCTL_DISTANCE = 0x3fu << 12, /* of a full duplex link */
};
#define RECEIVE_ADDRESS_VALID 0x80000000u

static inline uint32_t intel_read(const volatile uint8_t *registers, uint32_t at) {
    return mmio_read32(registers + at);
}
static inline void intel_write(volatile uint8_t *registers, uint32_t at, uint32_t value) {
    mmio_write32(registers + at, value);
}

/* Ask the device to finish its bus transactions (5.2.3.2), so that a reset can't cut one; then the
 * receiver and the sender are off. Goes on after the limit, as the datasheet says. */
void intel_quiesce(volatile uint8_t *registers);

/* After a reset the NVM's settings are read (8.4.1: bit 9, Auto_RD). A device whose NVM never says
 * so is used all the same: its MAC address then tells whether it is usable. */
void intel_wait_for_nvm(const volatile uint8_t *registers);

/* Station address from RAL0/RAH0, where the NVM put it at reset. */
enum nic_status intel_read_mac(struct nic *nic, const volatile uint8_t *registers) NIC_MUST_CHECK;

/* Tell the management firmware that a driver runs the port, or no longer does. */
void intel_set_loaded(volatile uint8_t *registers, bool loaded);

/* Our address and broadcasts pass, nothing else: no multicast, no promiscuous mode. */
void intel_set_filter(struct nic *nic, volatile uint8_t *registers);

/* Clause 22 MDIO through MDIC (8.2.4). False: no answer in time or an error. */
bool intel_phy_read(volatile uint8_t *registers, uint8_t phy, uint8_t at, uint16_t *value);
bool intel_phy_write(volatile uint8_t *registers, uint8_t phy, uint8_t at, uint16_t value);
/* Clause 45 registers through clause 22 registers 13 and 14 (IEEE 802.3, 22.2.4.3.11). */
bool intel_mmd_read(volatile uint8_t *registers, uint8_t phy, uint8_t mmd, uint16_t at,
                    uint16_t *value);
bool intel_mmd_write(volatile uint8_t *registers, uint8_t phy, uint8_t mmd, uint16_t at,
                     uint16_t value);

/* The PHY is shared with the firmware (4.6.12): own it for the time of MDIO accesses. */
bool intel_phy_lock(volatile uint8_t *registers) NIC_MUST_CHECK;
void intel_phy_unlock(volatile uint8_t *registers);

/* Offer what the PHY can do to the partner. With `again`, or after a reset of the PHY, or when it
 * is powered down or negotiates nothing, the negotiation starts anew; else the firmware's link is
 * kept, because a new one costs seconds. The lock must be held. */
void intel_phy_negotiate(volatile uint8_t *registers, uint8_t phy, bool again);

/* A magic packet raises PME (8.18: WUC, WUFC, WUS). The PHY keeps its link meanwhile. */
void intel_arm_wake(volatile uint8_t *registers);

void intel_poll_link(struct nic *nic, const volatile uint8_t *registers);

/* ---- I210, I211, I225, I226: nic/intel_rings.c ----------------------------------------------- */

/* The device has been recognised: takes it over, and fills in all of nic but start and unproven. */
enum nic_status intel_rings_probe(struct nic *nic, const struct pci_device *device,
                                  const char *driver, const struct nic_model *model) NIC_MUST_CHECK;
/* A reset, then MAC address and filter. */
enum nic_status intel_rings_reset(struct nic *nic) NIC_MUST_CHECK;
/* Whether energy efficient Ethernet is agreed on with the partner. A reset forgets it. */
bool intel_rings_energy_saving_agreed(struct nic *nic);
/* Off in the MAC, and these speeds (bits of IPCNFG) not offered any more (3.7.7.3). */
void intel_rings_energy_saving_off(struct nic *nic, uint32_t advertised);
/* Link up, bus mastering and both queues on. */
enum nic_status intel_rings_start(struct nic *nic) NIC_MUST_CHECK;
volatile uint8_t *intel_rings_registers(struct nic *nic);

#endif
