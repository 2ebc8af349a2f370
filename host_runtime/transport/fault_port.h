// SPDX-License-Identifier: Apache-2.0
//
// Fault injection as a port in front of the real one: drops, repeats, reorders, delays, corrupts
// packets in both directions, and cuts single ducks off. Seeded.
#pragma once

#include "port.h"

#include <vector>

namespace duckhost {

struct FaultCounters {
    Counter dropped, duplicated, reordered, corrupted, delayed, cut;
};

class FaultPort final : public Port {
  public:
    // `ducks` are the domain's; bit i of set()'s cut mask stands for ducks[i].
    FaultPort(std::unique_ptr<Port> inner, std::vector<Peer> ducks);

    // From the owning thread. Allocates the room for held packets when first turned on.
    void set(const duckhost_faults &faults, uint64_t seed, uint64_t cut_mask);
    const FaultCounters &fault_counters() const { return fault_counters_; }

    void enter() override { inner_->enter(); }
    void leave() override { inner_->leave(); }
    uint8_t *transmit_buffer() override { return current_ = inner_->transmit_buffer(); }
    void transmit(uint32_t bytes, const Peer *peers, size_t count) override;
    void flush() override;
    size_t receive(ReceivedPacket *out, size_t count_max) override;
    bool is_congested() const override { return inner_->is_congested(); }
    uint64_t due_ns() const override;
    unsigned wait(uint64_t timeout_ns, unsigned watched) override {
        return inner_->wait(timeout_ns, watched);
    }
    void wake() override { inner_->wake(); }
    void read_errors() override { inner_->read_errors(); }
    bool is_shareable() const override { return inner_->is_shareable(); }
    bool refused(Peer *peer) override { return inner_->refused(peer); }
    const PortCounters &counters() const override { return inner_->counters(); }

  private:
    enum class Direction : uint8_t { none, transmit, receive };
    struct Held {
        Direction direction = Direction::none;
        uint32_t bytes = 0;
        Peer peer;
        uint64_t due_ns = 0;
        uint8_t *data = nullptr;
    };
    struct Fate {
        bool dropped = false, duplicated = false, corrupted = false;
        uint64_t hold_ns = 0;
    };

    uint64_t random();
    bool chance(double probability);
    bool is_cut(const Peer &peer) const;
    Fate decide(const Peer &peer);
    void corrupt(uint8_t *data, uint32_t bytes);
    bool hold(Direction direction, const uint8_t *data, uint32_t bytes, const Peer &peer,
              uint64_t due_ns, bool is_corrupted);
    void send_copy(const uint8_t *data, uint32_t bytes, const Peer &peer);
    Held *next_due(Direction direction, uint64_t now);
    size_t release_received(ReceivedPacket *out, size_t count_max);

    std::unique_ptr<Port> inner_;
    std::vector<Peer> ducks_;
    duckhost_faults faults_{};
    uint64_t cut_mask_ = 0;
    uint64_t random_state_ = 1;
    bool enabled_ = false;
    uint8_t *current_ = nullptr;
    size_t held_count_ = 0;
    std::vector<Held> held_;
    std::vector<uint8_t> held_room_;
    std::vector<uint8_t> handed_room_; // packets handed to the caller out of the held ones
    FaultCounters fault_counters_;
};

} // namespace duckhost
