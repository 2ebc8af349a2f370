/* SPDX-License-Identifier: Apache-2.0
 *
 * The first C code: turns what the starter left into `handover`, builds the OS's page tables and
 * goes over to them. It runs at the image's physical address, on identity-mapped memory, so nothing
 * here may keep a pointer to the image for later.
 */
#include "boot/handover.h"
#include "console/serial.h"
#include "cpu/cpu.h"
#include "cpu/port.h"
#include "main.h"
#include "memory/arena.h"
#include "memory/image.h"

#define STOP_PORT_WRITES 10000000u /* about a microsecond each */

/* There is no console and no clock yet; a machine that nobody watches should try again. */
static _Noreturn void stop(const char *why) {
    serial_write("duckos can't start: ");
    serial_write(why);
    serial_write("\r\n");
    for (uint32_t i = 0; i < STOP_PORT_WRITES; i++) port_out_8(0x80, 0);
    port_out_8(0xcf9, 0x02); /* Intel chipsets: full reset */
    port_out_8(0xcf9, 0x06);
    for (;;) __asm__ volatile("cli; hlt");
}

/* ---- UEFI: temporary page tables ------------------------------------------------------------- */
/* The firmware's tables lie in memory that is ours now and may become the arena: off them first. As
 * on BIOS, four GiB in pages of 2 MiB, identity; and the GiB of the image, if that is higher. */
#define TABLE_ENTRIES 512u
#define LOW_GIBS 4u
#define GIBS_MAX TABLE_ENTRIES
#define PRESENT_WRITE 3ull
#define PRESENT_WRITE_LARGE 0x83ull
#define CR4_FIVE_LEVELS (1ull << 12)

extern uint64_t boot_tables[8][TABLE_ENTRIES];

static void fill_gib(uint64_t *table, uint64_t gib) {
    for (uint64_t i = 0; i < TABLE_ENTRIES; i++)
        table[i] = (gib << 30) + (i << 21) + PRESENT_WRITE_LARGE;
    boot_tables[1][gib] = (uint64_t)table | PRESENT_WRITE;
}

static void leave_firmware_tables(uint64_t image_physical) {
    uint64_t cr4, gib = image_physical >> 30;
    __asm__ volatile("movq %%cr4, %0" : "=r"(cr4));
    if ((cr4 & CR4_FIVE_LEVELS) != 0) stop("the firmware runs on five-level page tables");
    if (gib + 1 >= GIBS_MAX) stop("the firmware put the image above 510 GiB");
    for (uint32_t i = 0; i < TABLE_ENTRIES; i++) boot_tables[0][i] = boot_tables[1][i] = 0;
    boot_tables[0][0] = (uint64_t)boot_tables[1] | PRESENT_WRITE;
    for (uint32_t i = 0; i < LOW_GIBS; i++) fill_gib(boot_tables[2 + i], i);
    for (uint32_t i = 0; i < 2; i++)
        if (gib + i >= LOW_GIBS) fill_gib(boot_tables[2 + LOW_GIBS + i], gib + i);
    cpu_use_tables((uint64_t)boot_tables);
}

_Noreturn void early_entry(uint32_t kind, uint64_t pointer, uint64_t image_physical) {
    serial_init();
    quiet_network_devices();
    handover.kind = kind;
    handover.image_physical = image_physical;
    if (kind == HANDOVER_LINUX) handover_read_linux((const uint8_t *)pointer);
    if (kind == HANDOVER_MULTIBOOT) handover_read_multiboot((const uint8_t *)pointer);
    if (kind == HANDOVER_EFI) leave_firmware_tables(image_physical);
    uint64_t root;
    uint8_t *stack;
    const char *problem = memory_build(&root, &stack);
    if (problem != NULL) stop(problem);
    cpu_allow_page_rights();
    uint64_t main_at = IMAGE_BASE + (uint64_t)((const uint8_t *)&duckos_main - image_start);
    early_jump(root, stack, (void (*)(void))main_at);
}
