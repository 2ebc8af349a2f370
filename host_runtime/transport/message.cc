// SPDX-License-Identifier: Apache-2.0
#include "message.h"

#include <cstring>

namespace duckhost {

uint32_t build_fragment(uint8_t *packet, const Message &message, uint32_t index, uint32_t session,
                        duck_wire_key key, uint32_t epoch) {
    const uint32_t begin = index * message.stride;
    const uint32_t left = message.bytes - begin;
    const uint32_t data_bytes = left < message.stride ? left : message.stride;
    const uint32_t prefix_bytes = duck_prefix_bytes(message.type);
    duck_packet_header header{};
    header.magic = DUCK_WIRE_MAGIC;
    header.version = DUCK_WIRE_VERSION;
    header.type = message.type;
    header.key = static_cast<uint8_t>(key);
    header.epoch = static_cast<uint8_t>(epoch);
    header.session = session;
    header.sequence = message.sequence;
    header.message_bytes = message.bytes;
    header.fragment_index = index;
    header.fragment_bytes = message.stride;
    header.payload_bytes = static_cast<uint16_t>(prefix_bytes + data_bytes);
    std::memcpy(packet, &header, sizeof header);
    if (prefix_bytes > 0) std::memcpy(packet + sizeof header, message.prefix, prefix_bytes);
    if (data_bytes > 0)
        std::memcpy(packet + sizeof header + prefix_bytes, message.data + begin, data_bytes);
    return static_cast<uint32_t>(sizeof header) + prefix_bytes + data_bytes;
}

} // namespace duckhost
