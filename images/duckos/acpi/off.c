/* SPDX-License-Identifier: Apache-2.0
 *
 * Reset and power-off (ACPI 4.8.3.6 and 16.1.7). Must work in a panic: no lock, no allocation.
 */
#include "acpi/acpi.h"
#include "cpu/port.h"
#include "cpu/trap.h"
#include "memory/memory.h"
#include "time/timer.h"

#define TRY_NS 50000000ull
#define SLEEP_ENABLE (1u << 13)
#define SLEEP_TYPE_SHIFT 10u
#define SCI_ENABLE 1u
#define PM1_POWER_BUTTON (1u << 8) /* 4.8.3.1: PWRBTN_STS */
#define RESET_CONTROL 0xcf9u       /* Intel chipsets: full reset */
#define KEYBOARD_COMMAND 0x64u
#define KEYBOARD_PULSE_RESET 0xfeu

static void write_byte(const struct acpi_register *to, uint8_t value) {
    if (to->space == ACPI_SPACE_PORT)
        port_out_8((uint16_t)to->address, value);
    else
        *(volatile uint8_t *)memory_map_device(to->address, 1) = value;
}

_Noreturn void acpi_reset(void) {
    interrupts_off();
    const struct acpi_facts *facts = acpi_facts();
    if (facts->reset.address != 0) {
        write_byte(&facts->reset, facts->reset_value);
        timer_wait_ns(TRY_NS);
    }
    port_out_8(RESET_CONTROL, 0x02);
    port_out_8(RESET_CONTROL, 0x06);
    timer_wait_ns(TRY_NS);
    port_out_8(KEYBOARD_COMMAND, KEYBOARD_PULSE_RESET);
    timer_wait_ns(TRY_NS);
    const struct {
        uint16_t limit;
        uint64_t base;
    } __attribute__((packed)) empty = {0, 0};
    __asm__ volatile("lidt %0; ud2" ::"m"(empty)); /* no handler for anything: triple fault */
    __builtin_unreachable();
}

/* In legacy mode (a BIOS that nobody told of ACPI) the sleep bits go to nobody. */
static void enable_acpi(const struct acpi_facts *facts, uint16_t control) {
    if ((port_in_16(control) & SCI_ENABLE) != 0 || facts->smi_command == 0) return;
    port_out_8(facts->smi_command, facts->acpi_enable);
    timer_wait_ns(TRY_NS);
}

static uint16_t button_port; /* PM1 status; 0 = not watched */

bool acpi_power_button_pressed(void) {
    return button_port != 0 && (port_in_16(button_port) & PM1_POWER_BUTTON) != 0;
}

void acpi_watch_power_button(void) {
    const struct acpi_facts *facts = acpi_facts();
    const struct acpi_register *event = &facts->pm1a_event, *control = &facts->pm1a_control;
    bool ports = event->space == ACPI_SPACE_PORT && control->space == ACPI_SPACE_PORT;
    if (!facts->has_power_button || facts->pm1_event_bytes < 4 || !ports || event->address == 0 ||
        control->address == 0)
        return;
    enable_acpi(facts, (uint16_t)control->address);
    if ((port_in_16((uint16_t)control->address) & SCI_ENABLE) == 0) return;
    button_port = (uint16_t)event->address;
    port_out_16(button_port, PM1_POWER_BUTTON); /* writing one clears: presses so far don't count */
    /* Enabled, or some chipsets do not note it; the interrupt that it asks for is masked. */
    uint16_t enable = (uint16_t)(button_port + facts->pm1_event_bytes / 2);
    port_out_16(enable, (uint16_t)(port_in_16(enable) | PM1_POWER_BUTTON));
}

/* An enabled event whose status is set when the machine goes to sleep wakes it at once: the press
 * that switches off would switch on again. In S5 the button works without its enable bit. */
static void forget_events(const struct acpi_facts *facts, const struct acpi_register *event) {
    if (event->address == 0 || event->space != ACPI_SPACE_PORT || facts->pm1_event_bytes < 4)
        return;
    uint16_t status = (uint16_t)event->address;
    uint16_t enable = (uint16_t)(status + facts->pm1_event_bytes / 2);
    port_out_16(enable, port_in_16(enable) & (uint16_t)~PM1_POWER_BUTTON);
    port_out_16(status, UINT16_MAX); /* ones clear */
}

/* 16.1.7: the type of sleep first, and only then, with the same type, "now". */
static void enter_s5(const struct acpi_facts *facts) {
    const struct acpi_register *a = &facts->pm1a_control, *b = &facts->pm1b_control;
    bool has_b = b->address != 0 && b->space == ACPI_SPACE_PORT;
    uint16_t keep =
        port_in_16((uint16_t)a->address) & (uint16_t)~(7u << SLEEP_TYPE_SHIFT | SLEEP_ENABLE);
    uint16_t type_a = (uint16_t)(keep | facts->s5_type_a << SLEEP_TYPE_SHIFT);
    uint16_t type_b = (uint16_t)(facts->s5_type_b << SLEEP_TYPE_SHIFT);
    port_out_16((uint16_t)a->address, type_a);
    if (has_b) port_out_16((uint16_t)b->address, type_b);
    port_out_16((uint16_t)a->address, (uint16_t)(type_a | SLEEP_ENABLE));
    if (has_b) port_out_16((uint16_t)b->address, (uint16_t)(type_b | SLEEP_ENABLE));
}

_Noreturn void acpi_power_off(void) {
    interrupts_off();
    const struct acpi_facts *facts = acpi_facts();
    const struct acpi_register *control = &facts->pm1a_control;
    if (facts->has_s5 && control->address != 0 && control->space == ACPI_SPACE_PORT) {
        enable_acpi(facts, (uint16_t)control->address);
        forget_events(facts, &facts->pm1a_event);
        forget_events(facts, &facts->pm1b_event);
        enter_s5(facts);
        timer_wait_ns(TRY_NS);
    }
    acpi_reset();
}
