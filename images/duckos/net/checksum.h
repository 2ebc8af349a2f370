/* SPDX-License-Identifier: Apache-2.0
 *
 * The Internet checksum (RFC 1071): one's complement sum of 16-bit words. Sums are kept in the
 * machine's byte order, which RFC 1071 section 2 (B) allows, and stored as they are.
 */
#ifndef DUCKOS_NET_CHECKSUM_H
#define DUCKOS_NET_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Adds `bytes` to a running sum; every part but the last must have an even length. */
uint64_t checksum_add(uint64_t sum, const uint8_t *bytes, size_t size);

/* The final 16 bits, complemented: store it with memcpy order (checksum_store), or compare with 0.
 * */
uint16_t checksum_fold(uint64_t sum);

static inline void checksum_store(uint8_t *at, uint16_t checksum) {
    __builtin_memcpy(at, &checksum, sizeof checksum);
}

/* Sum of the pseudo header of UDP (RFC 768). Addresses in network byte order. */
uint64_t checksum_pseudo_header(uint32_t source, uint32_t destination, uint8_t protocol,
                                uint16_t bytes);

#endif
