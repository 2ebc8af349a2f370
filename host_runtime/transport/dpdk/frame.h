// SPDX-License-Identifier: Apache-2.0
//
// Ethernet, ARP, IPv4 and UDP headers as a NIC queue sees them: built and checked here, without any
// DPDK type, so that tests need no device. Numbers in Peer are in network byte order.
#pragma once

#include "../port.h"

#include <array>

namespace duckhost {

using MacAddress = std::array<uint8_t, 6>;

constexpr MacAddress kBroadcastMac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kFrameHeaderBytes = kEthernetBytes + 20 + 8;
constexpr uint32_t kArpFrameBytes = 60; // padded to Ethernet's least

// Writes the headers in front of `payload_bytes` that stand at frame + kFrameHeaderBytes. The UDP
// checksum is left out (RFC 768 allows it): every packet carries a MAC.
void build_udp_frame(uint8_t *frame, const MacAddress &from_mac, const MacAddress &to_mac,
                     const Peer &from, const Peer &to, uint32_t payload_bytes);

enum class Frame { foreign, arp_request, arp_told, udp, damaged };

struct ParsedFrame {
    Frame kind = Frame::foreign;
    Peer from; // of UDP; for ARP its address is the sender's
    MacAddress mac{};
    uint32_t payload_offset = 0, payload_bytes = 0;
};

// What a frame of this size is to the owner of `self` (address and port): UDP to its port, ARP that
// asks for its address, or ARP that tells one: an answer, or somebody's announcement to all.
// `damaged`: lengths or the IPv4 checksum are wrong.
ParsedFrame parse_frame(const uint8_t *frame, uint32_t bytes, const Peer &self);

// kArpFrameBytes each.
void build_arp_request(uint8_t *frame, const MacAddress &own_mac, uint32_t own_address,
                       uint32_t wanted_address);
void build_arp_reply(uint8_t *frame, const MacAddress &own_mac, uint32_t own_address,
                     const MacAddress &to_mac, uint32_t to_address);

} // namespace duckhost
