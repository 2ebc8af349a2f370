/* SPDX-License-Identifier: Apache-2.0
 *
 * I225 and I226 (2.5 Gbit/s). Sections are those of the "Intel Ethernet Controller I225/I226
 * Software User Manual"; the queues are those of the I210 (nic/intel_rings.c says who owns what).
 * Not yet seen on silicon.
 *
 * Known trouble of these parts, and what is done about it:
 *   - I226 loses its PCIe link in the L1.2 substate: pci_link_always_on at probe, on both ends.
 *   - Energy efficient Ethernet drops links and stalls reception: off in the MAC, not offered.
 *   - The device can vanish from the bus while its link flag stays up: all ones from a register
 * mean
 *     broken, and the network resets it.
 *   - A broken NVM gives no MAC address: reported as such.
 */
#include "nic/intel.h"

enum {
    INTERRUPT_CAUSE = 0x1500,
    INTERRUPT_MASK_CLEAR = 0x150c,
    EXTENDED_MASK_CLEAR = 0x1528,
    COALESCING = 0x2508,
    EEE_CONTROL = 0x0e30,
    EEE_CONFIGURATION = 0x0e38,
    POWER_MANAGEMENT = 0x0e14, /* PHPM */
};
enum { COALESCING_ENABLE = 1u << 31 };
enum { EEE_NEGOTIATED = 1u << 29, EEE_SEND_IDLE = 1u << 16, EEE_RECEIVE_IDLE = 1u << 17 };
enum { EEE_ADVERTISE = 1u << 2 | 1u << 3 | 1u << 4 }; /* 100, 1000, 2500 Mbit/s */
/* PHPM: go-link-disconnect (5), and no 1000 (6) or 2500 Mbit/s (11). */
enum { POWER_LIMITS = 1u << 5 | 1u << 6 | 1u << 11 };

#define PHY_ADDRESS 0u
/* IEEE 802.3, 45.2.7.10: multi-gigabit advertisement; bit 7 offers 2.5GBASE-T. */
enum { MMD_NEGOTIATION = 7, MULTI_GIGABIT = 32, OFFER_2500 = 1 << 7 };

static const struct nic_model models[] = {
    {0x15f2, "I225-LM"}, {0x15f3, "I225-V"},    {0x15f7, "I220-V"},
    {0x15f8, "I225-I"},  {0x3100, "I225-K"},    {0x3101, "I225-K2"},
    {0x0d9f, "I225-IT"}, {0x5502, "I225-LMvP"}, {0x3102, "I226-K"},
    {0x125b, "I226-LM"}, {0x125c, "I226-V"},    {0x125d, "I226-IT"},
    {0x125e, "I221-V"},  {0x5503, "I226-LMvP"}, {0, ""}};

static void interrupts_off(volatile uint8_t *registers) {
    intel_write(registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    intel_write(registers, EXTENDED_MASK_CLEAR, UINT32_MAX);
    (void)intel_read(registers, INTERRUPT_CAUSE); /* reading clears */
}

/* The whole device (DEV_RST), not only the port: firmware boot drivers are known to leave it in a
 * state that a port reset does not end. */
static enum nic_status reset(volatile uint8_t *registers) {
    interrupts_off(registers);
    intel_quiesce(registers);
    intel_write(registers, INTEL_CTRL, intel_read(registers, INTEL_CTRL) | CTRL_DEVICE_RESET);
    nic_pause_us(3000); /* at least 1 ms before any register access */
    if (!nic_wait32(registers + INTEL_CTRL, CTRL_DEVICE_RESET, 0, NIC_RESET_LIMIT_US))
        return NIC_NO_ANSWER;
    intel_wait_for_nvm(registers);
    interrupts_off(registers);
    return NIC_OK;
}

static void energy_saving_off(volatile uint8_t *registers) {
    uint32_t control = intel_read(registers, EEE_CONTROL);
    intel_write(registers, EEE_CONTROL, control & ~(uint32_t)(EEE_SEND_IDLE | EEE_RECEIVE_IDLE));
    intel_write(registers, EEE_CONFIGURATION,
                intel_read(registers, EEE_CONFIGURATION) & ~(uint32_t)EEE_ADVERTISE);
    intel_write(registers, COALESCING,
                intel_read(registers, COALESCING) & ~(uint32_t)COALESCING_ENABLE);
    intel_write(registers, POWER_MANAGEMENT,
                intel_read(registers, POWER_MANAGEMENT) & ~(uint32_t)POWER_LIMITS);
}

/* Offer 2.5 Gbit/s; the link is negotiated anew only where something changed. */
static void set_up_phy(volatile uint8_t *registers, bool energy_saving_agreed) {
    if (!intel_phy_lock(registers)) return; /* the firmware keeps it: what it negotiated stays */
    uint16_t offer;
    bool again = energy_saving_agreed;
    if (intel_mmd_read(registers, PHY_ADDRESS, MMD_NEGOTIATION, MULTI_GIGABIT, &offer) &&
        (offer & OFFER_2500) == 0) {
        again = true;
        (void)intel_mmd_write(registers, PHY_ADDRESS, MMD_NEGOTIATION, MULTI_GIGABIT,
                              offer | OFFER_2500);
    }
    intel_phy_negotiate(registers, PHY_ADDRESS, again);
    intel_phy_unlock(registers);
}

static void igc_poll_link(struct nic *nic) { intel_poll_link(nic, intel_rings_registers(nic)); }

static enum nic_status igc_start(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    bool agreed = (intel_read(registers, EEE_CONTROL) & EEE_NEGOTIATED) != 0;
    enum nic_status status = reset(registers);
    if (status == NIC_OK) status = intel_read_mac(nic, registers);
    if (status != NIC_OK) return status;
    intel_set_loaded(registers, true);
    intel_set_filter(nic, registers);
    energy_saving_off(registers);
    set_up_phy(registers, agreed);
    uint32_t control = intel_read(registers, INTEL_CTRL);
    control &= ~(uint32_t)(CTRL_FORCE_SPEED | CTRL_FORCE_DUPLEX | CTRL_MASTER_DISABLE);
    intel_write(registers, INTEL_CTRL, control | CTRL_SET_LINK_UP);
    pci_bus_master_on(nic->device);
    status = intel_rings_start(nic);
    if (status != NIC_OK) return status;
    nic->broken = false;
    igc_poll_link(nic);
    return NIC_OK;
}

static void igc_arm_wake(struct nic *nic) { intel_arm_wake(intel_rings_registers(nic)); }

static void igc_stop(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    interrupts_off(registers);
    intel_quiesce(registers);
    intel_rings_stop(nic);
    intel_set_loaded(registers, false);
    pci_take_over(nic->device);
    nic->broken = true;
}

enum nic_status igc_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != INTEL_VENDOR) return NIC_OTHER_DEVICE;
    const struct nic_model *model = nic_find_model(models, device->device_id);
    if (model == NULL) return NIC_OTHER_DEVICE;
    pci_link_always_on(device); /* before anything waits on it */
    pci_take_over(device);
    volatile uint8_t *registers = pci_map_bar(device, 0, INTEL_REGISTER_BYTES, NULL);
    if (registers == NULL) return NIC_NO_REGISTERS;
    intel_rings_attach(nic, intel_rings_take(registers));
    nic_set_name(nic->driver, "igc");
    nic_set_name(nic->model, model->name);
    nic->unproven = true;
    nic->mtu_bytes_max = NIC_MTU_JUMBO;
    nic->start = igc_start;
    nic->stop = igc_stop;
    nic->arm_wake = igc_arm_wake;
    nic->poll_link = igc_poll_link;
    return NIC_OK;
}
