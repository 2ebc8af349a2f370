// SPDX-License-Identifier: Apache-2.0
//
// The frames of ports on NIC queues: what is built is parsed again, what is damaged is told from
// what is foreign, and random frames of every length are read within their bounds (heap blocks of
// the exact size, under the sanitizers).
//
//     frames SEED SECONDS
#include <dpdk/neighbours.h>

#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

using namespace duckhost;

namespace {

constexpr MacAddress kOwnMac = {2, 0, 0, 0, 0, 1}, kOtherMac = {2, 0, 0, 0, 0, 2};

void require(bool is_fine, const char *what) {
    if (is_fine) return;
    std::fprintf(stderr, "not true: %s\n", what);
    std::exit(1);
}

Peer peer(const char *address, uint16_t port) {
    Peer made;
    require(inet_pton(AF_INET, address, &made.address) == 1, "address");
    made.port = htons(port);
    return made;
}

std::vector<uint8_t> udp_frame(const Peer &from, const Peer &to, uint32_t payload_bytes) {
    std::vector<uint8_t> frame(kFrameHeaderBytes + payload_bytes, 0xA5);
    build_udp_frame(frame.data(), kOtherMac, kOwnMac, from, to, payload_bytes);
    return frame;
}

ParsedFrame parse(const std::vector<uint8_t> &frame, const Peer &self) {
    return parse_frame(frame.data(), static_cast<uint32_t>(frame.size()), self);
}

void check_udp(const Peer &self, const Peer &other) {
    for (uint32_t bytes : {0u, 1u, 56u, 1464u, 8972u}) {
        const ParsedFrame parsed = parse(udp_frame(other, self, bytes), self);
        require(parsed.kind == Frame::udp && parsed.from == other && parsed.mac == kOtherMac,
                "a frame is read as it was built");
        require(parsed.payload_offset == kFrameHeaderBytes && parsed.payload_bytes == bytes,
                "its payload is where it was put");
        // Short frames come padded.
        std::vector<uint8_t> padded = udp_frame(other, self, bytes);
        padded.resize(padded.size() + 18);
        require(parse(padded, self).payload_bytes == bytes, "padding is no payload");
        Peer stranger = self;
        stranger.port = htons(9);
        require(parse(udp_frame(other, stranger, bytes), self).kind == Frame::foreign, "port");
        stranger = self;
        stranger.address = htonl(1);
        require(parse(udp_frame(other, stranger, bytes), self).kind == Frame::foreign, "address");
    }
}

// Each header byte changed: never taken for a whole packet of other addresses or lengths.
void check_damage(const Peer &self, const Peer &other) {
    const std::vector<uint8_t> good = udp_frame(other, self, 100);
    for (size_t at = kEthernetBytes; at < kEthernetBytes + 20; at++)
        for (int bit = 0; bit < 8; bit++) {
            std::vector<uint8_t> frame = good;
            frame[at] ^= static_cast<uint8_t>(1 << bit);
            require(parse(frame, self).kind != Frame::udp, "IPv4's checksum covers its header");
        }
    for (size_t bytes = 0; bytes < good.size(); bytes++) {
        const std::vector<uint8_t> cut(good.begin(), good.begin() + static_cast<long>(bytes));
        require(parse(cut, self).kind != Frame::udp, "a cut frame is no packet");
    }
}

void check_arp(const Peer &self, const Peer &other) {
    std::vector<uint8_t> frame(kArpFrameBytes);
    build_arp_request(frame.data(), kOtherMac, other.address, self.address);
    ParsedFrame parsed = parse(frame, self);
    require(parsed.kind == Frame::arp_request && parsed.from.address == other.address &&
                parsed.mac == kOtherMac,
            "a question for this address is known");
    require(parse(frame, other).kind == Frame::foreign, "a question for another one is not ours");
    build_arp_reply(frame.data(), kOtherMac, other.address, kOwnMac, self.address);
    parsed = parse(frame, self);
    require(parsed.kind == Frame::arp_told && parsed.mac == kOtherMac, "an answer is known");
}

// Sent to all by who begins to use an address: a question for it, or an answer to nobody.
void check_announcements(const Peer &self, const Peer &other) {
    std::vector<uint8_t> frame(kArpFrameBytes);
    const auto is_told = [&](uint32_t sender, uint32_t target, bool by_reply) {
        if (by_reply)
            build_arp_reply(frame.data(), kOtherMac, sender, kBroadcastMac, target);
        else
            build_arp_request(frame.data(), kOtherMac, sender, target);
        const ParsedFrame parsed = parse(frame, self);
        require(parsed.mac == kOtherMac && parsed.from.address == sender, "whose it is");
        return parsed.kind == Frame::arp_told;
    };
    for (const bool by_reply : {false, true}) {
        require(is_told(other.address, other.address, by_reply), "an announcement tells");
        require(!is_told(0, other.address, by_reply), "a probe does not");
        require(!is_told(other.address, peer("10.21.1.12", 1).address, by_reply), "nor do others");
    }
    require(!is_told(self.address, self.address, false), "our own address is not told but asked");
}

// A MAC that is known is used while it is asked for again.
void check_neighbours(const Peer &other) {
    Neighbours neighbours;
    uint64_t now = 5 * kArpRefresh;
    bool asks = false;
    neighbours.learn(other.address, kOtherMac);
    require(neighbours.find(other.address, now, &asks) == nullptr && asks,
            "who was never sent anything is no neighbour, and is asked for when he is");
    require(neighbours.find(other.address, now + kArpRetry - 1, &asks) == nullptr && !asks,
            "an answer gets its time");
    now += kArpRetry;
    require(neighbours.find(other.address, now, &asks) == nullptr && asks, "then: asked again");
    neighbours.learn(other.address, kOtherMac);
    const MacAddress *mac = neighbours.find(other.address, now + kArpRefresh - 1, &asks);
    require(mac != nullptr && *mac == kOtherMac && !asks, "known, and asked a moment ago");
    for (int i = 0; i < 3; i++) { // nobody answers
        now += kArpRefresh;
        mac = neighbours.find(other.address, now, &asks);
        require(mac != nullptr && *mac == kOtherMac && asks, "used on, and asked for again");
        mac = neighbours.find(other.address, now + kArpRefresh - 1, &asks);
        require(mac != nullptr && *mac == kOtherMac && !asks, "not more than once a second");
    }
    neighbours.learn(other.address, kOwnMac);
    mac = neighbours.find(other.address, now, &asks);
    require(mac != nullptr && *mac == kOwnMac, "what is told last counts");
    for (uint32_t i = 1; i < kNeighboursMax; i++)
        require(neighbours.find(other.address + i, now, &asks) == nullptr && asks, "there is room");
    require(neighbours.find(1, now, &asks) == nullptr && !asks, "there is no more room");
}

void check_random(const Peer &self, const Peer &other, std::minstd_rand &random) {
    std::vector<uint8_t> frame = udp_frame(other, self, random() % 300);
    if (random() % 4 == 0) {
        frame.resize(kArpFrameBytes);
        build_arp_request(frame.data(), kOtherMac, other.address, self.address);
    }
    const unsigned changes = random() % 8;
    for (unsigned i = 0; i < changes; i++)
        frame[random() % frame.size()] = static_cast<uint8_t>(random());
    frame.resize(random() % (frame.size() + 1));
    frame.shrink_to_fit();
    const ParsedFrame parsed = parse(frame, self);
    if (parsed.kind == Frame::udp)
        require(parsed.payload_offset + parsed.payload_bytes <= frame.size(), "within the frame");
}

} // namespace

int main(int count, char **words) {
    require(count == 3, "usage: frames SEED SECONDS");
    std::minstd_rand random(static_cast<unsigned>(std::atol(words[1])));
    const Peer self = peer("10.21.1.1", 50000), other = peer("10.21.1.11", 7211);
    check_udp(self, other);
    check_damage(self, other);
    check_arp(self, other);
    check_announcements(self, other);
    check_neighbours(other);
    const time_t end = time(nullptr) + std::atol(words[2]);
    unsigned long frames = 0;
    do {
        for (int i = 0; i < 1000; i++, frames++) check_random(self, other, random);
    } while (time(nullptr) < end);
    std::printf("%lu random frames\n", frames);
    return 0;
}
