/* SPDX-License-Identifier: Apache-2.0
 *
 * I/O ports.
 */
#ifndef DUCKOS_PORT_H
#define DUCKOS_PORT_H

#include <stdint.h>

static inline uint8_t port_in_8(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline uint16_t port_in_16(uint16_t port) {
    uint16_t value;
    __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline uint32_t port_in_32(uint16_t port) {
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline void port_out_8(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}
static inline void port_out_16(uint16_t port, uint16_t value) {
    __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port));
}
static inline void port_out_32(uint16_t port, uint32_t value) {
    __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port));
}

#endif
