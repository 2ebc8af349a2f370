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

_Noreturn void early_entry(uint32_t kind, uint64_t pointer, uint64_t image_physical) {
    serial_init();
    quiet_network_devices();
    handover.kind = kind;
    handover.image_physical = image_physical;
    if (kind == HANDOVER_LINUX) handover_read_linux((const uint8_t *)pointer);
    if (kind == HANDOVER_MULTIBOOT) handover_read_multiboot((const uint8_t *)pointer);
    uint64_t root;
    uint8_t *stack;
    const char *problem = memory_build(&root, &stack);
    if (problem != NULL) stop(problem);
    cpu_allow_page_rights();
    uint64_t main_at = IMAGE_BASE + (uint64_t)((const uint8_t *)&duckos_main - image_start);
    early_jump(root, stack, (void (*)(void))main_at);
}
