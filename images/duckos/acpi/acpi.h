/* SPDX-License-Identifier: Apache-2.0
 *
 * What duckos takes from ACPI: cores, timers, PCI Express configuration space, reset, power-off.
 */
#ifndef DUCKOS_ACPI_H
#define DUCKOS_ACPI_H

#include "acpi/tables.h"

#include <stdbool.h>
#include <stdint.h>

void acpi_init(void); /* reads the tables once; without ACPI the facts are empty and said so */
const struct acpi_facts *acpi_facts(void);

_Noreturn void acpi_reset(void);     /* FADT reset register, port 0xCF9, keyboard, triple fault */
_Noreturn void acpi_power_off(void); /* S5; resets where that is not possible */

/* A short press of the power button, or a management controller's "soft off", switches the duck
 * off: main asks for it once, then the watchdog's look polls. */
void acpi_watch_power_button(void);
bool acpi_power_button_pressed(void);

#endif
