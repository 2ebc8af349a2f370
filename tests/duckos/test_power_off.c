/* SPDX-License-Identifier: Apache-2.0
 *
 * acpi/off.c on a model of a chipset's power management ports. Usage: test_power_off one|two
 */
#define DUCKOS_PORT_H /* the functions below stand in for cpu/port.h and cpu/trap.h */
#define DUCKOS_TRAP_H
#include "fakes.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { STATUS = 0, ENABLE = 2, CONTROL = 4 };
enum { BUTTON = 1 << 8, WAKE = 1 << 15, SCI = 1, SLEEP = 1 << 13, TYPE_SHIFT = 10 };
enum { BLOCK_A = 0x1800, BLOCK_B = 0x1880, SMI = 0xb2 };

/* One block of events (4.8.3.1) and its control register. */
struct block {
    uint16_t status, enable, control;
    bool asleep;
};
static struct block a, b;
static bool has_b;

static struct block *block_at(uint16_t port, uint16_t *offset) {
    bool in_a = port >= BLOCK_A && port < BLOCK_A + 6;
    CHECK(in_a || (has_b && port >= BLOCK_B && port < BLOCK_B + 6));
    *offset = (uint16_t)(port - (in_a ? BLOCK_A : BLOCK_B));
    return in_a ? &a : &b;
}

/* Asleep with the right type: nothing may be pending that would wake the machine at once. */
static void fall_asleep(struct block *block, uint16_t value, uint16_t type) {
    CHECK((block->control >> TYPE_SHIFT & 7) == type); /* written before, alone */
    CHECK((value >> TYPE_SHIFT & 7) == type);
    CHECK(a.status == 0 && b.status == 0);
    CHECK((a.enable & BUTTON) == 0 && (b.enable & BUTTON) == 0);
    block->asleep = true;
    if (!a.asleep || (has_b && !b.asleep)) return;
    printf("off\n");
    exit(0);
}

static uint16_t port_in_16(uint16_t port) {
    uint16_t offset;
    struct block *block = block_at(port, &offset);
    return offset == STATUS ? block->status : offset == ENABLE ? block->enable : block->control;
}

static void port_out_16(uint16_t port, uint16_t value) {
    uint16_t offset;
    struct block *block = block_at(port, &offset);
    if (offset == STATUS) block->status &= (uint16_t)~value;
    if (offset == ENABLE) block->enable = value;
    if (offset != CONTROL) return;
    if ((value & SLEEP) != 0) fall_asleep(block, value, block == &a ? 7 : 5);
    block->control = value & (uint16_t)~SLEEP;
}

static void port_out_8(uint16_t port, uint8_t value) {
    CHECK(port == SMI && value == 0xa0); /* nothing else: above all no reset */
    a.control |= SCI;
}

static void interrupts_off(void) {}

#include "acpi/off.c"

static struct acpi_facts facts = {
    .pm1a_event = {BLOCK_A + STATUS, ACPI_SPACE_PORT, 32},
    .pm1a_control = {BLOCK_A + CONTROL, ACPI_SPACE_PORT, 16},
    .pm1_event_bytes = 4,
    .has_power_button = true,
    .smi_command = SMI,
    .acpi_enable = 0xa0,
    .has_s5 = true,
    .s5_type_a = 7,
    .s5_type_b = 5,
};
const struct acpi_facts *acpi_facts(void) { return &facts; }
void timer_wait_ns(uint64_t ns) { (void)ns; }
volatile void *memory_map_device(uint64_t physical, uint64_t bytes) {
    (void)physical, (void)bytes;
    return NULL;
}

int main(int count, char **words) {
    has_b = count > 1 && strcmp(words[1], "two") == 0;
    if (has_b) {
        facts.pm1b_event = (struct acpi_register){BLOCK_B + STATUS, ACPI_SPACE_PORT, 32};
        facts.pm1b_control = (struct acpi_register){BLOCK_B + CONTROL, ACPI_SPACE_PORT, 16};
        b = (struct block){.status = WAKE, .enable = BUTTON};
    }
    a.status = BUTTON; /* an old press does not count */
    acpi_watch_power_button();
    CHECK(!acpi_power_button_pressed() && (a.enable & BUTTON) != 0);
    a.status = BUTTON | WAKE;
    CHECK(acpi_power_button_pressed());
    acpi_power_off();
}
