/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/intel.h"

#define MASTER_DISABLE_LIMIT_US 10000u
#define NVM_LIMIT_US 20000u
/* One access takes 64 bits at 2.5 MHz, but PHYs that are busy or just waking answer much later. */
#define MDIC_LIMIT_US 100000u
#define SEMAPHORE_LIMIT_US 50000u

enum { /* 8.2.4 */
       MDIC_REGISTER_SHIFT = 16,
       MDIC_PHY_SHIFT = 21,
       MDIC_WRITE = 1u << 26,
       MDIC_READ = 2u << 26,
       MDIC_READY = 1u << 28,
       MDIC_ERROR = 1u << 30,
};
enum { /* 8.7.1, 8.7.3 */
       SEMAPHORE = 0x5b50,
       SEMAPHORE_SOFTWARE = 1u << 0, /* SMBI: set by reading zero */
       SEMAPHORE_FIRMWARE = 1u << 1, /* SWESMBI: ours when it stays set */
       SYNCHRONISATION = 0x5b5c,
       SYNCHRONISATION_PHY = 1u << 1,           /* the software's bit for PHY 0 */
       SYNCHRONISATION_PHY_FIRMWARE = 1u << 17, /* the firmware's */
};
enum { MMD_CONTROL = 13, MMD_DATA = 14, MMD_FUNCTION_DATA = 0x4000 };

void intel_quiesce(volatile uint8_t *registers) {
    intel_write(registers, INTEL_RCTL, 0);
    intel_write(registers, INTEL_TCTL, TCTL_PAD_SHORT);
    uint32_t control = intel_read(registers, INTEL_CTRL);
    control &= ~(uint32_t)CTRL_RESET; /* of an earlier try that hangs */
    intel_write(registers, INTEL_CTRL, control | CTRL_MASTER_DISABLE);
    (void)nic_wait32(registers + INTEL_STATUS, STATUS_MASTER_ENABLED, 0, MASTER_DISABLE_LIMIT_US);
}

void intel_wait_for_nvm(const volatile uint8_t *registers) {
    const uint32_t done = 1u << 9;
    (void)nic_wait32(registers + INTEL_NVM, done, done, NVM_LIMIT_US);
}

enum nic_status intel_read_mac(struct nic *nic, const volatile uint8_t *registers) {
    uint32_t low = intel_read(registers, INTEL_RECEIVE_ADDRESS_LOW);
    uint32_t high = intel_read(registers, INTEL_RECEIVE_ADDRESS_HIGH);
    if (low == UINT32_MAX && high == UINT32_MAX) return NIC_NO_ANSWER;
    for (unsigned at = 0; at < 4; at++) nic->mac[at] = (uint8_t)(low >> (8 * at));
    nic->mac[4] = (uint8_t)high;
    nic->mac[5] = (uint8_t)(high >> 8);
    return nic_mac_is_valid(nic->mac) ? NIC_OK : NIC_NO_ADDRESS;
}

void intel_set_loaded(volatile uint8_t *registers, bool loaded) {
    uint32_t control = intel_read(registers, INTEL_CTRL_EXTENDED) & ~CTRL_EXTENDED_DRIVER_LOADED;
    intel_write(registers, INTEL_CTRL_EXTENDED,
                control | (loaded ? CTRL_EXTENDED_DRIVER_LOADED : 0));
}

void intel_set_filter(struct nic *nic, volatile uint8_t *registers) {
    const uint8_t *mac = nic->mac;
    uint32_t low = mac[0] | (uint32_t)mac[1] << 8 | (uint32_t)mac[2] << 16 | (uint32_t)mac[3] << 24;
    uint32_t high = mac[4] | (uint32_t)mac[5] << 8 | RECEIVE_ADDRESS_VALID;
    intel_write(registers, INTEL_RECEIVE_ADDRESS_LOW, low);
    intel_write(registers, INTEL_RECEIVE_ADDRESS_HIGH, high);
    for (uint32_t word = 0; word < INTEL_MULTICAST_WORDS; word++)
        intel_write(registers, INTEL_MULTICAST_TABLE + 4 * word, 0);
}

static bool mdic(volatile uint8_t *registers, uint32_t command, uint16_t *value) {
    intel_write(registers, INTEL_MDIC, command);
    if (!nic_wait32(registers + INTEL_MDIC, MDIC_READY, MDIC_READY, MDIC_LIMIT_US)) return false;
    uint32_t answer = intel_read(registers, INTEL_MDIC);
    *value = (uint16_t)answer;
    return (answer & MDIC_ERROR) == 0;
}

bool intel_phy_read(volatile uint8_t *registers, uint8_t phy, uint8_t at, uint16_t *value) {
    return mdic(registers,
                MDIC_READ | (uint32_t)phy << MDIC_PHY_SHIFT | (uint32_t)at << MDIC_REGISTER_SHIFT,
                value);
}

bool intel_phy_write(volatile uint8_t *registers, uint8_t phy, uint8_t at, uint16_t value) {
    uint16_t ignored;
    return mdic(registers,
                MDIC_WRITE | (uint32_t)phy << MDIC_PHY_SHIFT | (uint32_t)at << MDIC_REGISTER_SHIFT |
                    value,
                &ignored);
}

static bool mmd_address(volatile uint8_t *registers, uint8_t phy, uint8_t mmd, uint16_t at) {
    return intel_phy_write(registers, phy, MMD_CONTROL, mmd) &&
           intel_phy_write(registers, phy, MMD_DATA, at) &&
           intel_phy_write(registers, phy, MMD_CONTROL, (uint16_t)(MMD_FUNCTION_DATA | mmd));
}

bool intel_mmd_read(volatile uint8_t *registers, uint8_t phy, uint8_t mmd, uint16_t at,
                    uint16_t *value) {
    return mmd_address(registers, phy, mmd, at) && intel_phy_read(registers, phy, MMD_DATA, value);
}

bool intel_mmd_write(volatile uint8_t *registers, uint8_t phy, uint8_t mmd, uint16_t at,
                     uint16_t value) {
    return mmd_address(registers, phy, mmd, at) && intel_phy_write(registers, phy, MMD_DATA, value);
}

/* 4.6.12.1: first SMBI among software, then SWESMBI between software and firmware; under both, the
 * bits of SW_FW_SYNC are changed. */
static bool semaphore_take(volatile uint8_t *registers) {
    if (!nic_wait32(registers + SEMAPHORE, SEMAPHORE_SOFTWARE, 0, SEMAPHORE_LIMIT_US)) {
        /* Whoever held it is gone (the firmware's boot driver): the datasheet allows clearing. */
        intel_write(registers, SEMAPHORE, 0);
        (void)intel_read(registers, SEMAPHORE);
    }
    for (unsigned wait = 0; wait < SEMAPHORE_LIMIT_US / 50; wait++) {
        uint32_t now = intel_read(registers, SEMAPHORE);
        intel_write(registers, SEMAPHORE, now | SEMAPHORE_FIRMWARE);
        if ((intel_read(registers, SEMAPHORE) & SEMAPHORE_FIRMWARE) != 0) return true;
        nic_pause_us(50);
    }
    return false;
}

static void semaphore_give(volatile uint8_t *registers) {
    uint32_t now = intel_read(registers, SEMAPHORE);
    intel_write(registers, SEMAPHORE, now & ~(uint32_t)(SEMAPHORE_SOFTWARE | SEMAPHORE_FIRMWARE));
}

bool intel_phy_lock(volatile uint8_t *registers) {
    for (unsigned wait = 0; wait < SEMAPHORE_LIMIT_US / 1000; wait++) {
        if (!semaphore_take(registers)) return false;
        uint32_t owners = intel_read(registers, SYNCHRONISATION);
        bool free_now = (owners & (SYNCHRONISATION_PHY | SYNCHRONISATION_PHY_FIRMWARE)) == 0;
        if (free_now) intel_write(registers, SYNCHRONISATION, owners | SYNCHRONISATION_PHY);
        semaphore_give(registers);
        if (free_now) return true;
        nic_pause_us(1000);
    }
    return false;
}

void intel_phy_unlock(volatile uint8_t *registers) {
    if (!semaphore_take(registers)) return;
    uint32_t owners = intel_read(registers, SYNCHRONISATION);
    intel_write(registers, SYNCHRONISATION, owners & ~(uint32_t)SYNCHRONISATION_PHY);
    semaphore_give(registers);
}

void intel_phy_negotiate(volatile uint8_t *registers, uint8_t phy, bool again) {
    /* IEEE 802.3, 22.2.4.1: the control register. */
    enum { CONTROL = 0, RESTART = 1 << 9, POWER_DOWN = 1 << 11, NEGOTIATE = 1 << 12 };
    uint32_t status = intel_read(registers, INTEL_STATUS);
    if ((status & STATUS_PHY_WAS_RESET) != 0) {
        intel_write(registers, INTEL_STATUS, status & ~(uint32_t)STATUS_PHY_WAS_RESET);
        again = true;
    }
    uint16_t control;
    if (!intel_phy_read(registers, phy, CONTROL, &control)) return;
    uint16_t wanted = (uint16_t)((control & ~POWER_DOWN) | NEGOTIATE);
    if (again || wanted != control)
        (void)intel_phy_write(registers, phy, CONTROL, wanted | RESTART);
}

void intel_arm_wake(volatile uint8_t *registers) {
    enum { CONTROL = 0x5800, FILTER = 0x5808, STATUS = 0x5810 };
    enum {
        CONTROL_APM = 1u << 0,
        CONTROL_PME = 1u << 1,
        CONTROL_PME_STATUS = 1u << 2,
        MAGIC = 1u << 1
    };
    uint32_t control = intel_read(registers, INTEL_CTRL) & ~(uint32_t)CTRL_MASTER_DISABLE;
    intel_write(registers, INTEL_CTRL, control | CTRL_WAKE_FROM_D3_COLD | CTRL_SET_LINK_UP);
    intel_write(registers, STATUS, UINT32_MAX); /* ones clear */
    intel_write(registers, FILTER, MAGIC);
    intel_write(registers, CONTROL, CONTROL_APM | CONTROL_PME | CONTROL_PME_STATUS);
}

void intel_poll_link(struct nic *nic, const volatile uint8_t *registers) {
    static const uint16_t mbps[4] = {10, 100, 1000, 1000};
    uint32_t status = intel_read(registers, INTEL_STATUS);
    if (status == UINT32_MAX) { /* fell off the bus: T40 of the field reports */
        nic->broken = true;
        nic_set_link(nic, false, 0);
        return;
    }
    uint32_t speed = mbps[status >> STATUS_SPEED_SHIFT & 3u];
    if (speed == 1000 && (status & STATUS_2500) != 0) speed = 2500;
    nic_set_link(nic, (status & STATUS_LINK_UP) != 0, speed);
    nic->count.missed += intel_read(registers, INTEL_MISSED);
    nic->count.missed += intel_read(registers, INTEL_NO_BUFFER);
    nic->count.descriptor_errors += intel_read(registers, INTEL_CRC_ERRORS);
}
