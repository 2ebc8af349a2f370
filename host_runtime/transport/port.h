// SPDX-License-Identifier: Apache-2.0
//
// A port sends and receives whole packets for one domain. One thread at a time uses it; only wake()
// and wait() may run beside others. Packets are built in the port's own memory, so that a port on a
// NIC queue transmits without another copy.
#pragma once

#include "base.h"

#include <cstddef>
#include <memory>

namespace duckhost {

constexpr uint32_t kPacketRoom = 9216; // room of one packet buffer, >= DUCK_WIRE_PACKET_BYTES_MAX
static_assert(kPacketRoom >= DUCK_WIRE_PACKET_BYTES_MAX, "a packet fits its buffer");
constexpr size_t kReceiveBatch = 32;

// IPv4 address and UDP port as they stand on the wire (network byte order).
struct Peer {
    uint32_t address = 0;
    uint16_t port = 0;
    bool operator==(const Peer &other) const {
        return address == other.address && port == other.port;
    }
};

struct ReceivedPacket {
    uint8_t *data = nullptr; // writable; valid until the next receive()
    uint32_t bytes = 0;
    Peer peer;
};

struct PortCounters {
    Counter packets_sent, packets_received, bytes_sent, bytes_received;
    Counter send_errors;
    Counter too_large;  // packets that exceed the NIC's MTU
    Counter last_errno; // of the last failed send, 0 after a successful one
    Counter missed;     // came to the NIC and found no room (device ports)
    Counter damaged;    // frames for this port with wrong lengths or IPv4 checksum (device ports)
};

enum WaitEvent : unsigned { kWoken = 1, kPacket = 2, kRoom = 4, kError = 8 };

class Port {
  public:
    virtual ~Port() = default;
    // The owning thread begins and ends.
    virtual void enter() {}
    virtual void leave() {}
    // A buffer of kPacketRoom bytes for the next packet, or null while the queue is full.
    virtual uint8_t *transmit_buffer() = 0;
    // Queues the buffer given last, once per peer.
    virtual void transmit(uint32_t bytes, const Peer *peers, size_t count) = 0;
    virtual void flush() = 0;
    virtual size_t receive(ReceivedPacket *out, size_t count_max) = 0;
    // Packets are queued that the system had no room for.
    virtual bool is_congested() const { return false; }
    // When flush() and receive() have something to do by themselves.
    virtual uint64_t due_ns() const { return kNever; }
    // Returns after the time, when wake() was called, and when one of the events in `watched` (bits
    // of WaitEvent) came; tells what it saw.
    virtual unsigned wait(uint64_t timeout_ns, unsigned watched) = 0;
    virtual void wake() = 0;
    // After wait() has told of errors.
    virtual void read_errors() {}
    // May another thread than the one between enter() and leave() use it?
    virtual bool is_shareable() const { return false; }
    // A peer that refused packets by ICMP since the last call; false when there is none. Only a
    // hint for error texts: ICMP is not authenticated.
    virtual bool refused(Peer *peer) = 0;
    virtual const PortCounters &counters() const = 0;
};

struct UdpPortOptions {
    uint32_t bind_address = 0; // network byte order, 0 = any
    bool broadcast = false;
    uint32_t socket_buffer_bytes = 0;
    bool sends_slices = true; // the beginning of a long message leaves while its rest is made
};

// Null on failure, with *error filled in.
std::unique_ptr<Port> open_udp_port(const UdpPortOptions &options, duckhost_error *error);

} // namespace duckhost
