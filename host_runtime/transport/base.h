// SPDX-License-Identifier: Apache-2.0
//
// What every part of the transport uses: the clock, single-writer counters, error texts.
#pragma once

#include "duckhost.h"

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

namespace duckhost {

constexpr uint64_t kMicrosecond = 1000;
constexpr uint64_t kMillisecond = 1000 * kMicrosecond;
constexpr uint64_t kNever = UINT64_MAX;

uint64_t now_ns(); // CLOCK_MONOTONIC

// Zero when `since` is later: threads read the clock at different moments.
constexpr uint64_t elapsed_ns(uint64_t now, uint64_t since) {
    return now > since ? now - since : 0;
}

// Written by one thread, read by any.
class Counter {
  public:
    void add(uint64_t amount = 1) { set(get() + amount); }
    void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<uint64_t> value_{0};
};

// Poll policy "block": going to sleep and being woken costs more than most waits last. So a wait
// whose forerunner was short looks around for a while first and lets others on the CPU between two
// looks; one whose forerunner was long sleeps at once.
constexpr uint64_t kPatience = 200 * kMicrosecond;

constexpr bool may_look(uint64_t last_wait_ns, uint64_t waited_ns) {
    return last_wait_ns < kPatience && waited_ns < kPatience;
}

// Looking around without sleeping: a pause between two looks, and the CPU for whoever else wants
// it. Where nobody does, asking costs as much as a look, so it is asked rarely.
class Courtesy {
  public:
    void pause();

  private:
    uint32_t looks_left_ = 0; // until it asks again
};

// Fill *error (which may be null) and return its code. `duck` < 0 means none.
[[gnu::format(printf, 4, 5)]] int fail(duckhost_error *error, duckhost_code code, int duck,
                                       const char *format, ...);
[[gnu::format(printf, 2, 3)]] void set_hint(duckhost_error *error, const char *format, ...);
int succeed(duckhost_error *error);

const char *status_text(uint32_t status);     // enum duck_status
const char *fault_kind_text(uint32_t kind);   // enum duck_fault_kind
const char *message_type_text(uint32_t type); // enum duck_message_type

void own_build(uint8_t out[DUCK_WIRE_BUILD_BYTES]);
void build_text(const uint8_t build[DUCK_WIRE_BUILD_BYTES],
                char out[2 * DUCK_WIRE_BUILD_BYTES + 1]);

// Copies a zero-padded wire string of at most `bytes` characters; unprintable ones become '?'.
void copy_text(char *out, size_t out_bytes, const char *text, size_t bytes);

} // namespace duckhost
