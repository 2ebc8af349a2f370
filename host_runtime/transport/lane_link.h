// SPDX-License-Identifier: Apache-2.0
//
// The threads behind duckhost_lanes.h. They use the transport through its C interface only.
#pragma once

#include "base.h"
#include "lane_message.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace duckhost {

class LaneLink {
  public:
    ~LaneLink();
    int open(duckhost_fleet *fleet, const duckhost_lane *lanes, uint32_t count,
             const duckhost_lane_shape &shape, duckhost_error *error);
    int begin(duckhost_error *error);
    int end(duckhost_lane_outcome *outcomes, uint32_t count, duckhost_error *error);
    int calls(uint32_t lane, duckhost_lane_call *out, uint32_t count_max, uint32_t *count,
              duckhost_error *error);

  private:
    // Between begin() and end() a lane belongs to its thread, else to the caller of this class.
    struct Lane {
        duckhost_lane box{};
        LaneMessage message;
        int32_t answered = 0;
        duckhost_lane_outcome outcome{};
        duckhost_lane_call call[DUCKHOST_LANE_CALLS_MAX]{};
        std::thread thread;
    };

    void run(Lane &lane);
    void serve(Lane &lane);
    void answer(Lane &lane, int32_t number);
    int make_call(Lane &lane, uint32_t layer, duckhost_lane_call &call, duckhost_error *error);
    int check_call(const Lane &lane, uint32_t layer, duckhost_error *error) const;
    void relax(uint32_t looks) const;
    void finish_step();

    duckhost_fleet *fleet_ = nullptr;
    duckhost_lane_shape shape_{};
    std::vector<std::unique_ptr<Lane>> lanes_;

    std::atomic<bool> is_running_{false}; // a step is
    std::mutex mutex_;                    // guards the next three
    std::condition_variable changed_;
    uint64_t steps_ = 0; // begun so far
    size_t busy_ = 0;    // threads that still serve the step
    bool is_closing_ = false;
};

} // namespace duckhost
