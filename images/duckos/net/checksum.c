/* SPDX-License-Identifier: Apache-2.0 */
#include "net/checksum.h"

#include "net/bytes.h"

static uint64_t add_carry(uint64_t sum, uint64_t value) {
    sum += value;
    return sum + (sum < value); /* one's complement: the carry comes back in */
}

uint64_t checksum_add(uint64_t sum, const uint8_t *bytes, size_t size) {
    uint64_t word;
    for (; size >= sizeof word; size -= sizeof word, bytes += sizeof word) {
        __builtin_memcpy(&word, bytes, sizeof word);
        sum = add_carry(sum, word);
    }
    if (size == 0) return sum;
    word = 0; /* the rest, padded with zeros */
    for (size_t at = 0; at < size; at++) word |= (uint64_t)bytes[at] << (8 * at);
    return add_carry(sum, word);
}

uint16_t checksum_fold(uint64_t sum) {
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + (sum >> 16);
    sum = (sum & 0xffffu) + (sum >> 16);
    return (uint16_t)~sum;
}

uint64_t checksum_pseudo_header(uint32_t source, uint32_t destination, uint8_t protocol,
                                uint16_t bytes) {
    uint8_t header[12] = {[9] = protocol};
    store_address(header, source);
    store_address(header + 4, destination);
    store16(header + 10, bytes);
    return checksum_add(0, header, sizeof header);
}
