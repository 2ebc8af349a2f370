/* SPDX-License-Identifier: Apache-2.0
 *
 * Sections are those of the PCI Express Base Specification 4.0 unless another one is named.
 */
#include "pci/pci.h"

#include "console/console.h"
#include "memory/memory.h"
#include "nic/mmio.h"
#include "pci/config.h"

/* 7.5.1: the header. */
enum {
    HEADER_ID = 0x00,
    HEADER_COMMAND = 0x04,
    HEADER_STATUS = 0x06,
    HEADER_CLASS = 0x08,
    HEADER_TYPE = 0x0e,
    HEADER_BARS = 0x10,
    HEADER_BUSES = 0x18, /* of a bridge: primary, secondary, subordinate, latency */
    HEADER_CAPABILITIES = 0x34,
};
enum {
    COMMAND_MEMORY = 1u << 1,
    COMMAND_MASTER = 1u << 2,
    COMMAND_NO_INTX = 1u << 10,
    STATUS_HAS_CAPABILITIES = 1u << 4,
    TYPE_BRIDGE = 1,
    TYPE_MANY_FUNCTIONS = 0x80,
};
#define CLASS_PCI_BRIDGE 0x0604u
#define CAPABILITY_COUNT_MAX 48u /* 192 bytes of list, four each: more is a loop */
#define EXTENDED_FIRST 0x100u
#define EXTENDED_COUNT_MAX 960u

static struct pci_device devices[PCI_DEVICE_COUNT_MAX];
static unsigned device_count;

static uint16_t function_of(const struct pci_device *device) {
    return (uint16_t)(device->bus << 8 | device->slot << 3 | device->function);
}

uint32_t pci_read32(const struct pci_device *device, uint16_t offset) {
    return config_read(function_of(device), offset & 0xffcu);
}

uint16_t pci_read16(const struct pci_device *device, uint16_t offset) {
    return (uint16_t)(pci_read32(device, offset) >> (8u * (offset & 2u)));
}

uint8_t pci_read8(const struct pci_device *device, uint16_t offset) {
    return (uint8_t)(pci_read32(device, offset) >> (8u * (offset & 3u)));
}

void pci_write32(const struct pci_device *device, uint16_t offset, uint32_t value) {
    config_write(function_of(device), offset & 0xffcu, value);
}

/* Only for registers whose other half may be written back as read; the status register (cleared by
 * writing ones) is not such a half, so command goes through write_command. */
void pci_write16(const struct pci_device *device, uint16_t offset, uint16_t value) {
    unsigned shift = 8u * (offset & 2u);
    uint32_t kept = pci_read32(device, offset) & ~(0xffffu << shift);
    pci_write32(device, offset, kept | (uint32_t)value << shift);
}

static void write_command(const struct pci_device *device, uint16_t command) {
    pci_write32(device, HEADER_COMMAND, command);
}

/* ---- finding devices ------------------------------------------------------------------------- */
static bool add_function(uint8_t bus, uint8_t slot, uint8_t function, uint16_t parent) {
    struct pci_device found = {.bus = bus, .slot = slot, .function = function, .parent = parent};
    uint32_t id = pci_read32(&found, HEADER_ID);
    if ((id & 0xffffu) == 0xffffu || id == 0) return false;
    if (device_count == PCI_DEVICE_COUNT_MAX) {
        klog("pci: more than %u devices, the rest is not looked at", PCI_DEVICE_COUNT_MAX);
        return true;
    }
    uint32_t class = pci_read32(&found, HEADER_CLASS);
    found.vendor_id = (uint16_t)id;
    found.device_id = (uint16_t)(id >> 16);
    found.revision = (uint8_t)class;
    found.class_code = (uint16_t)(class >> 16);
    bool bridge = (pci_read8(&found, HEADER_TYPE) & 0x7fu) == TYPE_BRIDGE;
    if (bridge && found.class_code == CLASS_PCI_BRIDGE)
        found.secondary = (uint8_t)(pci_read32(&found, HEADER_BUSES) >> 8);
    devices[device_count++] = found;
    return true;
}

static void scan_bus(uint8_t bus, uint16_t parent) {
    for (uint8_t slot = 0; slot < 32; slot++) {
        if (!add_function(bus, slot, 0, parent)) continue;
        struct pci_device first = {.bus = bus, .slot = slot};
        if ((pci_read8(&first, HEADER_TYPE) & TYPE_MANY_FUNCTIONS) == 0) continue;
        for (uint8_t function = 1; function < 8; function++)
            add_function(bus, slot, function, parent);
    }
}

void pci_init(uint64_t ecam, uint8_t bus_first, uint8_t bus_last) {
    bool seen[256] = {[0] = true}; /* a bridge that names an old bus would lead in a circle */
    device_count = 0;
    config_init(ecam, bus_first, bus_last);
    scan_bus(0, PCI_NO_PARENT);
    for (unsigned index = 0; index < device_count; index++) {
        uint8_t below = devices[index].secondary;
        if (seen[below]) continue;
        seen[below] = true;
        scan_bus(below, (uint16_t)index);
    }
}

unsigned pci_count(void) { return device_count; }
const struct pci_device *pci_at(unsigned index) { return &devices[index]; }

/* ---- capabilities ---------------------------------------------------------------------------- */
uint8_t pci_find_capability(const struct pci_device *device, uint8_t id, uint8_t after) {
    if ((pci_read16(device, HEADER_STATUS) & STATUS_HAS_CAPABILITIES) == 0) return 0;
    uint16_t link = after != 0 ? (uint16_t)(after + 1u) : HEADER_CAPABILITIES;
    for (unsigned step = 0; step < CAPABILITY_COUNT_MAX; step++) {
        uint8_t at = pci_read8(device, link) & 0xfcu;
        if (at < 0x40) return 0;
        if (pci_read8(device, at) == id) return at;
        link = (uint16_t)(at + 1u);
    }
    return 0;
}

uint16_t pci_find_extended(const struct pci_device *device, uint16_t id) {
    if (config_bytes(function_of(device)) < PCI_CONFIG_BYTES_ECAM) return 0;
    uint16_t at = EXTENDED_FIRST;
    for (unsigned step = 0; step < EXTENDED_COUNT_MAX && at >= EXTENDED_FIRST; step++) {
        uint32_t header = pci_read32(device, at); /* 7.6.3: id 15:0, version 19:16, next 31:20 */
        if (header == 0 || header == UINT32_MAX) return 0;
        if ((header & 0xffffu) == id) return at;
        at = (uint16_t)(header >> 20 & 0xffcu);
    }
    return 0;
}

/* ---- taking over ----------------------------------------------------------------------------- */
/* 7.5.2: control and status, the two low bits are the power state. Leaving D3hot takes the device
 * up to 10 ms (5.3.1.4); the drivers' resets wait longer than that for their first answer. */
static void power_on(const struct pci_device *device) {
    uint8_t at = pci_find_capability(device, PCI_CAPABILITY_POWER, 0);
    if (at == 0) return;
    uint16_t control = pci_read16(device, (uint16_t)(at + 4u));
    if ((control & 3u) != 0) pci_write16(device, (uint16_t)(at + 4u), (uint16_t)(control & ~3u));
}

/* 7.5.2.1: bits 15:11 of the capabilities say from which states PME works, 15 and 14 are D3cold and
 * D3hot. 7.5.2.2: PME status 15 (cleared by a one), PME enable 8. */
bool pci_arm_wake(const struct pci_device *device) {
    enum { FROM_D3 = 3u << 14, STATUS = 1u << 15, ENABLE = 1u << 8, D3 = 3 };
    uint8_t at = pci_find_capability(device, PCI_CAPABILITY_POWER, 0);
    if (at == 0 || (pci_read16(device, (uint16_t)(at + 2u)) & FROM_D3) == 0) return false;
    pci_write16(device, (uint16_t)(at + 4u), STATUS | ENABLE | D3);
    return true;
}

static void messages_off(const struct pci_device *device) {
    uint8_t msi = pci_find_capability(device, PCI_CAPABILITY_MSI, 0);
    if (msi != 0) { /* 7.7.1.2: enable is bit 0 of message control */
        uint16_t control = pci_read16(device, (uint16_t)(msi + 2u));
        pci_write16(device, (uint16_t)(msi + 2u), (uint16_t)(control & ~1u));
    }
    uint8_t msix = pci_find_capability(device, PCI_CAPABILITY_MSIX, 0);
    if (msix != 0) { /* 7.7.2.2: enable is bit 15 */
        uint16_t control = pci_read16(device, (uint16_t)(msix + 2u));
        pci_write16(device, (uint16_t)(msix + 2u), (uint16_t)(control & ~0x8000u));
    }
}

void pci_take_over(const struct pci_device *device) {
    uint16_t command = pci_read16(device, HEADER_COMMAND);
    command = (uint16_t)((command & ~COMMAND_MASTER) | COMMAND_NO_INTX | COMMAND_MEMORY);
    write_command(device, command);
    power_on(device);
    messages_off(device);
    write_command(device, command); /* D3hot to D0 may have reset it */
}

/* Some firmware switches the bridges off as well when it hands the machine over. A bridge's parent
 * comes before it in the table, so the walk ends. */
void pci_bus_master_on(const struct pci_device *device) {
    for (;;) {
        uint16_t command = pci_read16(device, HEADER_COMMAND);
        write_command(device, command | COMMAND_MASTER | COMMAND_MEMORY);
        if (device->parent == PCI_NO_PARENT) return;
        device = &devices[device->parent];
    }
}

/* ---- link power ------------------------------------------------------------------------------ */
static void aspm_off(const struct pci_device *device) {
    uint8_t express = pci_find_capability(device, PCI_CAPABILITY_EXPRESS, 0);
    if (express != 0) { /* 7.5.3.7: link control, ASPM in bits 1:0 */
        uint16_t at = (uint16_t)(express + 0x10u);
        /* The other half is link status, whose writable bits are cleared by ones: write zeros. */
        pci_write32(device, at, pci_read16(device, at) & ~3u);
    }
    uint16_t substates = pci_find_extended(device, PCI_EXTENDED_L1_SUBSTATES);
    if (substates != 0) { /* 7.8.3.3: control 1, bits 3:0 enable PCI-PM and ASPM L1.2 and L1.1 */
        uint16_t at = (uint16_t)(substates + 8u);
        pci_write32(device, at, pci_read32(device, at) & ~0xfu);
    }
}

/* 5.4.1.3: software turns ASPM off at the downstream component first. */
void pci_link_always_on(const struct pci_device *device) {
    aspm_off(device);
    if (device->parent != PCI_NO_PARENT) aspm_off(&devices[device->parent]);
}

/* ---- memory ---------------------------------------------------------------------------------- */
/* 7.5.1.2.1: the size shows in the bits that stay zero when all ones are written. The device must
 * not decode addresses meanwhile. */
static uint64_t bar_bytes(const struct pci_device *device, uint16_t at, bool wide) {
    uint16_t command = pci_read16(device, HEADER_COMMAND);
    uint32_t low = pci_read32(device, at), high = wide ? pci_read32(device, at + 4u) : 0;
    write_command(device, command & (uint16_t)~COMMAND_MEMORY);
    pci_write32(device, at, UINT32_MAX);
    uint64_t mask = pci_read32(device, at) & ~0xfu;
    if (wide) {
        pci_write32(device, (uint16_t)(at + 4u), UINT32_MAX);
        mask |= (uint64_t)pci_read32(device, (uint16_t)(at + 4u)) << 32;
        pci_write32(device, (uint16_t)(at + 4u), high);
    } else {
        mask |= mask != 0 ? 0xffffffff00000000ull : 0;
    }
    pci_write32(device, at, low);
    write_command(device, command);
    return ~mask + 1u; /* 0 when nothing could be written */
}

volatile uint8_t *pci_map_bar(const struct pci_device *device, unsigned bar, uint64_t bytes_min,
                              uint64_t *bytes) {
    if (bar > 5) return 0;
    uint16_t at = (uint16_t)(HEADER_BARS + 4u * bar);
    uint32_t low = pci_read32(device, at);
    bool wide = (low & 6u) == 4u; /* bits 2:1 = 10b: 64-bit */
    if ((low & 1u) != 0 || (wide && bar == 5)) return 0;
    uint64_t physical = low & ~0xfu;
    if (wide) physical |= (uint64_t)pci_read32(device, (uint16_t)(at + 4u)) << 32;
    if (physical == 0) return 0;
    uint64_t size = bar_bytes(device, at, wide);
    if (size < bytes_min || size == 0) return 0;
    if (bytes != 0) *bytes = size;
    return memory_map_device(physical, size);
}
