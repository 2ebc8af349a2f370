// SPDX-License-Identifier: Apache-2.0
#include "trace_ring.h"

#include <algorithm>
#include <new>

namespace duckhost {
namespace {

constexpr uint64_t kDriftPerPongNs = 10000;
constexpr uint32_t kStartUnitBits = 6; // 64 ns

} // namespace

bool TraceRing::resize(size_t entries) {
    std::vector<duckhost_trace_entry> fresh;
    try {
        fresh.resize(entries);
    } catch (const std::bad_alloc &) {
        return false;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    entry_.swap(fresh);
    next_ = count_ = 0;
    is_on_.store(entries != 0);
    return true;
}

void TraceRing::add(const duckhost_trace_entry &entry) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (entry_.empty()) return; // switched off meanwhile
    entry_[next_] = entry;
    next_ = (next_ + 1) % entry_.size();
    count_ = std::min(count_ + 1, entry_.size());
}

size_t TraceRing::read(duckhost_trace_entry *out, size_t count_max) const {
    std::lock_guard<std::mutex> guard(mutex_);
    const size_t count = std::min(count_, count_max);
    for (size_t i = 0; i < count; i++)
        out[i] = entry_[(next_ + entry_.size() - count + i) % entry_.size()];
    return count;
}

ClockSample better_clock(const ClockSample &known, uint64_t host_sent_ns, uint64_t duck_ns,
                         uint64_t host_received_ns) {
    const uint64_t half_ns = (host_received_ns - host_sent_ns) / 2;
    const ClockSample fresh{static_cast<int64_t>(duck_ns - (host_sent_ns + half_ns)), half_ns};
    if (known.error_ns == UINT64_MAX) return fresh;
    const ClockSample aged{known.offset_ns, known.error_ns + kDriftPerPongNs};
    return fresh.error_ns <= aged.error_ns ? fresh : aged;
}

uint64_t start_on_host(uint32_t start, const ClockSample &clock, uint64_t now_ns) {
    if (start == 0 || clock.error_ns == UINT64_MAX) return 0;
    const uint64_t duck_now = now_ns + static_cast<uint64_t>(clock.offset_ns);
    const uint64_t units_now = duck_now >> kStartUnitBits;
    // The nearest moment with these low bits: a little in the future when the offset is off.
    const auto ago = static_cast<int32_t>(static_cast<uint32_t>(units_now) - start);
    const uint64_t units = units_now - static_cast<uint64_t>(static_cast<int64_t>(ago));
    return (units << kStartUnitBits) - static_cast<uint64_t>(clock.offset_ns);
}

} // namespace duckhost
