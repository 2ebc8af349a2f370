// SPDX-License-Identifier: Apache-2.0
//
// Cutting a message into packets.
#pragma once

#include "base.h"

extern "C" {
#include <seal.h>
}

namespace duckhost {

struct Message {
    uint8_t type = 0;
    uint32_t sequence = 0;
    const uint8_t *data = nullptr;
    uint32_t bytes = 0;
    uint16_t stride = DUCK_WIRE_FRAGMENT_BYTES_1500;
    const void *prefix = nullptr; // duck_prefix_bytes(type) bytes in front of each fragment's data
};

constexpr uint32_t kIpUdpBytes = 28;

// Largest multiple of 64 such that a fragment with its headers and prefix fits the MTU.
constexpr uint16_t stride_for_mtu(uint32_t mtu, uint32_t prefix_bytes) {
    return static_cast<uint16_t>((mtu - kIpUdpBytes - sizeof(duck_packet_header) - prefix_bytes) /
                                 64 * 64);
}
// Of a CALL: its RESULT uses the same stride and has a prefix in front of each fragment's data.
constexpr uint16_t call_stride_for_mtu(uint32_t mtu) {
    return stride_for_mtu(mtu, sizeof(duck_result_prefix));
}
static_assert(call_stride_for_mtu(1500) == DUCK_WIRE_FRAGMENT_BYTES_1500, "the contract's stride");
static_assert(stride_for_mtu(9000, 16) == DUCK_WIRE_FRAGMENT_BYTES_MAX, "the contract's stride");

inline uint32_t fragment_count(const Message &message) {
    return duck_fragment_count(message.bytes, message.stride);
}

// Writes header (mac and counter zero), prefix and data of one fragment; returns the packet's size.
uint32_t build_fragment(uint8_t *packet, const Message &message, uint32_t index, uint32_t session,
                        duck_wire_key key, uint32_t epoch = 0);

} // namespace duckhost
