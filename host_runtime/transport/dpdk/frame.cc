// SPDX-License-Identifier: Apache-2.0
#include "frame.h"

#include <cstring>

namespace duckhost {
namespace {

constexpr uint16_t kTypeIpv4 = 0x0800, kTypeArp = 0x0806;
constexpr uint8_t kProtocolUdp = 17;
constexpr uint16_t kArpRequest = 1, kArpReply = 2;
constexpr uint32_t kIpv4Bytes = 20, kUdpBytes = 8, kArpBytes = 28;

void put16(uint8_t *at, uint32_t value) {
    at[0] = static_cast<uint8_t>(value >> 8);
    at[1] = static_cast<uint8_t>(value);
}

uint32_t get16(const uint8_t *at) { return static_cast<uint32_t>(at[0]) << 8 | at[1]; }

// RFC 1071; over a header whose checksum field is right it gives 0.
uint16_t checksum(const uint8_t *header, uint32_t bytes) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < bytes; i += 2) sum += get16(header + i);
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<uint16_t>(~sum & 0xffff);
}

void build_ethernet(uint8_t *frame, const MacAddress &from, const MacAddress &to, uint16_t type) {
    std::memcpy(frame, to.data(), to.size());
    std::memcpy(frame + 6, from.data(), from.size());
    put16(frame + 12, type);
}

// RFC 826: hardware Ethernet, protocol IPv4, then operation, sender, target.
void build_arp(uint8_t *frame, uint16_t operation, const MacAddress &own_mac, uint32_t own_address,
               const MacAddress &to_mac, uint32_t to_address) {
    std::memset(frame, 0, kArpFrameBytes);
    build_ethernet(frame, own_mac, operation == kArpRequest ? kBroadcastMac : to_mac, kTypeArp);
    uint8_t *arp = frame + kEthernetBytes;
    put16(arp, 1);
    put16(arp + 2, kTypeIpv4);
    arp[4] = 6;
    arp[5] = 4;
    put16(arp + 6, operation);
    std::memcpy(arp + 8, own_mac.data(), 6);
    std::memcpy(arp + 14, &own_address, 4);
    if (operation == kArpReply) std::memcpy(arp + 18, to_mac.data(), 6);
    std::memcpy(arp + 24, &to_address, 4);
}

ParsedFrame parse_arp(const uint8_t *arp, uint32_t bytes, const Peer &self) {
    ParsedFrame parsed;
    if (bytes < kArpBytes || get16(arp) != 1 || get16(arp + 2) != kTypeIpv4 || arp[4] != 6 ||
        arp[5] != 4)
        return parsed;
    uint32_t target;
    std::memcpy(&target, arp + 24, 4);
    std::memcpy(&parsed.from.address, arp + 14, 4);
    std::memcpy(parsed.mac.data(), arp + 8, 6);
    const uint32_t operation = get16(arp + 6);
    const bool is_for_us = target == self.address;
    // RFC 5227: who begins to use an address asks for its own; older systems answer it.
    const bool is_announced = !is_for_us && target == parsed.from.address;
    if (operation == kArpRequest && is_for_us) parsed.kind = Frame::arp_request;
    if (operation == kArpRequest && is_announced) parsed.kind = Frame::arp_told;
    if (operation == kArpReply && (is_for_us || is_announced)) parsed.kind = Frame::arp_told;
    return parsed;
}

ParsedFrame parse_ipv4(const uint8_t *ip, uint32_t bytes, const Peer &self) {
    ParsedFrame parsed;
    if (bytes < kIpv4Bytes + kUdpBytes || ip[0] >> 4 != 4 || ip[9] != kProtocolUdp) return parsed;
    const uint32_t header_bytes = (ip[0] & 15u) * 4, total_bytes = get16(ip + 2);
    uint32_t target;
    std::memcpy(&target, ip + 16, 4);
    if (target != self.address) return parsed;
    parsed.kind = Frame::damaged;
    const bool is_fragment = (get16(ip + 6) & 0x3fff) != 0;
    if (header_bytes < kIpv4Bytes || total_bytes > bytes ||
        total_bytes < header_bytes + kUdpBytes || is_fragment || checksum(ip, header_bytes) != 0)
        return parsed;
    const uint8_t *udp = ip + header_bytes;
    uint16_t port;
    std::memcpy(&port, udp + 2, 2);
    if (port != self.port) {
        parsed.kind = Frame::foreign;
        return parsed;
    }
    const uint32_t udp_bytes = get16(udp + 4);
    if (udp_bytes < kUdpBytes || udp_bytes > total_bytes - header_bytes) return parsed;
    parsed.kind = Frame::udp;
    std::memcpy(&parsed.from.address, ip + 12, 4);
    std::memcpy(&parsed.from.port, udp, 2);
    parsed.payload_offset = kEthernetBytes + header_bytes + kUdpBytes;
    parsed.payload_bytes = udp_bytes - kUdpBytes;
    return parsed;
}

} // namespace

void build_udp_frame(uint8_t *frame, const MacAddress &from_mac, const MacAddress &to_mac,
                     const Peer &from, const Peer &to, uint32_t payload_bytes) {
    build_ethernet(frame, from_mac, to_mac, kTypeIpv4);
    uint8_t *ip = frame + kEthernetBytes, *udp = ip + kIpv4Bytes;
    std::memset(ip, 0, kIpv4Bytes + kUdpBytes);
    ip[0] = 0x45;
    put16(ip + 2, kIpv4Bytes + kUdpBytes + payload_bytes);
    put16(ip + 6, 0x4000); // don't fragment
    ip[8] = 64;
    ip[9] = kProtocolUdp;
    std::memcpy(ip + 12, &from.address, 4);
    std::memcpy(ip + 16, &to.address, 4);
    put16(ip + 10, checksum(ip, kIpv4Bytes));
    std::memcpy(udp, &from.port, 2);
    std::memcpy(udp + 2, &to.port, 2);
    put16(udp + 4, kUdpBytes + payload_bytes);
}

ParsedFrame parse_frame(const uint8_t *frame, uint32_t bytes, const Peer &self) {
    ParsedFrame parsed;
    if (bytes < kEthernetBytes) return parsed;
    const uint32_t type = get16(frame + 12);
    if (type == kTypeArp)
        parsed = parse_arp(frame + kEthernetBytes, bytes - kEthernetBytes, self);
    else if (type == kTypeIpv4)
        parsed = parse_ipv4(frame + kEthernetBytes, bytes - kEthernetBytes, self);
    if (parsed.kind == Frame::udp) std::memcpy(parsed.mac.data(), frame + 6, 6);
    return parsed;
}

void build_arp_request(uint8_t *frame, const MacAddress &own_mac, uint32_t own_address,
                       uint32_t wanted_address) {
    build_arp(frame, kArpRequest, own_mac, own_address, {}, wanted_address);
}

void build_arp_reply(uint8_t *frame, const MacAddress &own_mac, uint32_t own_address,
                     const MacAddress &to_mac, uint32_t to_address) {
    build_arp(frame, kArpReply, own_mac, own_address, to_mac, to_address);
}

} // namespace duckhost
