// SPDX-License-Identifier: Apache-2.0
//
// The last calls with the times of every duck, on the host's clock, for a trace. Off
// until it is given room; then the thread that waited for a call adds one entry per duck.
#pragma once

#include "duckhost.h"

#include <atomic>
#include <mutex>
#include <vector>

namespace duckhost {

class TraceRing {
  public:
    // Room for `entries` (0 = off); forgets what was there. False: no memory.
    bool resize(size_t entries);
    bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
    void add(const duckhost_trace_entry &entry);
    // The newest `count_max` entries at most, oldest first; the number of them.
    size_t read(duckhost_trace_entry *out, size_t count_max) const;

  private:
    mutable std::mutex mutex_;
    std::atomic<bool> is_on_{false};
    std::vector<duckhost_trace_entry> entry_;
    size_t next_ = 0, count_ = 0;
};

// A duck's clock against the host's: duck time = host time + offset, give or take the error.
struct ClockSample {
    int64_t offset_ns = 0;
    uint64_t error_ns = UINT64_MAX; // half a round trip; UINT64_MAX = nothing known
};

// The better of what is known and a PONG just received. What is known grows old: clocks of small
// boxes drift apart by some 10 us per second of a heartbeat.
ClockSample better_clock(const ClockSample &known, uint64_t host_sent_ns, uint64_t duck_ns,
                         uint64_t host_received_ns);

// RESULT's `start` (units of 64 ns of the duck's clock, modulo 2^32; 0 = unknown) as host time,
// 0 = unknown. `now_ns`: host time, at most two minutes later.
uint64_t start_on_host(uint32_t start, const ClockSample &clock, uint64_t now_ns);

} // namespace duckhost
