/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading Linux' boot_params and multiboot information. Runs before paging: no tables of pointers.
 */
#include "boot/handover.h"

#include <string.h>

/* Linux x86 boot protocol, "zero page": offsets in struct boot_params. */
enum {
    LINUX_VIDEO_MODE = 0x06,
    LINUX_VIDEO_KIND = 0x0f, /* 1 = VGA text, 0x23 = linear frame buffer, 0x70 = EFI's */
    LINUX_WIDTH = 0x12,
    LINUX_HEIGHT = 0x14,
    LINUX_DEPTH = 0x16,
    LINUX_FRAME_BUFFER = 0x18,
    LINUX_PITCH = 0x24,
    LINUX_FRAME_BUFFER_HIGH = 0x3a,
    LINUX_ACPI_ROOT = 0x70,
    LINUX_E820_COUNT = 0x1e8,
    LINUX_COMMAND_LINE = 0x228,
    LINUX_E820_TABLE = 0x2d0,
    LINUX_E820_MAX = 128,
    E820_BYTES = 20,
    E820_USABLE = 1,
};

/* Multiboot 0.6.96, 3.3: offsets in the information structure. */
enum {
    MULTIBOOT_FLAGS = 0,
    MULTIBOOT_COMMAND_LINE = 16, /* flag 2 */
    MULTIBOOT_MAP_BYTES = 44,    /* flag 6 */
    MULTIBOOT_MAP = 48,
    MULTIBOOT_MAP_BYTES_MAX = 64 << 10,
};

struct handover handover;

static uint16_t read_16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t read_32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t read_64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

void handover_set_command_line(const char *text) {
    size_t bytes = 0;
    while (text != NULL && text[bytes] != 0 && bytes + 1 < sizeof handover.command_line) {
        handover.command_line[bytes] = text[bytes];
        bytes++;
    }
    handover.command_line[bytes] = 0;
}

/* One entry as INT 15h, E820h gives it: base, bytes, kind. */
static void add_e820(const uint8_t *entry) {
    bool usable = read_32(entry + 16) == E820_USABLE;
    memory_ranges_add(usable ? &handover.usable : &handover.reserved, read_64(entry),
                      read_64(entry + 8));
}

static void read_linux_screen(const uint8_t *params) {
    struct handover_screen *screen = &handover.screen;
    uint8_t kind = params[LINUX_VIDEO_KIND];
    if (kind == 1 && (params[LINUX_VIDEO_MODE] == 3 || params[LINUX_VIDEO_MODE] == 2)) {
        *screen = (struct handover_screen){0xb8000, 80, 25, 160, true};
    } else if ((kind == 0x23 || kind == 0x70) && read_16(params + LINUX_DEPTH) == 32) {
        screen->address = read_32(params + LINUX_FRAME_BUFFER) |
                          (uint64_t)read_32(params + LINUX_FRAME_BUFFER_HIGH) << 32;
        screen->width = read_16(params + LINUX_WIDTH);
        screen->height = read_16(params + LINUX_HEIGHT);
        screen->pitch_bytes = read_16(params + LINUX_PITCH);
    }
}

void handover_read_linux(const uint8_t *params) {
    uint32_t count = params[LINUX_E820_COUNT];
    if (count > LINUX_E820_MAX) count = LINUX_E820_MAX;
    for (uint32_t i = 0; i < count; i++) add_e820(params + LINUX_E820_TABLE + i * E820_BYTES);
    handover.acpi_root = read_64(params + LINUX_ACPI_ROOT);
    handover_set_command_line((const char *)(uintptr_t)read_32(params + LINUX_COMMAND_LINE));
    read_linux_screen(params);
}

void handover_read_multiboot(const uint8_t *information) {
    uint32_t flags = read_32(information + MULTIBOOT_FLAGS);
    if ((flags & 1u << 2) != 0)
        handover_set_command_line(
            (const char *)(uintptr_t)read_32(information + MULTIBOOT_COMMAND_LINE));
    if ((flags & 1u << 6) == 0) return;
    const uint8_t *map = (const uint8_t *)(uintptr_t)read_32(information + MULTIBOOT_MAP);
    uint32_t bytes = read_32(information + MULTIBOOT_MAP_BYTES);
    if (bytes > MULTIBOOT_MAP_BYTES_MAX) bytes = MULTIBOOT_MAP_BYTES_MAX;
    for (uint32_t at = 0; at + 4 + E820_BYTES <= bytes;) {
        add_e820(map + at + 4);
        at += read_32(map + at) + 4; /* an entry's size does not count itself */
    }
}

const char *handover_name(void) {
    if (handover.kind == HANDOVER_EFI) return "UEFI";
    return handover.kind == HANDOVER_MULTIBOOT ? "multiboot" : "BIOS";
}
