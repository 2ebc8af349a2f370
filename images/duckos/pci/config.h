/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw access to configuration space, by port or by memory window.
 */
#ifndef DUCKOS_PCI_CONFIG_H
#define DUCKOS_PCI_CONFIG_H

#include <stdint.h>

#define PCI_CONFIG_BYTES_PORT 256u
#define PCI_CONFIG_BYTES_ECAM 4096u

void config_init(uint64_t ecam, uint8_t bus_first, uint8_t bus_last);

/* `function` = bus << 8 | slot << 3 | function; `offset` is a multiple of four. What can't be
 * reached reads as all ones, as an absent device does. */
uint32_t config_read(uint16_t function, uint16_t offset);
void config_write(uint16_t function, uint16_t offset, uint32_t value);
uint32_t config_bytes(uint16_t function); /* how much of the function's space can be reached */

#endif
