// SPDX-License-Identifier: Apache-2.0
//
// The CALL message of one row for the experts kernel (duck/experts.h), filled from a mailbox. Bit
// for bit what host_runtime/experts/remote.py sends.
#pragma once

#include "duckhost_lanes.h"

#include <duck/experts.h>
#include <memory>

namespace duckhost {

uint16_t to_bf16(float value); // nearest even, NaN becomes 0x7FC0
uint8_t to_e4m3(float value);  // nearest even; beyond 448 and NaN: the codes that are no number

class LaneMessage {
  public:
    // False when there is no memory.
    bool prepare(const duckhost_lane_shape &shape);
    void fill(const duckhost_lane &lane, uint32_t layer);
    const void *data() const { return bytes_.get(); }
    uint32_t size() const { return size_; }

  private:
    struct Free {
        void operator()(uint8_t *memory) const;
    };
    void fill_fp8(const float *hidden);

    std::unique_ptr<uint8_t, Free> bytes_;
    duckhost_lane_shape shape_{};
    uint32_t size_ = 0, weight_at_ = 0, activation_at_ = 0;
};

} // namespace duckhost
