/* SPDX-License-Identifier: Apache-2.0
 *
 * Temperature and clock, where the silicon tells (SDM volume 3, 15.4 and 15.8). QEMU has none of
 * these registers, so nothing here has been seen working yet.
 */
#include "cpu/power.h"
#include "console/console.h"
#include "cpu/cpu.h"
#include "cpu/inside.h"
#include "cpu/msr.h"

#define READING_VALID (1ull << 31)
#define NO_SENSOR INT32_MIN
#define HWP_ON 1ull
#define PERFORMANCE_MAX_PREFERENCE 0ull /* HWP request bits 24..31: 0 = performance */

static uint64_t throttle_celsius; /* TjMax: the sensor counts down from it; 0 = unknown */
int32_t cpu_temperature_mc(void) {
    uint64_t status;
    if (throttle_celsius == 0 || !msr_try_read(MSR_THERM_STATUS, &status)) return NO_SENSOR;
    if ((status & READING_VALID) == 0) return NO_SENSOR;
    return ((int32_t)throttle_celsius - (int32_t)(status >> 16 & 0x7f)) * 1000;
}

/* Highest performance, all the time: the firmware's default may be the base clock. */
static const char *run_fast(void) {
    uint64_t capabilities, ratio;
    if (cpu_features()->hwp && msr_try_write(MSR_PM_ENABLE, HWP_ON) &&
        msr_try_read(MSR_HWP_CAPABILITIES, &capabilities)) {
        uint64_t highest = capabilities & 0xff;
        uint64_t request = highest | highest << 8 | PERFORMANCE_MAX_PREFERENCE << 24;
        if (msr_try_write(MSR_HWP_REQUEST, request)) return "hardware-controlled, highest";
    }
    bool has_speed_step = (cpuid(1, 0).c >> 7 & 1u) != 0;
    if (has_speed_step && msr_try_read(MSR_TURBO_RATIO_LIMIT, &ratio) && (ratio & 0xff) != 0 &&
        msr_try_write(MSR_PERF_CONTROL, (ratio & 0xff) << 8))
        return "turbo ratio of one core";
    return "not controllable";
}

static void power_init_this(void *nothing) {
    (void)nothing;
    run_fast();
}

void power_init(void) {
    uint64_t target;
    if (cpu_features()->thermal_sensor && msr_try_read(MSR_TEMPERATURE_TARGET, &target))
        throttle_celsius = target >> 16 & 0xff;
    const char *clock = run_fast();
    for (uint32_t core = 1; core < cpu_count(); core++)
        if (!cpu_run(core, power_init_this, NULL))
            klog("cpu: core %u keeps the firmware's clock", core);
    int32_t temperature = cpu_temperature_mc();
    if (temperature == NO_SENSOR)
        klog("cpu: clock %s; no temperature sensor", clock);
    else
        klog("cpu: clock %s; %d degrees Celsius", clock, temperature / 1000);
}
