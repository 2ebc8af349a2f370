/* SPDX-License-Identifier: Apache-2.0
 *
 * Random and mutated ACPI tables, each in a block of exactly its size.
 * Usage: fuzz_tables SEED COUNT
 */
#include "acpi/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint32_t next(uint32_t below) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull) >> 33) % below;
}

static void set_checksum(uint8_t *table, size_t bytes, size_t at) {
    uint8_t sum = 0;
    if (at >= bytes) return;
    table[at] = 0;
    for (size_t i = 0; i < bytes; i++) sum = (uint8_t)(sum + table[i]);
    table[at] = (uint8_t)-sum;
}

/* Bytes that the readers look for, so that they get far. */
static void fill(uint8_t *table, size_t bytes) {
    static const char names[6][5] = {"APIC", "HPET", "MCFG", "FACP", "DSDT", "XSDT"};
    for (size_t i = 0; i < bytes; i++) table[i] = (uint8_t)next(next(2) ? 256 : 12);
    if (bytes >= 4) memcpy(table, names[next(6)], 4);
    for (size_t i = 36; i + 8 < bytes; i += 1 + next(64))
        memcpy(table + i, next(2) ? "\x08_S5_\x12\x06\x04" : "\x00\x08\x01\x01\x01\x00\x00\x00", 8);
    if (next(8) != 0) set_checksum(table, bytes, 9);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    state = strtoull(arguments[1], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    unsigned long rounds = strtoul(arguments[2], NULL, 10), right = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        size_t bytes = next(next(4) ? 128 : 600);
        uint8_t *table = malloc(bytes == 0 ? 1 : bytes);
        struct acpi_facts facts = {0};
        uint64_t list[8], xsdt, rsdt;
        fill(table, bytes);
        if (bytes >= ACPI_HEADER_BYTES) (void)acpi_table_bytes(table);
        right += acpi_read_table(table, bytes, &facts);
        if (acpi_read_list(table, bytes, list, 8) > 8) abort();
        if (bytes >= 36 && next(2)) {
            memcpy(table, "RSD PTR ", 8);
            set_checksum(table, 20, 8);
        }
        (void)acpi_read_root(table, bytes, &xsdt, &rsdt);
        if (facts.cpu_count > CPU_MAX) abort();
        free(table);
    }
    printf("read %lu of %lu\n", right, rounds);
    return right == 0; /* a fuzzer whose tables are all refused proves nothing */
}
