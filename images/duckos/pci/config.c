/* SPDX-License-Identifier: Apache-2.0 */
#include "pci/config.h"

#include "memory/memory.h"
#include "nic/mmio.h"

/* PCI Local Bus 3.0, 3.2.2.3.2: configuration mechanism #1. */
enum { PORT_ADDRESS = 0xcf8, PORT_DATA = 0xcfc };
#define PORT_ENABLE 0x80000000u

#define BUS_WINDOW_BYTES (1u << 20) /* 7.2.2: 32 slots x 8 functions x 4096 bytes */
#define BUS_COUNT 256u

static uint64_t ecam_base; /* 0: there is no window */
static uint8_t ecam_first, ecam_last;
static volatile uint8_t *bus_window[BUS_COUNT]; /* mapped when first used */

static uint32_t port_config_read(uint16_t function, uint16_t offset) {
    port_write32(PORT_ADDRESS, PORT_ENABLE | (uint32_t)function << 8 | (offset & 0xfcu));
    return port_read32(PORT_DATA);
}

void config_init(uint64_t ecam, uint8_t bus_first, uint8_t bus_last) {
    for (unsigned bus = 0; bus < BUS_COUNT; bus++) bus_window[bus] = 0;
    ecam_base = ecam;
    ecam_first = bus_first;
    ecam_last = bus_last;
    if (ecam_base == 0) return;
    /* Some firmware's MCFG points nowhere: believe it only where it shows the device that the ports
     * show. */
    if (bus_first != 0 || config_read(0, 0) != port_config_read(0, 0)) ecam_base = 0;
}

static volatile uint8_t *window_of(uint16_t function, uint16_t offset) {
    uint8_t bus = (uint8_t)(function >> 8);
    if (ecam_base == 0 || bus < ecam_first || bus > ecam_last) return 0;
    if (bus_window[bus] == 0) {
        uint64_t physical = ecam_base + (uint64_t)bus * BUS_WINDOW_BYTES;
        bus_window[bus] = memory_map_device(physical, BUS_WINDOW_BYTES);
    }
    return bus_window[bus] + ((uint32_t)(function & 0xffu) << 12) + offset;
}

uint32_t config_bytes(uint16_t function) {
    return window_of(function, 0) != 0 ? PCI_CONFIG_BYTES_ECAM : PCI_CONFIG_BYTES_PORT;
}

uint32_t config_read(uint16_t function, uint16_t offset) {
    if (offset >= config_bytes(function)) return UINT32_MAX;
    const volatile uint8_t *at = window_of(function, offset);
    return at != 0 ? mmio_read32(at) : port_config_read(function, offset);
}

void config_write(uint16_t function, uint16_t offset, uint32_t value) {
    if (offset >= config_bytes(function)) return;
    volatile uint8_t *at = window_of(function, offset);
    if (at != 0) {
        mmio_write32(at, value);
        return;
    }
    port_write32(PORT_ADDRESS, PORT_ENABLE | (uint32_t)function << 8 | (offset & 0xfcu));
    port_write32(PORT_DATA, value);
}
