/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to device registers. A driver touches its device only through these functions and through
 * ring memory, so the tests compile the same source against a model of the registers
 * (DUCKOS_REGISTER_MODEL) instead of hardware.
 */
#ifndef DUCKOS_MMIO_H
#define DUCKOS_MMIO_H

#include <stdint.h>

#ifdef DUCKOS_REGISTER_MODEL

uint8_t mmio_read8(const volatile void *at);
uint16_t mmio_read16(const volatile void *at);
uint32_t mmio_read32(const volatile void *at);
void mmio_write8(volatile void *at, uint8_t value);
void mmio_write16(volatile void *at, uint16_t value);
void mmio_write32(volatile void *at, uint32_t value);
uint32_t port_read32(uint16_t port);
void port_write32(uint16_t port, uint32_t value);

#else

static inline uint8_t mmio_read8(const volatile void *at) { return *(const volatile uint8_t *)at; }
static inline uint16_t mmio_read16(const volatile void *at) {
    return *(const volatile uint16_t *)at;
}
static inline uint32_t mmio_read32(const volatile void *at) {
    return *(const volatile uint32_t *)at;
}
static inline void mmio_write8(volatile void *at, uint8_t value) {
    *(volatile uint8_t *)at = value;
}
static inline void mmio_write16(volatile void *at, uint16_t value) {
    *(volatile uint16_t *)at = value;
}
static inline void mmio_write32(volatile void *at, uint32_t value) {
    *(volatile uint32_t *)at = value;
}
static inline uint32_t port_read32(uint16_t port) {
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline void port_write32(uint16_t port, uint32_t value) {
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

#endif

/* x86 keeps stores in order, and a store to ring memory before a store to an uncached register, so
 * the compiler is all that must be held back (Intel SDM volume 3, 9.2). */
static inline void ring_barrier(void) { __asm__ volatile("" : : : "memory"); }

/* A store to ring memory before a later load from it: the one order that x86 does not keep. */
static inline void ring_full_barrier(void) { __asm__ volatile("mfence" : : : "memory"); }

#endif
