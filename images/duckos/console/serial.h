/* SPDX-License-Identifier: Apache-2.0
 *
 * The first serial port, 115200 8N1, without interrupts. Works from the first instruction on.
 */
#ifndef DUCKOS_SERIAL_H
#define DUCKOS_SERIAL_H

#include <stddef.h>

void serial_init(void); /* without a port, writing does nothing */
void serial_write(const char *text);
void serial_write_bytes(const char *text, size_t bytes);
void serial_off(void);

#endif
