// SPDX-License-Identifier: Apache-2.0
//
// Which MAC the ducks of a port have, as ARP tells. Like frames without any DPDK type, and with the
// caller's clock.
#pragma once

#include "frame.h"

#include <cstddef>

namespace duckhost {

constexpr size_t kNeighboursMax = 128;
constexpr uint64_t kArpRetry = 10 * kMillisecond;
// A known MAC is used on and asked for again: a duck may have got another card.
constexpr uint64_t kArpRefresh = 1000 * kMillisecond;

class Neighbours {
  public:
    // Null: not known. *asks: now is the time for a question, which counts as asked.
    const MacAddress *find(uint32_t address, uint64_t now, bool *asks);
    // Only for those that find() was called for: strangers fill no table.
    void learn(uint32_t address, const MacAddress &mac);

  private:
    struct Neighbour {
        uint32_t address = 0;
        MacAddress mac{};
        bool is_known = false, was_asked = false;
        uint64_t asked_ns = 0;
    };
    Neighbour *entry(uint32_t address);

    Neighbour neighbour_[kNeighboursMax];
    size_t count_ = 0;
};

} // namespace duckhost
