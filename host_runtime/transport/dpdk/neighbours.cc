// SPDX-License-Identifier: Apache-2.0
#include "neighbours.h"

namespace duckhost {

Neighbours::Neighbour *Neighbours::entry(uint32_t address) {
    for (size_t i = 0; i < count_; i++)
        if (neighbour_[i].address == address) return &neighbour_[i];
    return nullptr;
}

const MacAddress *Neighbours::find(uint32_t address, uint64_t now, bool *asks) {
    *asks = false;
    Neighbour *found = entry(address);
    if (found == nullptr) {
        if (count_ == kNeighboursMax) return nullptr;
        found = &neighbour_[count_++];
        found->address = address;
    }
    const uint64_t pause_ns = found->is_known ? kArpRefresh : kArpRetry;
    *asks = !found->was_asked || elapsed_ns(now, found->asked_ns) >= pause_ns;
    if (*asks) {
        found->was_asked = true;
        found->asked_ns = now;
    }
    return found->is_known ? &found->mac : nullptr;
}

void Neighbours::learn(uint32_t address, const MacAddress &mac) {
    Neighbour *found = entry(address);
    if (found == nullptr) return;
    found->mac = mac;
    found->is_known = true;
}

} // namespace duckhost
