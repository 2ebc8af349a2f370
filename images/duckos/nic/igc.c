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
 *     mean broken, and the network resets it.
 *   - A broken NVM gives no MAC address: reported as such.
 */
#include "nic/intel.h"

enum { POWER_MANAGEMENT = 0x0e14 };                   /* PHPM */
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

static void power_saving_off(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    intel_rings_energy_saving_off(nic, EEE_ADVERTISE);
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

static enum nic_status igc_start(struct nic *nic) {
    bool agreed = intel_rings_energy_saving_agreed(nic);
    enum nic_status status = intel_rings_reset(nic);
    if (status != NIC_OK) return status;
    power_saving_off(nic);
    set_up_phy(intel_rings_registers(nic), agreed);
    return intel_rings_start(nic);
}

enum nic_status igc_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != INTEL_VENDOR) return NIC_OTHER_DEVICE;
    const struct nic_model *model = nic_find_model(models, device->device_id);
    if (model == NULL) return NIC_OTHER_DEVICE;
    pci_link_always_on(device); /* before anything waits on it */
    enum nic_status status = intel_rings_probe(nic, device, "igc", model);
    if (status != NIC_OK) return status;
    nic->unproven = true;
    nic->start = igc_start;
    return NIC_OK;
}
