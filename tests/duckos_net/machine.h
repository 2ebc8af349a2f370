/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine below the drivers, in user space: a clock that only moves when it is looked at,
 * memory, PCI configuration space, and devices whose registers are functions. The drivers' own
 * sources run on it unchanged (DUCKOS_REGISTER_MODEL).
 */
#ifndef DUCKOS_TEST_MACHINE_H
#define DUCKOS_TEST_MACHINE_H

#include "check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MACHINE_DEVICE_COUNT_MAX 16u
#define MACHINE_ECAM 0x1000000000ull /* where ACPI says that configuration space lies */

struct machine_device {
    uint8_t bus, slot, function;
    bool present;
    uint8_t config[4096];
    uint64_t bar_bytes[6]; /* 0 = no such BAR */
    uint32_t bar_flags[6]; /* the low four bits */
    unsigned mapped_bar;   /* whose registers the functions below are */
    uint8_t *window;       /* an address range for that BAR; never read or written itself */
    void *context;
    uint32_t (*read)(void *context, uint32_t offset, unsigned bytes);
    void (*write)(void *context, uint32_t offset, unsigned bytes, uint32_t value);
    bool vanished; /* reads as all ones, as after a lost PCIe link */
};

void machine_reset(void); /* no devices, time 1 s, memory given back, options and log forgotten */
struct machine_device *machine_plug(uint8_t bus, uint8_t slot, uint8_t function, uint16_t vendor,
                                    uint16_t device, uint16_t class_code);
/* A memory BAR of `bytes` with registers behind it; `wide`: 64-bit, mapped above 4 GiB. */
void machine_registers(struct machine_device *device, unsigned bar, uint64_t bytes, bool wide);
/* Adds a capability at `at` and links it in as the first. */
void machine_capability(struct machine_device *device, uint8_t at, uint8_t id);
/* Memory that the device reads or writes: only with bus mastering and memory decoding on. */
void *machine_dma(struct machine_device *device, uint64_t address);
bool machine_is_master(const struct machine_device *device);

void machine_use_ecam(bool use); /* what acpi_facts tells */
void machine_sleep_ns(uint64_t ns);
uint64_t machine_now_ns(void);
const char *machine_log(void);               /* the last lines that klog got */
const char *machine_option(const char *key); /* what options_set got, or NULL */
extern bool machine_panicked;
extern uint64_t machine_arena_bytes;

static inline uint16_t config16(const struct machine_device *device, unsigned at) {
    return (uint16_t)(device->config[at] | device->config[at + 1] << 8);
}
static inline void set_config16(struct machine_device *device, unsigned at, uint16_t value) {
    device->config[at] = (uint8_t)value;
    device->config[at + 1] = (uint8_t)(value >> 8);
}

#endif
