/* SPDX-License-Identifier: Apache-2.0
 *
 * duckos, from paging on: the boot as one list. What came before: boot/head.S, boot/early.c.
 */
#include "main.h"

#include "acpi/acpi.h"
#include "boot/handover.h"
#include "boot/options.h"
#include "console/console.h"
#include "cpu/cpu.h"
#include "cpu/power.h"
#include "cpu/trap.h"
#include "duck_main.h"
#include "memory/memory.h"
#include "time/timer.h"
#include "time/watchdog.h"

static void say_hello(void) {
    const char *version = options_text("version"), *build = options_text("build");
    klog("duckos %s%s%s, started by %s at %p", version == NULL ? "of no fleet" : version,
         build == NULL ? "" : " build ", build == NULL ? "" : build, handover_name(),
         (const void *)handover.image_physical);
}

static void obey_poll_option(void) { cpu_wait_by_halting(options_is("poll", "hlt")); }

void duckos_main(void) {
    console_init();         /* serial port, screen */
    options_init();         /* command line, config block */
    console_obey_options(); /* console=... */
    say_hello();
    cpu_init_first();   /* features, GDT, IDT, TSS, vector state, local APIC */
    memory_init();      /* takes the first mapping away, tells what there is */
    acpi_init();        /* cores, timers, PCI Express, reset, power-off */
    timer_init();       /* TSC against HPET, ACPI timer or PIT */
    obey_poll_option(); /* idle cores spin or halt */
    cpu_start_others(); /* INIT-SIPI-SIPI */
    power_init();       /* full clock, temperature sensor */
    acpi_watch_power_button();
    interrupts_on();
    watchdog_start(); /* from here on, a hanging loop reboots */
    klog("duckos: up after %zu us", (size_t)(timer_now_ns() / 1000));
    duck_main(); /* network, then the duck's life */
}
