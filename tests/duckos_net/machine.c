/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include "acpi/acpi.h"
#include "boot/options.h"
#include "console/console.h"
#include "memory/memory.h"
#include "nic/mmio.h"
#include "panic/panic.h"
#include "time/timer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#define BUS_BYTES (1u << 20)
#define ECAM_BUSES 256u
#define TAKEN_MAX 512u
#define LOOK_NS 200u /* what one look at the clock costs */

static struct machine_device devices[MACHINE_DEVICE_COUNT_MAX];
static uint32_t port_address;
static uint8_t *ecam_window;
static struct acpi_facts facts;
static uint64_t now_ns;
static void *taken[TAKEN_MAX];
static unsigned taken_count;
static char log_text[4096];
static char option_text[16][128];
static unsigned option_count;
bool machine_panicked;
uint64_t machine_arena_bytes;

/* Addresses that nothing may touch, aligned to their size as a BAR is. */
static uint8_t *reserve(size_t bytes) {
    uint8_t *at =
        mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    size_t before = (bytes - (uintptr_t)at % bytes) % bytes;
    if (before != 0) munmap(at, before);
    munmap(at + before + bytes, bytes - before);
    return at + before;
}

void machine_reset(void) {
    for (unsigned at = 0; at < MACHINE_DEVICE_COUNT_MAX; at++)
        if (devices[at].window != NULL)
            munmap(devices[at].window, devices[at].bar_bytes[devices[at].mapped_bar]);
    memset(devices, 0, sizeof devices);
    for (unsigned at = 0; at < taken_count; at++) free(taken[at]);
    taken_count = option_count = 0;
    now_ns = 1000000000u;
    log_text[0] = 0;
    machine_panicked = false;
    machine_arena_bytes = 48u << 20;
    if (ecam_window == NULL) ecam_window = reserve((size_t)ECAM_BUSES * BUS_BYTES);
    machine_use_ecam(true);
}

void machine_use_ecam(bool use) {
    facts = (struct acpi_facts){0};
    facts.ecam_address = use ? MACHINE_ECAM : 0;
    facts.ecam_last_bus = 255;
}

struct machine_device *machine_plug(uint8_t bus, uint8_t slot, uint8_t function, uint16_t vendor,
                                    uint16_t device, uint16_t class_code) {
    for (unsigned at = 0; at < MACHINE_DEVICE_COUNT_MAX; at++) {
        struct machine_device *new = &devices[at];
        if (new->present) continue;
        *new = (struct machine_device){
            .bus = bus, .slot = slot, .function = function, .present = true, .mapped_bar = 6};
        set_config16(new, 0x00, vendor);
        set_config16(new, 0x02, device);
        set_config16(new, 0x0a, class_code);
        return new;
    }
    CHECK(!"too many devices");
    return NULL;
}

void machine_registers(struct machine_device *device, unsigned bar, uint64_t bytes, bool wide) {
    device->bar_bytes[bar] = bytes;
    device->bar_flags[bar] = wide ? 4 : 0;
    device->mapped_bar = bar;
    device->window = reserve(bytes);
    uint64_t address = (uint64_t)(uintptr_t)device->window;
    memcpy(device->config + 0x10 + 4 * bar, &address, wide ? 8 : 4);
    device->config[0x10 + 4 * bar] |= wide ? 4 : 0;
}

void machine_capability(struct machine_device *device, uint8_t at, uint8_t id) {
    device->config[0x06] |= 0x10;
    device->config[at] = id;
    device->config[at + 1] = device->config[0x34];
    device->config[0x34] = at;
}

bool machine_is_master(const struct machine_device *device) {
    return (config16(device, 4) & 6) == 6;
}

void *machine_dma(struct machine_device *device, uint64_t address) {
    CHECK(machine_is_master(device)); /* else the access never reaches memory */
    CHECK(address != 0);
    return (void *)(uintptr_t)address;
}

/* ---- configuration space --------------------------------------------------------------------- */
static struct machine_device *find(uint8_t bus, uint8_t slot, uint8_t function) {
    for (unsigned at = 0; at < MACHINE_DEVICE_COUNT_MAX; at++) {
        struct machine_device *device = &devices[at];
        if (device->present && device->bus == bus && device->slot == slot &&
            device->function == function)
            return device;
    }
    return NULL;
}

static uint32_t config_get(uint32_t function, uint32_t offset) {
    struct machine_device *device =
        find((uint8_t)(function >> 8), function >> 3 & 31, function & 7);
    uint32_t value = UINT32_MAX;
    if (device != NULL && !device->vanished) memcpy(&value, device->config + offset, 4);
    return value;
}

/* A BAR keeps its low bits and those below its size. */
static uint32_t bar_value(const struct machine_device *device, unsigned bar, uint32_t value) {
    bool high_half = bar > 0 && device->bar_bytes[bar - 1] != 0 && device->bar_flags[bar - 1] == 4;
    uint64_t bytes = device->bar_bytes[high_half ? bar - 1 : bar];
    if (bytes == 0) return 0;
    if (high_half) return value & (uint32_t)(~(bytes - 1) >> 32);
    return (value & (uint32_t)~(bytes - 1)) | device->bar_flags[bar];
}

static void config_put(uint32_t function, uint32_t offset, uint32_t value) {
    struct machine_device *device =
        find((uint8_t)(function >> 8), function >> 3 & 31, function & 7);
    if (device == NULL || offset < 4 || (offset >= 0x08 && offset < 0x10)) return;
    if (offset >= 0x10 && offset < 0x28 && device->config[0x0e] == 0) {
        CHECK((config16(device, 4) & 2) == 0); /* nobody moves a BAR that is decoded */
        value = bar_value(device, (offset - 0x10) / 4, value);
    }
    if (offset == 4) {
        uint16_t status = (uint16_t)(config16(device, 6) & ~(value >> 16 & 0xf900u));
        value = (value & 0xffffu) | (uint32_t)status << 16;
    }
    memcpy(device->config + offset, &value, 4);
}

uint32_t port_read32(uint16_t port) {
    CHECK_EQUAL(0xcfc, port);
    return config_get(port_address >> 8 & 0xffff, port_address & 0xfc);
}

void port_write32(uint16_t port, uint32_t value) {
    if (port == 0xcf8) {
        CHECK(value >> 31 == 1);
        port_address = value;
        return;
    }
    CHECK_EQUAL(0xcfc, port);
    config_put(port_address >> 8 & 0xffff, port_address & 0xfc, value);
}

/* ---- registers ------------------------------------------------------------------------------- */
static struct machine_device *owner(const volatile void *at, uint32_t *offset) {
    for (unsigned index = 0; index < MACHINE_DEVICE_COUNT_MAX; index++) {
        struct machine_device *device = &devices[index];
        if (device->window == NULL) continue;
        size_t inside = (size_t)((uintptr_t)at - (uintptr_t)device->window);
        if (inside >= device->bar_bytes[device->mapped_bar]) continue;
        CHECK((config16(device, 4) & 2) != 0); /* memory decoding is on */
        *offset = (uint32_t)inside;
        return device;
    }
    CHECK(!"a register access outside of every device");
    return NULL;
}

static bool in_ecam(const volatile void *at, uint32_t *offset) {
    size_t inside = (size_t)((uintptr_t)at - (uintptr_t)ecam_window);
    *offset = (uint32_t)inside;
    return inside < (size_t)ECAM_BUSES * BUS_BYTES;
}

static uint32_t read_register(const volatile void *at, unsigned bytes) {
    uint32_t offset;
    if (in_ecam(at, &offset)) return config_get(offset >> 12, offset & 0xfff);
    struct machine_device *device = owner(at, &offset);
    if (device->vanished) return UINT32_MAX;
    return device->read(device->context, offset, bytes);
}

static void write_register(volatile void *at, unsigned bytes, uint32_t value) {
    uint32_t offset;
    if (in_ecam(at, &offset)) {
        config_put(offset >> 12, offset & 0xfff, value);
        return;
    }
    struct machine_device *device = owner(at, &offset);
    if (!device->vanished) device->write(device->context, offset, bytes, value);
}

uint8_t mmio_read8(const volatile void *at) { return (uint8_t)read_register(at, 1); }
uint16_t mmio_read16(const volatile void *at) { return (uint16_t)read_register(at, 2); }
uint32_t mmio_read32(const volatile void *at) { return read_register(at, 4); }
void mmio_write8(volatile void *at, uint8_t value) { write_register(at, 1, value); }
void mmio_write16(volatile void *at, uint16_t value) { write_register(at, 2, value); }
void mmio_write32(volatile void *at, uint32_t value) { write_register(at, 4, value); }

/* ---- what the rest of duckos offers to the network --------------------------------------------
 * */
const struct acpi_facts *acpi_facts(void) { return &facts; }

volatile void *memory_map_device(uint64_t physical, uint64_t bytes) {
    if (physical >= MACHINE_ECAM && physical - MACHINE_ECAM < (uint64_t)ECAM_BUSES * BUS_BYTES)
        return ecam_window + (physical - MACHINE_ECAM);
    (void)bytes;
    return (volatile void *)(uintptr_t)physical;
}

void *memory_take(size_t bytes, size_t align) {
    CHECK(taken_count < TAKEN_MAX && bytes != 0 && (align & (align - 1)) == 0);
    size_t rounded = (bytes + align - 1) / align * align;
    void *memory =
        aligned_alloc(align < 16 ? 16 : align, align < 16 ? (bytes + 15) / 16 * 16 : rounded);
    CHECK(memory != NULL && bytes <= machine_arena_bytes);
    machine_arena_bytes -= bytes;
    memset(memory, 0, bytes);
    taken[taken_count++] = memory;
    return memory;
}

uint64_t memory_arena_left(void) { return machine_arena_bytes; }

uint64_t timer_now_ns(void) { return now_ns += LOOK_NS; }
void timer_wait_ns(uint64_t ns) { now_ns += ns; }
void machine_sleep_ns(uint64_t ns) { now_ns += ns; }
uint64_t machine_now_ns(void) { return now_ns; }

void klog(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    size_t used = strlen(log_text), size = strlen(line);
    if (used + size + 2 > sizeof log_text) used = 0; /* old lines are forgotten */
    memcpy(log_text + used, line, size);
    memcpy(log_text + used + size, "\n", 2);
}
const char *machine_log(void) { return log_text; }

void panic(const char *format, ...) {
    fprintf(stderr, "panic: %s\n", format);
    if (machine_panicked) exit(7); /* a test that expects it runs in a child */
    exit(8);
}

enum option_result options_set(enum option_source source, const char *key, const char *value,
                               size_t bytes) {
    CHECK_EQUAL(OPTION_DHCP, source);
    if (strcmp(key, "fleet_public") == 0) return OPTION_FORBIDDEN;
    if (option_count == 16 || strlen(key) + bytes + 2 > sizeof option_text[0])
        return OPTION_NO_ROOM;
    snprintf(option_text[option_count++], sizeof option_text[0], "%s=%.*s", key, (int)bytes, value);
    return OPTION_OK;
}

const char *machine_option(const char *key) {
    for (unsigned at = option_count; at-- > 0;) {
        size_t size = strlen(key);
        if (strncmp(option_text[at], key, size) == 0 && option_text[at][size] == '=')
            return option_text[at] + size + 1;
    }
    return NULL;
}
