/* SPDX-License-Identifier: Apache-2.0 */
#include "acpi/tables.h"

#include <string.h>

static uint16_t read_16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static uint32_t read_32(const uint8_t *at) {
    return (uint32_t)read_16(at) | (uint32_t)read_16(at + 2) << 16;
}

static uint64_t read_64(const uint8_t *at) {
    return (uint64_t)read_32(at) | (uint64_t)read_32(at + 4) << 32;
}

static bool checksum_right(const uint8_t *table, size_t bytes) {
    uint8_t sum = 0;
    for (size_t i = 0; i < bytes; i++) sum = (uint8_t)(sum + table[i]);
    return sum == 0;
}

uint32_t acpi_table_bytes(const uint8_t header[ACPI_HEADER_BYTES]) {
    uint32_t bytes = read_32(header + 4);
    return bytes >= ACPI_HEADER_BYTES && bytes <= ACPI_TABLE_BYTES_MAX ? bytes : 0;
}

bool acpi_read_root(const uint8_t *bytes, size_t room, uint64_t *xsdt, uint64_t *rsdt) {
    const size_t old_bytes = 20, new_bytes = 36;
    if (room < old_bytes || memcmp(bytes, "RSD PTR ", 8) != 0) return false;
    if (!checksum_right(bytes, old_bytes)) return false;
    *rsdt = read_32(bytes + 16);
    *xsdt = 0;
    bool is_new = bytes[15] >= 2 && room >= new_bytes && read_32(bytes + 20) >= new_bytes;
    if (is_new && checksum_right(bytes, new_bytes)) *xsdt = read_64(bytes + 24);
    return *xsdt != 0 || *rsdt != 0;
}

uint32_t acpi_read_list(const uint8_t *table, size_t bytes, uint64_t *out, uint32_t out_max) {
    if (bytes < ACPI_HEADER_BYTES || !checksum_right(table, bytes)) return 0;
    bool wide = memcmp(table, "XSDT", 4) == 0;
    if (!wide && memcmp(table, "RSDT", 4) != 0) return 0;
    size_t step = wide ? 8 : 4;
    uint32_t count = 0;
    for (size_t at = ACPI_HEADER_BYTES; at + step <= bytes && count < out_max; at += step)
        out[count++] = wide ? read_64(table + at) : read_32(table + at);
    return count;
}

/* ---- MADT (5.2.12): which cores there are ---------------------------------------------------- */
enum {
    MADT_ENTRIES = 44,
    MADT_LAPIC = 0,
    MADT_IO_APIC = 1,
    MADT_LAPIC_ADDRESS = 5,
    MADT_X2APIC = 9,
};
#define CPU_ENABLED 1u

static void add_cpu(struct acpi_facts *facts, uint32_t id, uint32_t flags) {
    if ((flags & CPU_ENABLED) == 0) return;
    for (uint32_t i = 0; i < facts->cpu_count; i++)
        if (facts->apic_id[i] == id) return; /* listed as both kinds */
    if (facts->cpu_count == CPU_MAX)
        facts->cpu_skipped++;
    else
        facts->apic_id[facts->cpu_count++] = id;
}

static bool read_madt(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    if (bytes < MADT_ENTRIES) return false;
    facts->lapic_address = read_32(table + 36);
    for (size_t at = MADT_ENTRIES; at + 2 <= bytes;) {
        const uint8_t *entry = table + at;
        size_t entry_bytes = entry[1];
        if (entry_bytes < 2 || entry_bytes > bytes - at) return false;
        if (entry[0] == MADT_LAPIC && entry_bytes >= 8)
            add_cpu(facts, entry[3], read_32(entry + 4));
        if (entry[0] == MADT_X2APIC && entry_bytes >= 16)
            add_cpu(facts, read_32(entry + 4), read_32(entry + 8));
        if (entry[0] == MADT_IO_APIC && entry_bytes >= 12 &&
            facts->io_apic_count < ACPI_IO_APICS_MAX)
            facts->io_apic_address[facts->io_apic_count++] = read_32(entry + 4);
        if (entry[0] == MADT_LAPIC_ADDRESS && entry_bytes >= 12)
            facts->lapic_address = read_64(entry + 4);
        at += entry_bytes;
    }
    return true;
}

/* ---- HPET, MCFG ------------------------------------------------------------------------------ */

/* 5.2.3.2; a register that is neither memory nor port counts as none. */
static struct acpi_register read_register(const uint8_t *at) {
    struct acpi_register none = {0};
    struct acpi_register found = {read_64(at + 4), at[0], at[1]};
    return found.space > ACPI_SPACE_PORT ? none : found;
}

static bool read_hpet(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    if (bytes < 52) return false;
    struct acpi_register base = read_register(table + 40);
    if (base.space == ACPI_SPACE_MEMORY) facts->hpet_address = base.address;
    return true;
}

/* PCI Firmware Specification 3.0, 4.1.2: entries of 16 bytes from offset 44 on. */
static bool read_mcfg(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    for (size_t at = 44; at + 16 <= bytes; at += 16) {
        const uint8_t *entry = table + at;
        if (read_16(entry + 8) != 0 || entry[10] > entry[11]) continue;
        facts->ecam_address = read_64(entry);
        facts->ecam_first_bus = entry[10];
        facts->ecam_last_bus = entry[11];
        return true;
    }
    return bytes >= 44;
}

/* ---- FADT (5.2.9) ---------------------------------------------------------------------------- */
enum {
    FADT_DSDT = 40,
    FADT_SMI_COMMAND = 48,
    FADT_ACPI_ENABLE = 52,
    FADT_PM1A_EVENT = 56,
    FADT_PM1B_EVENT = 60,
    FADT_PM1A_CONTROL = 64,
    FADT_PM1B_CONTROL = 68,
    FADT_PM_TIMER = 76,
    FADT_PM1_EVENT_BYTES = 88,
    FADT_FLAGS = 112,
    FADT_BYTES_MIN = 116, /* ACPI 1.0 */
    FADT_RESET = 116,
    FADT_RESET_VALUE = 128,
    FADT_X_DSDT = 140,
    FADT_X_PM1A_EVENT = 148,
    FADT_X_PM1B_EVENT = 160,
    FADT_X_PM1A_CONTROL = 172,
    FADT_X_PM1B_CONTROL = 184,
    FADT_X_PM_TIMER = 208,
};
#define FADT_NO_FIXED_POWER_BUTTON (1u << 4)
#define FADT_TIMER_32_BIT (1u << 8)
#define FADT_HAS_RESET (1u << 10)

/* The wide field where it exists and is set, else the port of ACPI 1.0. */
static struct acpi_register fadt_register(const uint8_t *table, size_t bytes, size_t narrow,
                                          size_t wide) {
    if (bytes >= wide + 12) {
        struct acpi_register found = read_register(table + wide);
        if (found.address != 0) return found;
    }
    return (struct acpi_register){read_32(table + narrow), ACPI_SPACE_PORT, 0};
}

static bool read_fadt(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    if (bytes < FADT_BYTES_MIN) return false;
    uint32_t flags = read_32(table + FADT_FLAGS);
    facts->dsdt_address = read_32(table + FADT_DSDT);
    if (bytes >= FADT_X_DSDT + 8 && read_64(table + FADT_X_DSDT) != 0)
        facts->dsdt_address = read_64(table + FADT_X_DSDT);
    facts->smi_command = read_16(table + FADT_SMI_COMMAND);
    facts->acpi_enable = table[FADT_ACPI_ENABLE];
    facts->pm1a_event = fadt_register(table, bytes, FADT_PM1A_EVENT, FADT_X_PM1A_EVENT);
    facts->pm1b_event = fadt_register(table, bytes, FADT_PM1B_EVENT, FADT_X_PM1B_EVENT);
    facts->pm1_event_bytes = table[FADT_PM1_EVENT_BYTES];
    facts->has_power_button = (flags & FADT_NO_FIXED_POWER_BUTTON) == 0;
    facts->pm1a_control = fadt_register(table, bytes, FADT_PM1A_CONTROL, FADT_X_PM1A_CONTROL);
    facts->pm1b_control = fadt_register(table, bytes, FADT_PM1B_CONTROL, FADT_X_PM1B_CONTROL);
    facts->pm_timer = fadt_register(table, bytes, FADT_PM_TIMER, FADT_X_PM_TIMER);
    facts->pm_timer_32_bit = (flags & FADT_TIMER_32_BIT) != 0;
    if ((flags & FADT_HAS_RESET) != 0 && bytes > FADT_RESET_VALUE) {
        facts->reset = read_register(table + FADT_RESET);
        facts->reset_value = table[FADT_RESET_VALUE];
    }
    return true;
}

/* ---- DSDT: \_S5 ------------------------------------------------------------------------------ */
/* Name (\_S5, Package () {SLP_TYPa, SLP_TYPb, ...}): found by its bytes, without an AML interpreter
 * (20.2: NameOp 08, PackageOp 12, PkgLength of 1 to 4 bytes, count, elements). */
enum { AML_NAME = 0x08, AML_BYTE = 0x0a, AML_PACKAGE = 0x12, AML_ZERO = 0, AML_ONE = 1 };

/* One small constant at *at: true and its value. */
static bool read_aml_byte(const uint8_t *table, size_t bytes, size_t *at, uint8_t *value) {
    if (*at >= bytes) return false;
    uint8_t first = table[(*at)++];
    *value = first;
    if (first == AML_ZERO || first == AML_ONE) return true;
    if (first != AML_BYTE || *at >= bytes) return false;
    *value = table[(*at)++];
    return true;
}

static bool read_s5_at(const uint8_t *table, size_t bytes, size_t at, struct acpi_facts *facts) {
    if (at + 2 >= bytes || table[at] != AML_PACKAGE) return false;
    at += 2 + (table[at + 1] >> 6); /* the two top bits: how many more bytes of PkgLength */
    if (at >= bytes || table[at] < 2) return false;
    at++;
    return read_aml_byte(table, bytes, &at, &facts->s5_type_a) &&
           read_aml_byte(table, bytes, &at, &facts->s5_type_b);
}

static bool read_dsdt(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    for (size_t at = ACPI_HEADER_BYTES + 2; at + 4 <= bytes && !facts->has_s5; at++) {
        if (memcmp(table + at, "_S5_", 4) != 0) continue;
        bool named =
            table[at - 1] == AML_NAME || (table[at - 1] == '\\' && table[at - 2] == AML_NAME);
        facts->has_s5 = named && read_s5_at(table, bytes, at + 4, facts);
    }
    return true;
}

bool acpi_read_table(const uint8_t *table, size_t bytes, struct acpi_facts *facts) {
    if (bytes < ACPI_HEADER_BYTES || !checksum_right(table, bytes)) return false;
    if (memcmp(table, "APIC", 4) == 0) return read_madt(table, bytes, facts);
    if (memcmp(table, "HPET", 4) == 0) return read_hpet(table, bytes, facts);
    if (memcmp(table, "MCFG", 4) == 0) return read_mcfg(table, bytes, facts);
    if (memcmp(table, "FACP", 4) == 0) return read_fadt(table, bytes, facts);
    if (memcmp(table, "DSDT", 4) == 0) return read_dsdt(table, bytes, facts);
    return true;
}
