/* SPDX-License-Identifier: Apache-2.0
 *
 * Pure reading of ACPI tables: bytes in, facts out, nothing trusted. Sections cited are of the ACPI
 * specification 6.4. Tested on the host with malformed tables.
 */
#ifndef DUCKOS_ACPI_TABLES_H
#define DUCKOS_ACPI_TABLES_H

#include "param.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A register in memory or I/O space (5.2.3.2 Generic Address Structure). */
enum acpi_space { ACPI_SPACE_MEMORY = 0, ACPI_SPACE_PORT = 1 };
struct acpi_register {
    uint64_t address; /* 0 = there is none */
    uint8_t space;    /* enum acpi_space */
    uint8_t bits;
};

struct acpi_facts {
    /* MADT (5.2.12) */
    uint64_t lapic_address;
    uint32_t cpu_count;
    uint32_t cpu_skipped; /* enabled ones that are too many */
    uint32_t apic_id[CPU_MAX];
    uint32_t io_apic_count;
    uint64_t io_apic_address[ACPI_IO_APICS_MAX];
    /* HPET */
    uint64_t hpet_address;
    /* MCFG: configuration space of PCI segment 0; address 0 = only ports 0xCF8/0xCFC */
    uint64_t ecam_address; /* of bus 0 */
    uint8_t ecam_first_bus, ecam_last_bus;
    /* FADT (5.2.9) */
    struct acpi_register reset;
    uint8_t reset_value;
    struct acpi_register pm_timer; /* 3.579545 MHz */
    bool pm_timer_32_bit;
    /* Status, and in its second half enable; address 0 = none. */
    struct acpi_register pm1a_event, pm1b_event;
    uint8_t pm1_event_bytes; /* of each */
    struct acpi_register pm1a_control, pm1b_control;
    bool has_power_button; /* the fixed one, in pm1a_event */
    uint16_t smi_command;
    uint8_t acpi_enable;
    uint64_t dsdt_address;
    /* DSDT: \_S5 */
    bool has_s5;
    uint8_t s5_type_a, s5_type_b;
};

#define ACPI_HEADER_BYTES 36u

/* The root pointer (5.2.5.3): true when `bytes` hold a valid one; *xsdt or *rsdt are set. */
bool acpi_read_root(const uint8_t *bytes, size_t room, uint64_t *xsdt, uint64_t *rsdt);

/* Length of a table from its header, or 0 when the header can't be right. */
uint32_t acpi_table_bytes(const uint8_t header[ACPI_HEADER_BYTES]);

/* Physical addresses of the tables that an RSDT or XSDT lists: returns their count. */
uint32_t acpi_read_list(const uint8_t *table, size_t bytes, uint64_t *out, uint32_t out_max);

/* Adds what the table tells to `facts`; unknown tables are skipped. False: the table is broken. */
bool acpi_read_table(const uint8_t *table, size_t bytes, struct acpi_facts *facts);

#endif
