/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of duckos.img that a fleet writes: 4096 bytes at CONFIG_BLOCK_OFFSET of the file. They
 * begin with the eight bytes DUCKCFG1, which appear nowhere else in the image; then lines
 * `key=value\n` in ASCII, then zeros. The built image has no line. The block travels in clear:
 * nothing secret belongs in it.
 *
 * Keys (each may appear once; boot/options.c has the list):
 *   fleet_public   130 hex digits: the fleet's P-256 public key, 04 X Y
 *   version build  what `duckctl image build` made, for HELLO and the log
 *   host           IPv4 address of the host, for panics and logs
 *   domain name    the duck's place and name, when the image is for one duck
 *   poll           spin | hlt
 *   console        serial | screen | both | off
 *   memory_limit   bytes (K, M, G) that sessions may use
 *   cores          at most so many cores run
 *   watchdog       on | off
 *   panic_seconds  from a panic to the reboot
 *   address netmask router mtu   fixed, instead of DHCP
 */
#ifndef DUCKOS_CONFIG_BLOCK_H
#define DUCKOS_CONFIG_BLOCK_H

#ifndef __ASSEMBLER__
#include <assert.h>
#endif

#define CONFIG_BLOCK_OFFSET 0x2000 /* in the file; boot/head.S and duckos.ld keep it there */
#define CONFIG_BLOCK_BYTES 4096
#define CONFIG_BLOCK_TEXT_BYTES (CONFIG_BLOCK_BYTES - 8)

#ifndef __ASSEMBLER__
struct config_block {
    char magic[8];
    char text[CONFIG_BLOCK_TEXT_BYTES];
};
static_assert(sizeof(struct config_block) == CONFIG_BLOCK_BYTES, "config block");

extern const struct config_block config_block; /* in boot/head.S */
#endif

#endif
