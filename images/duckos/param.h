/* SPDX-License-Identifier: Apache-2.0
 *
 * Every limit of duckos' base in one place. Limits of one protocol or one NIC stand in its file.
 */
#ifndef DUCKOS_PARAM_H
#define DUCKOS_PARAM_H

/* ---- processors ------------------------------------------------------------------------------ */
#define CPU_MAX 64u                 /* = DUCK_KERNEL_CORES_MAX; further cores stay asleep */
#define CPU_STACK_BYTES (64u << 10) /* one per core, a guard page below; BearSSL needs < 8 KB */
#define CPU_TRAP_STACK_BYTES (16u << 10) /* each of the stacks that traps and interrupts use */
#define CPU_STATE_BYTES_MAX 4096u /* XSAVE area of x87, SSE and AVX (832 bytes) and some room */
#define CPU_START_LIMIT_NS 1000000000ull /* from SIPI to the core's report */

/* ---- memory ---------------------------------------------------------------------------------- */
#define MEMORY_RANGES_MAX 256u /* of the firmware's map; real UEFI maps have 50 to 200 */
#define MEMORY_PARTS_MAX 32u   /* pieces of the window: holes cost one each */
#define MEMORY_ARENA_BYTES_MIN (8ull << 20)  /* for memory_take: an eighth of the memory ... */
#define MEMORY_ARENA_BYTES_MAX (48ull << 20) /* ... between these two */
#define MEMORY_BYTES_MAX (1ull << 40)        /* ranges above are left alone */
#define PAGING_POOL_PAGES_MIN 128u /* page-table pages for sessions' spaces: 1/1024 of the arena */
#define PAGING_POOL_PAGES_MAX 2048u
#define PAGING_KERNEL_PAGES 192u /* page-table pages of the OS's own space */

/* ---- console and options --------------------------------------------------------------------- */
#define CONSOLE_RING_BYTES (32u << 10)
#define CONSOLE_LINE_BYTES 256u           /* longer lines are cut */
#define CONSOLE_SERIAL_WAIT_SPINS 100000u /* per byte, then the port counts as dead */
#define OPTIONS_MAX 48u
#define OPTIONS_TEXT_BYTES 6144u /* of all keys and values together */
#define OPTIONS_COMMAND_LINE_BYTES 1024u

/* ---- time ------------------------------------------------------------------------------------ */
#define TIMER_CALIBRATE_NS 10000000ull
#define WATCHDOG_LIMIT_NS 10000000000ull /* the main loop silent for so long: reboot */
#define PANIC_REBOOT_NS 10000000000ull   /* how long a panic stays on the screen */
#define PANIC_TAIL_BYTES 1200u           /* log tail in the panic packet: fits one frame */
#define PANIC_TRACE_DEPTH 16u

/* ---- ACPI ------------------------------------------------------------------------------------ */
#define ACPI_TABLES_MAX 128u
#define ACPI_IO_APICS_MAX 16u
#define ACPI_TABLE_BYTES_MAX (4u << 20)

#endif
