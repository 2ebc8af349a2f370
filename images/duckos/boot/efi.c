/* SPDX-License-Identifier: Apache-2.0
 *
 * As a UEFI application (UEFI 2.10): take what only the firmware knows (screen, ACPI, options,
 * memory map), leave boot services, go on as on every other way. Runs at any address: no tables of
 * pointers, and the firmware's functions are found by their offset in its tables.
 */
#include "boot/handover.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define EFI_API __attribute__((ms_abi))
#define EFI_ERROR(status) ((int64_t)(status) < 0)
#define EFI_LOAD_ERROR (1ull << 63 | 1u)
#define EXIT_TRIES 4 /* the map may change between reading it and leaving (7.4.6) */
#define MAP_BYTES_MAX (64u << 10)
#define CONFIGURATION_TABLES_MAX 256u

/* 4.3: the system table, as far as it is used. */
struct efi_system_table {
    uint8_t header[24];
    uint64_t vendor, revision;
    uint64_t console[6];
    uint64_t runtime_services;
    uint8_t *boot_services;
    uint64_t table_count;
    const uint8_t *table; /* 24 bytes each: GUID, pointer */
};
static_assert(offsetof(struct efi_system_table, boot_services) == 96, "UEFI 4.3.1");
static_assert(offsetof(struct efi_system_table, table) == 112, "UEFI 4.3.1");

/* 4.4: offsets in the boot services table, header of 24 bytes included. */
enum {
    BOOT_GET_MEMORY_MAP = 56,
    BOOT_HANDLE_PROTOCOL = 152,
    BOOT_EXIT = 232,
    BOOT_LOCATE_PROTOCOL = 320,
};
typedef uint64_t(EFI_API *get_memory_map)(uint64_t *bytes, void *map, uint64_t *key, uint64_t *step,
                                          uint32_t *version);
typedef uint64_t(EFI_API *exit_boot_services)(void *image, uint64_t key);
typedef uint64_t(EFI_API *handle_protocol)(void *handle, const uint8_t *guid, void **out);
typedef uint64_t(EFI_API *locate_protocol)(const uint8_t *guid, void *registration, void **out);

/* 7.2: one entry of the memory map; entries are `step` bytes apart. */
struct efi_memory {
    uint32_t type, pad;
    uint64_t physical, virtual, pages, attributes;
};
enum { LOADER_CODE = 1, LOADER_DATA, BOOT_CODE, BOOT_DATA, CONVENTIONAL = 7 };

/* 12.9: graphics output. */
struct efi_graphics_mode {
    uint32_t mode_max, mode;
    const uint32_t *information; /* version, width, height, format, masks[4], pixels per line */
    uint64_t information_bytes, frame_buffer, frame_buffer_bytes;
};

/* 9.1: the loaded image's options, UTF-16. */
struct efi_loaded_image {
    uint64_t revision, parent, system_table, device, file_path, reserved;
    uint32_t options_bytes;
    const uint16_t *options;
};
static_assert(offsetof(struct efi_loaded_image, options) == 56, "UEFI 9.1.1");

static const uint8_t graphics_guid[16] = {0xde, 0xa9, 0x42, 0x90, 0xdc, 0x23, 0x38, 0x4a,
                                          0x96, 0xfb, 0x7a, 0xde, 0xd0, 0x80, 0x51, 0x6a};
static const uint8_t loaded_image_guid[16] = {0xa1, 0x31, 0x1b, 0x5b, 0x62, 0x95, 0xd2, 0x11,
                                              0x8e, 0x3f, 0x00, 0xa0, 0xc9, 0x69, 0x72, 0x3b};
static const uint8_t acpi_2_guid[16] = {0x71, 0xe8, 0x68, 0x88, 0xf1, 0xe4, 0xd3, 0x11,
                                        0xbc, 0x22, 0x00, 0x80, 0xc7, 0x3c, 0x88, 0x81};

static uint8_t map[MAP_BYTES_MAX];

/* The function at `offset` of the boot services, as a pointer of any type. */
static void find(const struct efi_system_table *system, uint32_t offset, void *function) {
    memcpy(function, system->boot_services + offset, sizeof(void *));
}

static void find_acpi(const struct efi_system_table *system) {
    for (uint64_t i = 0; i < system->table_count && i < CONFIGURATION_TABLES_MAX; i++) {
        const uint8_t *entry = system->table + i * 24;
        if (memcmp(entry, acpi_2_guid, 16) == 0) memcpy(&handover.acpi_root, entry + 16, 8);
    }
}

static void find_screen(const struct efi_system_table *system) {
    locate_protocol locate;
    find(system, BOOT_LOCATE_PROTOCOL, &locate);
    void *graphics = NULL;
    if (EFI_ERROR(locate(graphics_guid, NULL, &graphics)) || graphics == NULL) return;
    const struct efi_graphics_mode *mode;
    memcpy(&mode, (uint8_t *)graphics + 24, sizeof mode);
    if (mode == NULL || mode->information[3] > 1) return; /* 0 and 1: 32 bits per pixel */
    handover.screen.address = mode->frame_buffer;
    handover.screen.width = mode->information[1];
    handover.screen.height = mode->information[2];
    handover.screen.pitch_bytes = mode->information[8] * 4;
}

static void find_options(const struct efi_system_table *system, void *image) {
    handle_protocol handle;
    find(system, BOOT_HANDLE_PROTOCOL, &handle);
    void *protocol = NULL;
    if (EFI_ERROR(handle(image, loaded_image_guid, &protocol)) || protocol == NULL) return;
    const struct efi_loaded_image *loaded = protocol;
    char text[OPTIONS_COMMAND_LINE_BYTES];
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < loaded->options_bytes / 2 && bytes + 1 < sizeof text; i++) {
        if (loaded->options[i] == 0) break;
        if (loaded->options[i] < 128) text[bytes++] = (char)loaded->options[i];
    }
    text[bytes] = 0;
    handover_set_command_line(text);
}

static bool is_free(uint32_t type) {
    return (type >= LOADER_CODE && type <= BOOT_DATA) || type == CONVENTIONAL;
}

static void take_map(uint64_t bytes, uint64_t step) {
    for (uint64_t at = 0; at + sizeof(struct efi_memory) <= bytes; at += step) {
        struct efi_memory entry;
        memcpy(&entry, map + at, sizeof entry);
        if (is_free(entry.type))
            memory_ranges_add(&handover.usable, entry.physical, entry.pages << 12);
    }
}

uint64_t efi_start(void *image, void *system_table) {
    const struct efi_system_table *system = system_table;
    find_acpi(system);
    find_screen(system);
    find_options(system, image);
    get_memory_map get_map;
    exit_boot_services exit;
    find(system, BOOT_GET_MEMORY_MAP, &get_map);
    find(system, BOOT_EXIT, &exit);
    uint64_t bytes, key, step;
    uint32_t version;
    for (int i = 0; i < EXIT_TRIES; i++) {
        bytes = sizeof map;
        if (EFI_ERROR(get_map(&bytes, map, &key, &step, &version))) return EFI_LOAD_ERROR;
        if (EFI_ERROR(exit(image, key))) continue;
        take_map(bytes, step < sizeof(struct efi_memory) ? sizeof(struct efi_memory) : step);
        efi_leave();
    }
    return EFI_LOAD_ERROR;
}
