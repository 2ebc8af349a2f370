/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers in packets. Fields are big-endian and may lie at any address. An IPv4 address is kept as
 * it stands in a packet (network byte order) and only compared and masked.
 */
#ifndef DUCKOS_NET_BYTES_H
#define DUCKOS_NET_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint16_t load16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
static inline uint32_t load32(const uint8_t *at) {
    return (uint32_t)load16(at) << 16 | load16(at + 2);
}
static inline void store16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}
static inline void store32(uint8_t *at, uint32_t value) {
    store16(at, (uint16_t)(value >> 16));
    store16(at + 2, (uint16_t)value);
}
static inline uint16_t swap16(uint16_t value) { return (uint16_t)(value << 8 | value >> 8); }
static inline uint32_t swap32(uint32_t value) { return __builtin_bswap32(value); }

static inline void copy_bytes(uint8_t *to, const uint8_t *from, size_t bytes) {
    __builtin_memcpy(to, from, bytes);
}
static inline bool same_bytes(const uint8_t *left, const uint8_t *right, size_t bytes) {
    return __builtin_memcmp(left, right, bytes) == 0;
}

/* An address in network byte order, from and to a packet. */
static inline uint32_t load_address(const uint8_t *at) {
    uint32_t address;
    __builtin_memcpy(&address, at, sizeof address);
    return address;
}
static inline void store_address(uint8_t *at, uint32_t address) {
    __builtin_memcpy(at, &address, sizeof address);
}
static inline uint32_t make_address(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
    return (uint32_t)a | (uint32_t)b << 8 | (uint32_t)c << 16 | (uint32_t)d << 24;
}
static inline uint8_t first_byte(uint32_t address) { return (uint8_t)address; }

#endif
