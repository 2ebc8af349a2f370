/* SPDX-License-Identifier: Apache-2.0
 *
 * What whoever started the image told it, in one form for every way of booting. Written before
 * paging, read for the rest of the life; it holds no pointers.
 */
#ifndef DUCKOS_HANDOVER_H
#define DUCKOS_HANDOVER_H

#include "memory/map.h"
#include "param.h"

#include <stdbool.h>
#include <stdint.h>

/* boot/head.S knows these numbers. */
enum handover_kind { HANDOVER_LINUX = 0, HANDOVER_MULTIBOOT = 1, HANDOVER_EFI = 2 };

struct handover_screen {
    uint64_t address;       /* 0 = none; the first pixel or, for text, the first character */
    uint32_t width, height; /* pixels, or characters */
    uint32_t pitch_bytes;
    bool text; /* VGA text mode; else 32 bits per pixel */
};

struct handover {
    uint32_t kind; /* enum handover_kind */
    uint64_t image_physical;
    uint64_t acpi_root; /* physical; 0 = search where BIOSes put it */
    struct handover_screen screen;
    char command_line[OPTIONS_COMMAND_LINE_BYTES];
    struct memory_ranges usable;
    struct memory_ranges reserved; /* what the firmware lists as anything else */
};

extern struct handover handover;
const char *handover_name(void); /* "BIOS or Linux loader", ... */

/* ---- before paging: code that must not need its final address -------------------------------- */
void handover_read_linux(const uint8_t *boot_params);
void handover_read_multiboot(const uint8_t *information);
void handover_set_command_line(const char *text);

/* boot/efi.c: leaves boot services and calls early_entry, or returns an EFI status. */
uint64_t efi_start(void *image_handle, void *system_table);
_Noreturn void efi_leave(void);

/* boot/early.c */
_Noreturn void early_entry(uint32_t kind, uint64_t pointer, uint64_t image_physical);
_Noreturn void early_jump(uint64_t root, uint8_t *stack, void (*main)(void));

/* boot/quiet.c: stops the DMA of every network device that the firmware left running. */
void quiet_network_devices(void);

#endif
