/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding the tables and mapping them, read-only.
 */
#include "acpi/acpi.h"

#include "boot/handover.h"
#include "console/console.h"
#include "memory/memory.h"

#include <string.h>

#define BIOS_FIRST 0xe0000u /* 5.2.5.1: where a BIOS puts the root pointer, on 16 bytes */
#define BIOS_END 0x100000u
#define ROOT_BYTES 36u

static struct acpi_facts facts;

const struct acpi_facts *acpi_facts(void) { return &facts; }

static bool search_bios(uint64_t *xsdt, uint64_t *rsdt) {
    const uint8_t *bios = memory_map_firmware(BIOS_FIRST, BIOS_END - BIOS_FIRST);
    for (uint32_t at = 0; at + ROOT_BYTES <= BIOS_END - BIOS_FIRST; at += 16)
        if (acpi_read_root(bios + at, ROOT_BYTES, xsdt, rsdt)) return true;
    return false;
}

static bool find_root(uint64_t *xsdt, uint64_t *rsdt) {
    if (handover.acpi_root == 0) return search_bios(xsdt, rsdt);
    return acpi_read_root(memory_map_firmware(handover.acpi_root, ROOT_BYTES), ROOT_BYTES, xsdt,
                          rsdt);
}

/* The whole table, or NULL when its header can't be right. */
static const uint8_t *map_table(uint64_t physical, uint32_t *bytes) {
    if (physical == 0 || physical >= MEMORY_BYTES_MAX) return NULL;
    *bytes = acpi_table_bytes(memory_map_firmware(physical, ACPI_HEADER_BYTES));
    return *bytes == 0 ? NULL : memory_map_firmware(physical, *bytes);
}

static void read_one(uint64_t physical) {
    uint32_t bytes;
    const uint8_t *table = map_table(physical, &bytes);
    if (table == NULL || !acpi_read_table(table, bytes, &facts))
        klog("acpi: the table at %p is broken, and ignored", (const void *)physical);
}

static void read_all(uint64_t list_physical) {
    uint64_t address[ACPI_TABLES_MAX];
    uint32_t bytes;
    const uint8_t *list = map_table(list_physical, &bytes);
    uint32_t count = list == NULL ? 0 : acpi_read_list(list, bytes, address, ACPI_TABLES_MAX);
    for (uint32_t i = 0; i < count; i++) read_one(address[i]);
    if (facts.dsdt_address != 0) read_one(facts.dsdt_address);
}

/* Devices are polled: no line of any I/O APIC may interrupt (82093AA, 3.2: index at 0, data at 10h;
 * two registers per line from index 10h on, bit 16 masks). Firmware leaves some open. */
static void mask_lines(uint64_t io_apic) {
    volatile uint32_t *at = memory_map_device(io_apic, 32);
    at[0] = 1; /* version: bits 16..23 = index of the last line */
    uint32_t last = at[4] >> 16 & 0xff;
    for (uint32_t line = 0; line <= last; line++) {
        at[0] = 0x10 + 2 * line;
        at[4] = 1u << 16;
    }
}

void acpi_init(void) {
    uint64_t xsdt, rsdt;
    if (!find_root(&xsdt, &rsdt)) {
        klog("acpi: no tables: one core, no power-off, reset by the keyboard controller");
        return;
    }
    read_all(xsdt != 0 ? xsdt : rsdt);
    for (uint32_t i = 0; i < facts.io_apic_count; i++) mask_lines(facts.io_apic_address[i]);
    /* A panic must not need new page tables to reset. */
    if (facts.reset.address != 0 && facts.reset.space == ACPI_SPACE_MEMORY)
        memory_map_device(facts.reset.address, 1);
    klog("acpi: %u cores, %s, %s, %s, %s", facts.cpu_count,
         facts.hpet_address != 0 ? "HPET" : "no HPET",
         facts.ecam_address != 0 ? "PCIe configuration space" : "PCI by ports",
         facts.reset.address != 0 ? "reset register" : "no reset register",
         facts.has_s5 ? "power-off" : "no power-off");
}
