/* SPDX-License-Identifier: Apache-2.0
 *
 * PCI Express on a model of configuration space: by ports and by the memory window.
 */
#include "machine.h"

#include "pci/pci.h"

static uint32_t nothing(void *context, uint32_t offset, unsigned bytes) {
    (void)context, (void)offset, (void)bytes;
    return 0;
}
static void ignore(void *context, uint32_t offset, unsigned bytes, uint32_t value) {
    (void)context, (void)offset, (void)bytes, (void)value;
}

static struct machine_device *bridge(uint8_t bus, uint8_t slot, uint8_t below) {
    struct machine_device *device = machine_plug(bus, slot, 0, 0x8086, 0x1111, 0x0604);
    device->config[0x0e] = 1;
    device->config[0x18] = bus;
    device->config[0x19] = below;
    return device;
}

static void scan(bool ecam) { pci_init(ecam ? MACHINE_ECAM : 0, 0, 255); }

static void finds_all_functions_behind_bridges(bool ecam) {
    machine_reset();
    machine_plug(0, 0, 0, 0x8086, 0x2222, 0x0600);
    bridge(0, 28, 1);
    bridge(0, 29, 2);
    bridge(2, 0, 7);
    machine_plug(1, 0, 0, 0x8086, 0x125c, 0x0200);
    struct machine_device *many = machine_plug(7, 3, 0, 0x10ec, 0x8168, 0x0200);
    many->config[0x0e] = 0x80;
    machine_plug(7, 3, 5, 0x10ec, 0x816a, 0x0700);
    struct machine_device *one = machine_plug(7, 4, 0, 0x1af4, 0x1000, 0x0200);
    (void)one;
    machine_plug(7, 4, 1, 0x1af4, 0x1001, 0x0100); /* hidden: function 0 says that it is alone */
    scan(ecam);
    CHECK_EQUAL(8, pci_count());
    unsigned nics = 0;
    for (unsigned at = 0; at < pci_count(); at++) {
        const struct pci_device *device = pci_at(at);
        nics += device->class_code == PCI_CLASS_ETHERNET;
        if (device->bus == 7) CHECK_EQUAL(2, pci_at(device->parent)->bus);
        if (device->bus == 0) CHECK_EQUAL(PCI_NO_PARENT, device->parent);
    }
    CHECK_EQUAL(3, nics);
}

static void bridges_in_a_circle_end(void) {
    machine_reset();
    bridge(0, 1, 1);
    bridge(1, 1, 2);
    bridge(2, 1, 1);
    bridge(2, 2, 0);
    scan(true);
    CHECK_EQUAL(4, pci_count());
}

static void a_window_that_shows_something_else_is_not_used(void) {
    machine_reset();
    struct machine_device *device = machine_plug(0, 0, 0, 0x8086, 0x1234, 0x0200);
    scan(false);
    CHECK_EQUAL(0, pci_find_extended(pci_at(0), PCI_EXTENDED_L1_SUBSTATES));
    CHECK_EQUAL(UINT32_MAX, pci_read32(pci_at(0), 0x100)); /* out of reach by ports */
    pci_init(MACHINE_ECAM + (1u << 20), 0, 255);           /* a wrong base: bus 1 is empty */
    CHECK_EQUAL(1, pci_count());
    CHECK_EQUAL(UINT32_MAX, pci_read32(pci_at(0), 0x100));
    (void)device;
}

static void capabilities_end(void) {
    machine_reset();
    struct machine_device *device = machine_plug(0, 0, 0, 0x8086, 0x1234, 0x0200);
    scan(true);
    CHECK_EQUAL(0, pci_find_capability(pci_at(0), 9, 0)); /* no list at all */
    machine_capability(device, 0x40, 9);
    machine_capability(device, 0x50, 5);
    machine_capability(device, 0x60, 9);
    uint8_t first = pci_find_capability(pci_at(0), 9, 0);
    CHECK_EQUAL(0x60, first);
    CHECK_EQUAL(0x40, pci_find_capability(pci_at(0), 9, first));
    CHECK_EQUAL(0, pci_find_capability(pci_at(0), 9, 0x40));
    device->config[0x41] = 0x60; /* a circle */
    CHECK_EQUAL(0, pci_find_capability(pci_at(0), 0x77, 0));
    device->config[0x34] = 0x04; /* points into the header */
    CHECK_EQUAL(0, pci_find_capability(pci_at(0), 9, 0));
    const uint32_t circle = 0x10010003; /* extended: next is 0x100 again */
    memcpy(device->config + 0x100, &circle, 4);
    CHECK_EQUAL(0, pci_find_extended(pci_at(0), 0x1e));
    CHECK_EQUAL(0x100, pci_find_extended(pci_at(0), 3));
}

static void bars_of_every_kind(void) {
    machine_reset();
    struct machine_device *device = machine_plug(0, 0, 0, 0x8086, 0x1234, 0x0200);
    machine_registers(device, 0, 0x20000, true);
    device->read = nothing;
    device->write = ignore;
    device->bar_bytes[2] = 0x1000;
    device->config[0x19] = 0xe0, device->config[0x1a] = 0xfe; /* BAR 2: 32 bit at 0xfee000 */
    device->bar_bytes[3] = 32;
    device->bar_flags[3] = 1;
    device->config[0x1c] = 1, device->config[0x1d] = 0xc0; /* BAR 3: ports */
    device->bar_bytes[4] = 0x1000;                         /* BAR 4: never assigned */
    set_config16(device, 4, 7);
    scan(true);
    uint64_t bytes = 0;
    CHECK(pci_map_bar(pci_at(0), 0, 0x20000, &bytes) == device->window);
    CHECK_EQUAL(0x20000, bytes);
    CHECK(pci_map_bar(pci_at(0), 0, 0x20001, NULL) == NULL);
    CHECK(pci_map_bar(pci_at(0), 2, 0x1000, &bytes) != NULL && bytes == 0x1000);
    CHECK(pci_map_bar(pci_at(0), 3, 16, NULL) == NULL);
    CHECK(pci_map_bar(pci_at(0), 4, 16, NULL) == NULL);
    CHECK(pci_map_bar(pci_at(0), 5, 16, NULL) == NULL);
    CHECK(pci_map_bar(pci_at(0), 6, 16, NULL) == NULL);
    CHECK_EQUAL(7, config16(device, 4) & 7); /* decoding is back on */
    uint64_t address;
    memcpy(&address, device->config + 0x10, 8);
    CHECK_EQUAL((uintptr_t)device->window | 4, address); /* and the BAR as it was */
}

static void power_saving_is_off_at_both_ends(void) {
    machine_reset();
    struct machine_device *port = bridge(0, 28, 1);
    struct machine_device *nic = machine_plug(1, 0, 0, 0x8086, 0x125c, 0x0200);
    struct machine_device *both[] = {port, nic};
    const uint32_t first = 0x15010001, second = 0x0001001e; /* error reporting, then L1 substates */
    for (unsigned at = 0; at < 2; at++) {
        machine_capability(both[at], 0x80, PCI_CAPABILITY_EXPRESS);
        set_config16(both[at], 0x90, 0x0043);
        memcpy(both[at]->config + 0x100, &first, 4);
        memcpy(both[at]->config + 0x150, &second, 4);
        both[at]->config[0x158] = 0xff;
    }
    scan(true);
    pci_link_always_on(pci_at(1));
    for (unsigned at = 0; at < 2; at++) {
        CHECK_EQUAL(0x0040, config16(both[at], 0x90)); /* only ASPM was changed */
        CHECK_EQUAL(0xf0, both[at]->config[0x158]);
    }
}

static void status_bits_survive(void) {
    machine_reset();
    struct machine_device *device = machine_plug(0, 0, 0, 0x8086, 0x1234, 0x0200);
    set_config16(device, 6, 0xf910); /* error bits, cleared by writing ones */
    set_config16(device, 4, 5);
    scan(true);
    pci_take_over(pci_at(0));
    pci_bus_master_on(pci_at(0));
    CHECK_EQUAL(0xf910, config16(device, 6));
    CHECK_EQUAL(0x407, config16(device, 4));
}

static void bridges_above_pass_memory_accesses(void) {
    machine_reset();
    struct machine_device *upper = bridge(0, 28, 1), *lower = bridge(1, 0, 2);
    struct machine_device *nic = machine_plug(2, 0, 0, 0x8086, 0x125c, 0x0200);
    scan(true);
    pci_bus_master_on(pci_at(2));
    CHECK(machine_is_master(nic) && machine_is_master(lower) && machine_is_master(upper));
}

static void too_many_devices_are_said(void) {
    machine_reset();
    for (uint8_t slot = 0; slot < MACHINE_DEVICE_COUNT_MAX; slot++)
        machine_plug(0, slot, 0, 0x8086, 0x1234, 0x0200)->config[0x0e] = 0x80;
    scan(true);
    CHECK_EQUAL(MACHINE_DEVICE_COUNT_MAX, pci_count());
}

int main(void) {
    finds_all_functions_behind_bridges(true);
    finds_all_functions_behind_bridges(false);
    bridges_in_a_circle_end();
    a_window_that_shows_something_else_is_not_used();
    capabilities_end();
    bars_of_every_kind();
    power_saving_is_off_at_both_ends();
    status_bits_survive();
    bridges_above_pass_memory_accesses();
    too_many_devices_are_said();
    machine_reset();
    return 0;
}
