/* SPDX-License-Identifier: Apache-2.0
 *
 * I210 and I211, copper, and the 82576, which QEMU emulates from version 8 on. Sections are those
 * of the Intel Ethernet Controller I210 Datasheet (333016). Rings and their ownership:
 * nic/intel_rings.c. Not yet seen on silicon.
 */
#include "nic/intel.h"

enum { EEE_ADVERTISE_100 = 1u << 2, EEE_ADVERTISE_1000 = 1u << 3 };

#define PHY_ADDRESS 1u
#define DEVICE_82576 0x10c9u

static const struct nic_model models[] = {
    {DEVICE_82576, "82576"}, {0x1533, "I210"}, {0x157b, "I210"}, {0x1539, "I211"}, {0, ""}};

/* True: energy efficient Ethernet had been agreed on; it is off now. */
static bool energy_saving_off(struct nic *nic) {
    if (nic->device->device_id == DEVICE_82576) return false; /* has none */
    bool agreed = intel_rings_energy_saving_agreed(nic);
    intel_rings_energy_saving_off(nic, EEE_ADVERTISE_100 | EEE_ADVERTISE_1000);
    return agreed;
}

static void set_up_phy(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    bool again = energy_saving_off(nic);
    if (!intel_phy_lock(registers)) return; /* the firmware keeps it: what it negotiated stays */
    intel_phy_negotiate(registers, PHY_ADDRESS, again);
    intel_phy_unlock(registers);
}

static enum nic_status igb_start(struct nic *nic) {
    enum nic_status status = intel_rings_reset(nic);
    if (status != NIC_OK) return status;
    set_up_phy(nic);
    return intel_rings_start(nic);
}

enum nic_status igb_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != INTEL_VENDOR) return NIC_OTHER_DEVICE;
    const struct nic_model *model = nic_find_model(models, device->device_id);
    if (model == NULL) return NIC_OTHER_DEVICE;
    enum nic_status status = intel_rings_probe(nic, device, "igb", model);
    if (status != NIC_OK) return status;
    nic->unproven = model->device_id != DEVICE_82576;
    nic->start = igb_start;
    pci_link_always_on(device);
    return NIC_OK;
}
