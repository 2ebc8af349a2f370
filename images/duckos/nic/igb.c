/* SPDX-License-Identifier: Apache-2.0
 *
 * I210 and I211, copper, and the 82576, which QEMU emulates from version 8 on. Sections are those
 * of the Intel Ethernet Controller I210 Datasheet (333016). Rings and their ownership:
 * nic/intel_rings.c. Not yet seen on silicon.
 */
#include "nic/intel.h"

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
enum { EEE_ADVERTISE_100 = 1u << 2, EEE_ADVERTISE_1000 = 1u << 3 };

#define PHY_ADDRESS 1u
#define DEVICE_82576 0x10c9u

static const struct nic_model models[] = {
    {DEVICE_82576, "82576"}, {0x1533, "I210"}, {0x157b, "I210"}, {0x1539, "I211"}, {0, ""}};

static void interrupts_off(volatile uint8_t *registers) {
    intel_write(registers, INTERRUPT_MASK_CLEAR, UINT32_MAX);
    intel_write(registers, EXTENDED_MASK_CLEAR, UINT32_MAX);
    (void)intel_read(registers, INTERRUPT_CAUSE); /* reading clears */
}

/* 4.3.1, 4.5.3: a reset of the port. */
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

/* 3.7.7.3: energy efficient Ethernet off in the MAC, and not offered to the partner any more. True:
 * it had been agreed on. */
static bool energy_saving_off(volatile uint8_t *registers) {
    uint32_t control = intel_read(registers, EEE_CONTROL);
    intel_write(registers, EEE_CONTROL, control & ~(uint32_t)(EEE_SEND_IDLE | EEE_RECEIVE_IDLE));
    uint32_t offered = intel_read(registers, EEE_CONFIGURATION);
    intel_write(registers, EEE_CONFIGURATION,
                offered & ~(uint32_t)(EEE_ADVERTISE_100 | EEE_ADVERTISE_1000));
    intel_write(registers, COALESCING,
                intel_read(registers, COALESCING) & ~(uint32_t)COALESCING_ENABLE);
    return (control & EEE_NEGOTIATED) != 0;
}

static void set_up_phy(struct nic *nic, volatile uint8_t *registers) {
    bool has_energy_saving = nic->device->device_id != DEVICE_82576;
    bool again = has_energy_saving && energy_saving_off(registers);
    if (!intel_phy_lock(registers)) return; /* the firmware keeps it: what it negotiated stays */
    intel_phy_negotiate(registers, PHY_ADDRESS, again);
    intel_phy_unlock(registers);
}

static void igb_poll_link(struct nic *nic) { intel_poll_link(nic, intel_rings_registers(nic)); }

static enum nic_status igb_start(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    enum nic_status status = reset(registers);
    if (status == NIC_OK) status = intel_read_mac(nic, registers);
    if (status != NIC_OK) return status;
    intel_set_loaded(registers, true);
    intel_set_filter(nic, registers);
    set_up_phy(nic, registers);
    uint32_t control = intel_read(registers, INTEL_CTRL);
    control &= ~(uint32_t)(CTRL_FORCE_SPEED | CTRL_FORCE_DUPLEX | CTRL_MASTER_DISABLE);
    intel_write(registers, INTEL_CTRL, control | CTRL_SET_LINK_UP);
    pci_bus_master_on(nic->device);
    status = intel_rings_start(nic);
    if (status != NIC_OK) return status;
    nic->broken = false;
    igb_poll_link(nic);
    return NIC_OK;
}

static void igb_arm_wake(struct nic *nic) { intel_arm_wake(intel_rings_registers(nic)); }

static void igb_stop(struct nic *nic) {
    volatile uint8_t *registers = intel_rings_registers(nic);
    interrupts_off(registers);
    intel_quiesce(registers);
    intel_rings_stop(nic);
    intel_set_loaded(registers, false);
    pci_take_over(nic->device);
    nic->broken = true;
}

enum nic_status igb_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != INTEL_VENDOR) return NIC_OTHER_DEVICE;
    const struct nic_model *model = nic_find_model(models, device->device_id);
    if (model == NULL) return NIC_OTHER_DEVICE;
    pci_take_over(device);
    volatile uint8_t *registers = pci_map_bar(device, 0, INTEL_REGISTER_BYTES, NULL);
    if (registers == NULL) return NIC_NO_REGISTERS;
    intel_rings_attach(nic, intel_rings_take(registers));
    nic_set_name(nic->driver, "igb");
    nic_set_name(nic->model, model->name);
    nic->unproven = model->device_id != DEVICE_82576;
    nic->mtu_bytes_max = NIC_MTU_JUMBO;
    nic->start = igb_start;
    nic->stop = igb_stop;
    nic->arm_wake = igb_arm_wake;
    nic->poll_link = igb_poll_link;
    pci_link_always_on(device);
    return NIC_OK;
}
