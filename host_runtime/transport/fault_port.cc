// SPDX-License-Identifier: Apache-2.0
#include "fault_port.h"

#include <algorithm>
#include <cstring>

namespace duckhost {
namespace {

constexpr size_t kHeldMax = 512; // packets held back at a time; more are let through at once
constexpr uint64_t kReorderHoldMin = 50 * kMicrosecond;
constexpr uint64_t kReorderHoldMax = 500 * kMicrosecond;
constexpr uint64_t kDuplicateHold = 20 * kMicrosecond;

} // namespace

FaultPort::FaultPort(std::unique_ptr<Port> inner, std::vector<Peer> ducks)
    : inner_(std::move(inner)), ducks_(std::move(ducks)) {}

void FaultPort::set(const duckhost_faults &faults, uint64_t seed, uint64_t cut_mask) {
    faults_ = faults;
    cut_mask_ = cut_mask;
    random_state_ = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    enabled_ = faults.drop > 0 || faults.duplicate > 0 || faults.reorder > 0 ||
               faults.corrupt > 0 || faults.delay_us > 0 || cut_mask != 0;
    if (enabled_ && held_.empty()) {
        held_.resize(kHeldMax);
        held_room_.resize(kHeldMax * kPacketRoom);
        handed_room_.resize(kReceiveBatch * kPacketRoom);
        for (size_t i = 0; i < kHeldMax; i++) held_[i].data = held_room_.data() + i * kPacketRoom;
    }
}

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
uint64_t FaultPort::random() {
    uint64_t z = random_state_ += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

bool FaultPort::chance(double probability) {
    return static_cast<double>(random() >> 11) * 0x1p-53 < probability;
}

bool FaultPort::is_cut(const Peer &peer) const {
    for (size_t i = 0; i < ducks_.size(); i++)
        if ((cut_mask_ >> i & 1) != 0 && ducks_[i] == peer) return true;
    return false;
}

FaultPort::Fate FaultPort::decide(const Peer &peer) {
    Fate fate;
    if (is_cut(peer)) {
        fault_counters_.cut.add();
        fate.dropped = true;
        return fate;
    }
    fate.dropped = chance(faults_.drop);
    if (fate.dropped) {
        fault_counters_.dropped.add();
        return fate;
    }
    fate.duplicated = chance(faults_.duplicate);
    fate.corrupted = chance(faults_.corrupt);
    if (chance(faults_.reorder)) {
        fate.hold_ns = kReorderHoldMin + random() % (kReorderHoldMax - kReorderHoldMin);
        fault_counters_.reordered.add();
    } else if (faults_.delay_us > 0) {
        fate.hold_ns = random() % (faults_.delay_us * kMicrosecond);
        fault_counters_.delayed.add();
    }
    if (fate.duplicated) fault_counters_.duplicated.add();
    if (fate.corrupted) fault_counters_.corrupted.add();
    return fate;
}

void FaultPort::corrupt(uint8_t *data, uint32_t bytes) {
    if (bytes == 0) return;
    uint64_t bit = random() % (UINT64_C(8) * bytes);
    data[bit / 8] = static_cast<uint8_t>(data[bit / 8] ^ (1u << (bit % 8)));
}

bool FaultPort::hold(Direction direction, const uint8_t *data, uint32_t bytes, const Peer &peer,
                     uint64_t due_ns, bool is_corrupted) {
    if (bytes > kPacketRoom) return false;
    for (Held &held : held_) {
        if (held.direction != Direction::none) continue;
        held = {direction, bytes, peer, due_ns, held.data};
        std::memcpy(held.data, data, bytes);
        if (is_corrupted) corrupt(held.data, bytes);
        held_count_++;
        return true;
    }
    return false;
}

// The packet under construction stays where it is; the copy takes its place in the inner queue.
void FaultPort::send_copy(const uint8_t *data, uint32_t bytes, const Peer &peer) {
    uint8_t *buffer = inner_->transmit_buffer();
    if (buffer == nullptr) return; // as good as lost
    std::memmove(buffer, data, bytes);
    inner_->transmit(bytes, &peer, 1);
}

void FaultPort::transmit(uint32_t bytes, const Peer *peers, size_t count) {
    if (!enabled_) {
        inner_->transmit(bytes, peers, count);
        return;
    }
    // What is late, damaged or doubled waits as a copy; the rest leaves as it is.
    const uint64_t now = now_ns();
    Peer direct[DUCKHOST_DUCKS_MAX];
    size_t direct_count = 0;
    for (size_t i = 0; i < count; i++) {
        Fate fate = decide(peers[i]);
        if (fate.dropped) continue;
        if (fate.hold_ns == 0 && !fate.corrupted)
            direct[direct_count++] = peers[i];
        else
            hold(Direction::transmit, current_, bytes, peers[i], now + fate.hold_ns,
                 fate.corrupted);
        if (fate.duplicated)
            hold(Direction::transmit, current_, bytes, peers[i], now + kDuplicateHold, false);
    }
    if (direct_count > 0) inner_->transmit(bytes, direct, direct_count);
    if (held_count_ > kHeldMax / 2) flush();
}

FaultPort::Held *FaultPort::next_due(Direction direction, uint64_t now) {
    Held *first = nullptr;
    for (Held &held : held_)
        if (held.direction == direction && held.due_ns <= now &&
            (first == nullptr || held.due_ns < first->due_ns))
            first = &held;
    return first;
}

void FaultPort::flush() {
    if (held_count_ > 0) {
        const uint64_t now = now_ns();
        while (Held *held = next_due(Direction::transmit, now)) {
            send_copy(held->data, held->bytes, held->peer);
            held->direction = Direction::none;
            held_count_--;
        }
    }
    inner_->flush();
}

size_t FaultPort::release_received(ReceivedPacket *out, size_t count_max) {
    const uint64_t now = now_ns();
    size_t count = 0;
    while (count < count_max && count < kReceiveBatch) {
        Held *held = next_due(Direction::receive, now);
        if (held == nullptr) break;
        uint8_t *data = handed_room_.data() + count * kPacketRoom;
        std::memcpy(data, held->data, held->bytes);
        out[count++] = {data, held->bytes, held->peer};
        held->direction = Direction::none;
        held_count_--;
    }
    return count;
}

size_t FaultPort::receive(ReceivedPacket *out, size_t count_max) {
    if (!enabled_ && held_count_ == 0) return inner_->receive(out, count_max);
    ReceivedPacket fresh[kReceiveBatch];
    const size_t got = inner_->receive(fresh, std::min(count_max, kReceiveBatch));
    const uint64_t now = now_ns();
    size_t count = 0;
    for (size_t i = 0; i < got; i++) {
        Fate fate = enabled_ ? decide(fresh[i].peer) : Fate{};
        if (fate.dropped) continue;
        if (fate.hold_ns == 0 && !fate.corrupted)
            out[count++] = fresh[i];
        else
            hold(Direction::receive, fresh[i].data, fresh[i].bytes, fresh[i].peer,
                 now + fate.hold_ns, fate.corrupted);
        if (fate.duplicated)
            hold(Direction::receive, fresh[i].data, fresh[i].bytes, fresh[i].peer,
                 now + kDuplicateHold, false);
    }
    if (held_count_ > 0) count += release_received(out + count, count_max - count);
    return count;
}

uint64_t FaultPort::due_ns() const {
    uint64_t due = inner_->due_ns();
    if (held_count_ == 0) return due;
    for (const Held &held : held_)
        if (held.direction != Direction::none && held.due_ns < due) due = held.due_ns;
    return due;
}

} // namespace duckhost
