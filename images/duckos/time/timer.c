/* SPDX-License-Identifier: Apache-2.0
 *
 * The TSC as clock. How fast it runs is said by CPUID leaf 15h, or measured against the first of
 * HPET, ACPI timer, PIT that is there. The local APIC's timer gives the alarms.
 */
#include "time/timer.h"

#include "acpi/acpi.h"
#include "console/console.h"
#include "cpu/inside.h"
#include "cpu/msr.h"
#include "cpu/port.h"
#include "memory/memory.h"
#include "panic/panic.h"
#include "time/inside.h"

#define NS_PER_SECOND 1000000000ull
#define PM_TIMER_HZ 3579545ull /* ACPI 4.8.2.1 */
#define PIT_HZ 1193182ull
#define REFERENCE_SPINS_MAX 100000000u
#define APIC_COUNT_MAX 0xffffffffull
#define ALARM_NS_MAX (3600 * NS_PER_SECOND)

static uint64_t tsc_hz, tsc_start;
static const char *source;
/* ns = cycles * ns_scale >> SCALE_SHIFT and so on, in 128 bits: no division per call. */
#define SCALE_SHIFT 30u
static uint64_t ns_scale, apic_scale;
static uint64_t cycles_scale = 3ull << SCALE_SHIFT; /* until timer_init: a guess, for panics */

static bool use_deadline;
static uint64_t alarm_ns[CPU_MAX]; /* timer_interrupt_at */
static uint64_t watchdog_ns = UINT64_MAX;

/* ---- reading a second clock ------------------------------------------------------------------ */

struct reference {
    const char *name;
    uint64_t hz, mask;
    uint64_t (*read)(void);
};

/* HPET 1.0a, 2.3: capabilities at 0 (upper half: femtoseconds per tick), configuration at 10h,
 * counter at F0h. */
static volatile uint64_t *hpet;
static uint64_t read_hpet(void) { return hpet[0xf0 / 8]; }

static bool find_hpet(struct reference *out) {
    uint64_t address = acpi_facts()->hpet_address;
    if (address == 0) return false;
    hpet = memory_map_device(address, 1024);
    uint64_t femtoseconds = hpet[0] >> 32, mask = (hpet[0] & 1u << 13) != 0 ? ~0ull : 0xffffffffull;
    if (femtoseconds == 0 || femtoseconds > 100000000) return false; /* 2.3.4 */
    hpet[0x10 / 8] |= 1;
    *out = (struct reference){"HPET", NS_PER_SECOND * 1000000 / femtoseconds, mask, read_hpet};
    return true;
}

static uint64_t read_pm_timer(void) { return port_in_32((uint16_t)acpi_facts()->pm_timer.address); }

static bool find_pm_timer(struct reference *out) {
    const struct acpi_facts *facts = acpi_facts();
    if (facts->pm_timer.address == 0 || facts->pm_timer.space != ACPI_SPACE_PORT) return false;
    uint64_t mask = facts->pm_timer_32_bit ? 0xffffffffull : 0xffffffull;
    *out = (struct reference){"ACPI timer", PM_TIMER_HZ, mask, read_pm_timer};
    return true;
}

/* 8254, channel 2, mode 0: counts 65535 down to 0 once; as a clock that runs for 55 ms. */
static uint64_t read_pit(void) {
    port_out_8(0x43, 0x80); /* latch channel 2 */
    uint64_t low = port_in_8(0x42), high = port_in_8(0x42);
    return 0xffff - (high << 8 | low);
}

static void find_pit(struct reference *out) {
    port_out_8(0x61, (port_in_8(0x61) & 0xfdu) | 1u); /* gate on, speaker off */
    port_out_8(0x43, 0xb0);
    port_out_8(0x42, 0xff);
    port_out_8(0x42, 0xff);
    *out = (struct reference){"PIT", PIT_HZ, 0xffff, read_pit};
}

/* Ticks of `clock` since `start`. */
static uint64_t ticks_since(const struct reference *clock, uint64_t start) {
    return (clock->read() - start) & clock->mask;
}

/* TSC cycles per second; 0 when the clock stands still. */
static uint64_t measure(const struct reference *clock) {
    uint64_t wanted = clock->hz * TIMER_CALIBRATE_NS / NS_PER_SECOND;
    uint64_t start = clock->read(), tsc = timer_cycles(), ticks = 0;
    for (uint32_t i = 0; i < REFERENCE_SPINS_MAX && ticks < wanted; i++)
        ticks = ticks_since(clock, start);
    uint64_t cycles = timer_cycles() - tsc;
    return ticks < wanted ? 0 : cycles * clock->hz / ticks;
}

/* SDM volume 2, CPUID 15h: TSC = crystal * b / a. */
static uint64_t hz_of_cpuid(void) {
    if (cpuid(0, 0).a < 0x15) return 0;
    struct cpuid clock = cpuid(0x15, 0);
    return clock.a == 0 || clock.b == 0 ? 0 : (uint64_t)clock.c * clock.b / clock.a;
}

static void calibrate_tsc(void) {
    struct reference clock;
    tsc_hz = hz_of_cpuid();
    source = "CPUID";
    if (tsc_hz != 0) return;
    if (find_hpet(&clock)) tsc_hz = measure(&clock);
    if (tsc_hz == 0 && find_pm_timer(&clock)) tsc_hz = measure(&clock);
    if (tsc_hz == 0) {
        find_pit(&clock);
        tsc_hz = measure(&clock);
    }
    source = clock.name;
    if (tsc_hz == 0) panic("timer: no clock to measure the TSC against");
}

/* From units of `from` per second to units of `to`; both are less than 2^34. */
static uint64_t scale_between(uint64_t from, uint64_t to) {
    return (to / from << SCALE_SHIFT) + (to % from << SCALE_SHIFT) / from;
}

static uint64_t scaled(uint64_t count, uint64_t scale) {
    return (uint64_t)((unsigned __int128)count * scale >> SCALE_SHIFT);
}

/* ---- the clock ------------------------------------------------------------------------------- */

uint64_t timer_ns_of_cycles(uint64_t cycles) { return scaled(cycles, ns_scale); }
uint64_t timer_cycles_of_ns(uint64_t ns) { return scaled(ns, cycles_scale); }

uint64_t timer_now_ns(void) { return timer_ns_of_cycles(timer_cycles() - tsc_start); }
uint64_t timer_tsc_hz(void) { return tsc_hz; }

void timer_wait_ns(uint64_t ns) {
    uint64_t start = timer_cycles(), cycles = timer_cycles_of_ns(ns);
    while (timer_cycles() - start < cycles) __asm__ volatile("pause");
}

/* ---- alarms ---------------------------------------------------------------------------------- */

static void calibrate_apic_timer(void) {
    apic_timer_mode(false);
    apic_timer_start((uint32_t)APIC_COUNT_MAX);
    timer_wait_ns(TIMER_CALIBRATE_NS);
    uint64_t ticks = APIC_COUNT_MAX - apic_timer_left();
    apic_timer_start(0);
    apic_scale = scale_between(TIMER_CALIBRATE_NS, ticks);
    if (apic_scale == 0) panic("timer: the local APIC's timer stands still");
}

void timer_init_this(void) {
    alarm_ns[cpu_index()] = UINT64_MAX;
    apic_timer_mode(use_deadline);
}

void timer_init(void) {
    calibrate_tsc();
    ns_scale = scale_between(tsc_hz, NS_PER_SECOND);
    cycles_scale = scale_between(NS_PER_SECOND, tsc_hz);
    tsc_start = timer_cycles();
    use_deadline = cpu_features()->tsc_deadline;
    if (!use_deadline) calibrate_apic_timer();
    timer_init_this();
    klog("timer: TSC %zu MHz by %s%s, alarms by %s", (size_t)(tsc_hz / 1000000), source,
         cpu_features()->invariant_tsc ? "" : " (not invariant)",
         use_deadline ? "TSC deadline" : "APIC timer");
}

static uint64_t next_alarm(void) {
    uint64_t own = alarm_ns[cpu_index()];
    return cpu_index() == 0 && watchdog_ns < own ? watchdog_ns : own;
}

/* Far alarms ring early, and are set again then. */
static void set_alarm(void) {
    uint64_t at_ns = next_alarm(), now = timer_now_ns();
    if (use_deadline) {
        apic_timer_deadline(at_ns == UINT64_MAX ? 0 : tsc_start + timer_cycles_of_ns(at_ns));
        return;
    }
    uint64_t left_ns = at_ns > now ? at_ns - now : 0;
    uint64_t ticks = left_ns > ALARM_NS_MAX ? APIC_COUNT_MAX : scaled(left_ns, apic_scale) + 1;
    if (ticks > APIC_COUNT_MAX) ticks = APIC_COUNT_MAX;
    apic_timer_start(at_ns == UINT64_MAX ? 0 : (uint32_t)ticks);
}

void timer_interrupt_at(uint64_t at_ns) {
    uint64_t before = next_alarm();
    alarm_ns[cpu_index()] = at_ns;
    if (next_alarm() != before) set_alarm();
}

void timer_watchdog_at(uint64_t at_ns) {
    watchdog_ns = at_ns;
    set_alarm();
}

void timer_interrupted(const struct trap_frame *frame) {
    uint32_t core = cpu_index();
    if (timer_now_ns() >= alarm_ns[core]) alarm_ns[core] = UINT64_MAX;
    if (core == 0 && timer_now_ns() >= watchdog_ns) watchdog_ns = watchdog_look(frame);
    set_alarm();
}

void timer_sleep_until(uint64_t at_ns) {
    timer_interrupt_at(at_ns);
    /* An alarm that rings before the halt must not be missed: it is taken after `sti; hlt`. */
    interrupts_off();
    if (timer_now_ns() < at_ns) __asm__ volatile("sti; hlt" ::: "memory");
    interrupts_on();
}
