/* SPDX-License-Identifier: Apache-2.0
 *
 * A NIC that booted us may still write received frames into memory that is ours now: boot ROMs on
 * BIOS machines leave it running. So, before any memory is used, bus mastering of every network
 * device is switched off; its driver resets it and switches it on again. Configuration mechanism 1
 * (ports 0xCF8 and 0xCFC) reaches all buses of segment 0 without any table.
 */
#include "boot/handover.h"
#include "cpu/port.h"

#define COMMAND_AND_STATUS 0x04u
#define COMMAND_BUS_MASTER (1u << 2)
#define CLASS_AND_REVISION 0x08u
#define HEADER_TYPE 0x0cu /* bits 16..22 of this word; bit 23: more than one function */
#define BRIDGE_BUSES 0x18u
#define CLASS_NETWORK 0x02u
#define CLASS_PCI_BRIDGE 0x0604u
#define NO_DEVICE 0xffffffffu

static void select_register(uint32_t bus, uint32_t place, uint32_t offset) {
    port_out_32(0xcf8, 1u << 31 | bus << 16 | place << 8 | offset);
}

static uint32_t read_register(uint32_t bus, uint32_t place, uint32_t offset) {
    select_register(bus, place, offset);
    return port_in_32(0xcfc);
}

/* `place` = device * 8 + function. Returns the bus behind a bridge, or 0. */
static uint32_t quiet_function(uint32_t bus, uint32_t place) {
    uint32_t class = read_register(bus, place, CLASS_AND_REVISION) >> 16;
    if (class == CLASS_PCI_BRIDGE) return read_register(bus, place, BRIDGE_BUSES) >> 8 & 0xffu;
    if (class >> 8 == CLASS_NETWORK) {
        uint32_t command = read_register(bus, place, COMMAND_AND_STATUS) & 0xffffu;
        select_register(bus, place, COMMAND_AND_STATUS);
        port_out_32(0xcfc, command & ~COMMAND_BUS_MASTER); /* status bits: written 0, kept */
    }
    return 0;
}

static uint32_t function_count(uint32_t bus, uint32_t device) {
    if (read_register(bus, device * 8, 0) == NO_DEVICE) return 0;
    return (read_register(bus, device * 8, HEADER_TYPE) & 1u << 23) != 0 ? 8 : 1;
}

void quiet_network_devices(void) {
    uint32_t wanted[256 / 32] = {1}; /* bus 0, then each bus that a bridge leads to */
    for (uint32_t bus = 0; bus < 256; bus++) {
        if ((wanted[bus / 32] & 1u << bus % 32) == 0) continue;
        for (uint32_t device = 0; device < 32; device++) {
            uint32_t functions = function_count(bus, device);
            for (uint32_t place = device * 8; place < device * 8 + functions; place++) {
                if (read_register(bus, place, 0) == NO_DEVICE) continue;
                uint32_t behind = quiet_function(bus, place); /* always a higher number */
                if (behind > bus) wanted[behind / 32] |= 1u << behind % 32;
            }
        }
    }
}
