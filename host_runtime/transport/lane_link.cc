// SPDX-License-Identifier: Apache-2.0
#include "lane_link.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sched.h>

namespace duckhost {
namespace {

constexpr uint32_t kLooksBeforeYield = 64; // of lanes that share their core with others

} // namespace

LaneLink::~LaneLink() {
    is_running_.store(false, std::memory_order_release);
    {
        std::lock_guard<std::mutex> guard(mutex_);
        is_closing_ = true;
        changed_.notify_all();
    }
    for (const auto &lane : lanes_)
        if (lane->thread.joinable()) lane->thread.join();
}

static int check_shape(const duckhost_lane_shape &shape, duckhost_error *error) {
    if (shape.hidden_size == 0 || shape.hidden_size % 128 != 0)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "hidden_size is %u: expected a multiple of 128", shape.hidden_size);
    if (shape.top_k == 0 || shape.top_k > DUCK_EXPERTS_TOP_K_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "top_k is %u: expected 1 to %u", shape.top_k,
                    DUCK_EXPERTS_TOP_K_MAX);
    if (shape.activation_dtype > DUCK_DTYPE_FP8 || shape.result_dtype > DUCK_DTYPE_BF16)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "dtypes %u and %u: expected 0 to 2, 0 or 1",
                    shape.activation_dtype, shape.result_dtype);
    return DUCKHOST_OK;
}

int LaneLink::open(duckhost_fleet *fleet, const duckhost_lane *lanes, uint32_t count,
                   const duckhost_lane_shape &shape, duckhost_error *error) {
    if (count == 0 || count > DUCKHOST_LANES_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "%u lanes: expected 1 to %u", count,
                    DUCKHOST_LANES_MAX);
    if (int code = check_shape(shape, error)) return code;
    fleet_ = fleet;
    shape_ = shape;
    for (uint32_t i = 0; i < count; i++) {
        const duckhost_lane &box = lanes[i];
        if (box.flags == nullptr || box.expert == nullptr || box.weight == nullptr ||
            box.hidden == nullptr || box.result == nullptr)
            return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "lane %u: a pointer is null", i);
        auto lane = std::make_unique<Lane>();
        lane->box = box;
        lane->answered = __atomic_load_n(box.flags + DUCKHOST_LANE_ANSWERED, __ATOMIC_ACQUIRE);
        if (!lane->message.prepare(shape))
            return fail(error, DUCKHOST_ERR_SYSTEM, -1, "no memory for lane %u", i);
        lanes_.push_back(std::move(lane));
    }
    for (const auto &lane : lanes_) {
        Lane *own = lane.get();
        own->thread = std::thread([this, own] { run(*own); });
    }
    return succeed(error);
}

int LaneLink::begin(duckhost_error *error) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (busy_ != 0 || is_running_.load())
        return fail(error, DUCKHOST_ERR_STATE, -1, "the lanes' last step has not ended");
    for (const auto &lane : lanes_) {
        lane->outcome.calls = 0;
        succeed(&lane->outcome.error);
    }
    busy_ = lanes_.size();
    is_running_.store(true, std::memory_order_release);
    steps_++;
    changed_.notify_all();
    return succeed(error);
}

int LaneLink::end(duckhost_lane_outcome *outcomes, uint32_t count, duckhost_error *error) {
    if (count != lanes_.size())
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "outcomes of %u lanes, there are %zu", count,
                    lanes_.size());
    is_running_.store(false, std::memory_order_release);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return busy_ == 0; });
    for (uint32_t i = 0; i < count; i++) outcomes[i] = lanes_[i]->outcome;
    return succeed(error);
}

int LaneLink::calls(uint32_t lane, duckhost_lane_call *out, uint32_t count_max, uint32_t *count,
                    duckhost_error *error) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (lane >= lanes_.size())
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "lane %u, there are %zu", lane,
                    lanes_.size());
    if (busy_ != 0) return fail(error, DUCKHOST_ERR_STATE, -1, "the lanes' step has not ended");
    const Lane &from = *lanes_[lane];
    *count = std::min({from.outcome.calls, count_max, DUCKHOST_LANE_CALLS_MAX});
    std::memcpy(out, from.call, *count * sizeof *out);
    return succeed(error);
}

// ---- a lane's thread ----------------------------------------------------------------------------

void LaneLink::run(Lane &lane) {
    uint64_t seen = 0;
    for (;;) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, [&] { return is_closing_ || steps_ != seen; });
            if (is_closing_ && steps_ == seen) return;
            seen = steps_;
        }
        serve(lane);
        finish_step();
    }
}

void LaneLink::finish_step() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (--busy_ == 0) changed_.notify_all();
}

// A call that was posted before the step's end is answered: the flag is looked at last.
void LaneLink::serve(Lane &lane) {
    for (uint32_t looks = 0;;) {
        const bool was_running = is_running_.load(std::memory_order_acquire);
        const int32_t number =
            __atomic_load_n(lane.box.flags + DUCKHOST_LANE_POSTED, __ATOMIC_ACQUIRE);
        if (number != lane.answered) {
            answer(lane, number);
            looks = 0;
        } else if (!was_running) {
            return;
        } else {
            relax(looks++);
        }
    }
}

void LaneLink::relax(uint32_t looks) const {
    if (shape_.poll_policy != DUCK_POLL_SPIN && looks >= kLooksBeforeYield)
        sched_yield();
    else
        __builtin_ia32_pause();
}

void LaneLink::answer(Lane &lane, int32_t number) {
    duckhost_lane_call call{};
    call.seen_ns = now_ns();
    call.layer = static_cast<uint32_t>(
        __atomic_load_n(lane.box.flags + DUCKHOST_LANE_LAYER, __ATOMIC_RELAXED));
    duckhost_lane_outcome &outcome = lane.outcome;
    if (outcome.error.code == DUCKHOST_OK &&
        make_call(lane, call.layer, call, &outcome.error) != DUCKHOST_OK)
        outcome.failed_layer = call.layer;
    if (outcome.error.code != DUCKHOST_OK)
        std::memset(lane.box.result, 0, shape_.hidden_size * sizeof(float));
    lane.answered = number;
    __atomic_store_n(lane.box.flags + DUCKHOST_LANE_ANSWERED, number, __ATOMIC_RELEASE);
    call.answered_ns = now_ns();
    if (outcome.calls < DUCKHOST_LANE_CALLS_MAX) lane.call[outcome.calls] = call;
    outcome.calls++;
}

int LaneLink::check_call(const Lane &lane, uint32_t layer, duckhost_error *error) const {
    if (layer >= DUCKHOST_LANE_LAYERS_MAX || (shape_.layers[layer / 64] >> layer % 64 & 1) == 0)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "layer %u has no experts", layer);
    for (uint32_t place = 0; place < shape_.top_k; place++)
        if (lane.box.expert[place] >= shape_.expert_count)
            return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "expert id %u, there are %u",
                        lane.box.expert[place], shape_.expert_count);
    return DUCKHOST_OK;
}

int LaneLink::make_call(Lane &lane, uint32_t layer, duckhost_lane_call &call,
                        duckhost_error *error) {
    if (int code = check_call(lane, layer, error)) return code;
    lane.message.fill(lane.box, layer);
    uint64_t ticket = 0;
    if (int code =
            duckhost_submit(fleet_, lane.message.data(), lane.message.size(), &ticket, error))
        return code;
    call.sent_ns = now_ns();
    duckhost_timing timing{};
    if (int code = duckhost_wait_sum(fleet_, ticket, shape_.result_dtype, lane.box.result,
                                     shape_.hidden_size, &timing, error))
        return code;
    call.call = timing.call;
    call.session = static_cast<uint32_t>(ticket >> 32);
    call.total_ns = timing.total_ns;
    call.kernel_ns = timing.kernel_ns;
    return DUCKHOST_OK;
}

} // namespace duckhost

// ---- the C interface ----------------------------------------------------------------------------

struct duckhost_lanes {
    duckhost::LaneLink link;
};

using duckhost::fail;

static int null_argument(duckhost_error *error) {
    return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "a pointer is null");
}

extern "C" {

int duckhost_lanes_open(duckhost_fleet *fleet, const duckhost_lane *lanes, uint32_t lane_count,
                        const duckhost_lane_shape *shape, duckhost_lanes **out,
                        duckhost_error *error) {
    if (fleet == nullptr || lanes == nullptr || shape == nullptr || out == nullptr)
        return null_argument(error);
    try {
        auto made = std::make_unique<duckhost_lanes>();
        const int code = made->link.open(fleet, lanes, lane_count, *shape, error);
        if (code == DUCKHOST_OK) *out = made.release();
        return code;
    } catch (const std::exception &problem) {
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "%s", problem.what());
    }
}

int duckhost_lanes_begin(duckhost_lanes *lanes, duckhost_error *error) {
    return lanes == nullptr ? null_argument(error) : lanes->link.begin(error);
}

int duckhost_lanes_end(duckhost_lanes *lanes, duckhost_lane_outcome *outcomes, uint32_t count,
                       duckhost_error *error) {
    if (lanes == nullptr || outcomes == nullptr) return null_argument(error);
    return lanes->link.end(outcomes, count, error);
}

int duckhost_lanes_calls(duckhost_lanes *lanes, uint32_t lane, duckhost_lane_call *out,
                         uint32_t count_max, uint32_t *count, duckhost_error *error) {
    if (lanes == nullptr || out == nullptr || count == nullptr) return null_argument(error);
    return lanes->link.calls(lane, out, count_max, count, error);
}

void duckhost_lanes_close(duckhost_lanes *lanes) { delete lanes; }

} // extern "C"
