/* SPDX-License-Identifier: Apache-2.0 */
#include "time/watchdog.h"

#include "acpi/acpi.h"
#include "boot/options.h"
#include "console/console.h"
#include "net/net.h"
#include "panic/panic.h"
#include "param.h"
#include "time/inside.h"
#include "time/timer.h"

#define LOOK_NS (WATCHDOG_LIMIT_NS / 5)

uint64_t watchdog_rounds;
static uint64_t rounds_seen, seen_ns;

void watchdog_start(void) {
    if (options_is("watchdog", "off")) {
        klog("watchdog: off");
        return;
    }
    seen_ns = timer_now_ns();
    rounds_seen = watchdog_rounds;
    timer_watchdog_at(seen_ns + LOOK_NS);
}

uint64_t watchdog_look(const struct trap_frame *frame) {
    if (acpi_power_button_pressed()) {
        klog("power button: off");
        (void)net_arm_wake(); /* or Wake-on-LAN would not switch it on again */
        acpi_power_off();
    }
    uint64_t now = timer_now_ns(), rounds = __atomic_load_n(&watchdog_rounds, __ATOMIC_RELAXED);
    if (rounds != rounds_seen) {
        rounds_seen = rounds;
        seen_ns = now;
    } else if (now - seen_ns > WATCHDOG_LIMIT_NS) {
        panic("watchdog: the main loop hangs at %p since %zu ms", (const void *)frame->rip,
              (size_t)((now - seen_ns) / 1000000));
    }
    return now + LOOK_NS;
}
