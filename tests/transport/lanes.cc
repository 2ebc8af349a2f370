// SPDX-License-Identifier: Apache-2.0
//
// Mailboxes in plain memory, this program as the card, real ducks: to be built with sanitizers.
//
//     lanes KEY_HEX KERNEL.elf STEPS PORT...
#include "program.h"

#include <duck/experts.h>
#include <duckhost_lanes.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

namespace {

constexpr uint32_t kHidden = 1792, kTopK = 4, kExperts = 16, kCalls = 12, kLanes = 2;
constexpr uint32_t kRefused = 7, kCrashing = 8; // layers of echo_kernel.c
constexpr std::chrono::seconds kAnswerLimit{60};

struct Box {
    std::array<int32_t, 32> flags{};
    std::array<uint16_t, kTopK> expert{};
    std::array<float, kTopK> weight{};
    std::array<float, kHidden> hidden{}, result{};

    duckhost_lane lane() {
        return {flags.data(), expert.data(), weight.data(), hidden.data(), result.data()};
    }
};

struct Card {
    std::array<Box, kLanes> box;
    duckhost_lanes *lanes = nullptr;
    float factors = 0; // of all ducks together

    // Small whole numbers: sums are exact.
    void post(uint32_t lane, uint32_t layer, uint32_t seed) {
        Box &to = box[lane];
        for (uint32_t j = 0; j < kTopK; j++) {
            to.expert[j] = static_cast<uint16_t>((seed + j) % kExperts);
            to.weight[j] = static_cast<float>(1 + (seed + j) % 3);
        }
        for (uint32_t i = 0; i < kHidden; i++) to.hidden[i] = static_cast<float>((seed + i) % 500);
        to.flags[DUCKHOST_LANE_LAYER] = static_cast<int32_t>(layer);
        __atomic_store_n(&to.flags[DUCKHOST_LANE_POSTED], to.flags[DUCKHOST_LANE_POSTED] + 1,
                         __ATOMIC_RELEASE);
    }

    Box &answered(uint32_t lane) {
        Box &from = box[lane];
        const auto give_up = std::chrono::steady_clock::now() + kAnswerLimit;
        while (__atomic_load_n(&from.flags[DUCKHOST_LANE_ANSWERED], __ATOMIC_ACQUIRE) !=
               from.flags[DUCKHOST_LANE_POSTED]) {
            require(std::chrono::steady_clock::now() < give_up, "the lane is answered");
            std::this_thread::yield();
        }
        return from;
    }

    bool is_right(uint32_t lane, uint32_t layer) {
        const Box &from = answered(lane);
        auto shift = static_cast<float>(layer);
        for (uint32_t j = 0; j < kTopK; j++)
            shift += from.weight[j] * static_cast<float>(from.expert[j] + 1);
        for (uint32_t i = 0; i < kHidden; i++)
            if (from.result[i] != (from.hidden[i] + shift) * factors) return false;
        return true;
    }

    bool is_zero(uint32_t lane) {
        for (const float value : answered(lane).result)
            if (value != 0) return false;
        return true;
    }

    void begin() {
        duckhost_error error;
        check(duckhost_lanes_begin(lanes, &error), error, "begin");
    }

    std::array<duckhost_lane_outcome, kLanes> end() {
        duckhost_error error;
        std::array<duckhost_lane_outcome, kLanes> outcome;
        check(duckhost_lanes_end(lanes, outcome.data(), kLanes, &error), error, "end");
        return outcome;
    }

    void close() {
        duckhost_lanes_close(lanes);
        lanes = nullptr;
    }
};

std::unique_ptr<Card> open_card(const Fleet &fleet, uint32_t poll_policy) {
    auto card = std::make_unique<Card>();
    card->factors = static_cast<float>(fleet.ducks * (fleet.ducks + 1) / 2);
    duckhost_lane lane[kLanes];
    for (uint32_t i = 0; i < kLanes; i++) lane[i] = card->box[i].lane();
    duckhost_lane_shape shape{};
    shape.hidden_size = kHidden;
    shape.top_k = kTopK;
    shape.expert_count = kExperts;
    shape.poll_policy = poll_policy;
    shape.layers[0] = 0x1FF; // 0 to 8
    duckhost_error error;
    check(duckhost_lanes_open(fleet.handle, lane, kLanes, &shape, &card->lanes, &error), error,
          "lanes_open");
    return card;
}

// As a captured step does it: a lane's next call follows its last answer, lanes in turns.
void run_steps(Card &card, uint32_t steps) {
    for (uint32_t step = 0; step < steps; step++) {
        card.begin();
        for (uint32_t call = 0; call <= kCalls; call++)
            for (uint32_t lane = 0; lane < kLanes; lane++) {
                if (call > 0) require(card.is_right(lane, (call - 1) % 7), "the sum is right");
                if (call < kCalls) card.post(lane, call % 7, 31 * step + 2 * call + lane);
            }
        for (const duckhost_lane_outcome &outcome : card.end())
            require(outcome.calls == kCalls && outcome.error.code == 0, "the step is fine");
    }
    duckhost_lane_call calls[2 * kCalls];
    uint32_t count = 0;
    duckhost_error error;
    check(duckhost_lanes_calls(card.lanes, 1, calls, 2 * kCalls, &count, &error), error, "calls");
    require(count == kCalls, "every call is remembered");
    for (uint32_t i = 0; i < count; i++)
        require(calls[i].layer == i % 7 && calls[i].seen_ns <= calls[i].sent_ns &&
                    calls[i].sent_ns <= calls[i].answered_ns,
                "times are in order");
}

// A duck refuses one call: that lane fails with the duck's words, the other lane goes on.
void fail_one_lane(Card &card) {
    card.begin();
    card.post(0, kRefused, 1);
    card.post(1, 2, 2);
    require(card.is_zero(0) && card.is_right(1, 2), "the refused call is answered with zeros");
    card.post(0, 3, 3);
    card.post(1, 4, 4);
    require(card.is_zero(0) && card.is_right(1, 4), "the lane's later calls too");
    const auto outcome = card.end();
    require(outcome[0].error.code == DUCKHOST_ERR_FAULT && outcome[0].failed_layer == kRefused &&
                std::strstr(outcome[0].error.text, "seven is refused") != nullptr,
            "the error has the duck's words");
    require(outcome[1].error.code == 0 && outcome[1].calls == 2, "the other lane is fine");
}

void crash(Card &card) {
    card.begin();
    card.post(0, kCrashing, 1);
    require(card.is_zero(0), "a crash is answered");
    card.post(1, 2, 2);
    require(card.is_zero(1), "the session has ended for the other lane too");
    for (const duckhost_lane_outcome &outcome : card.end())
        require(outcome.error.code == DUCKHOST_ERR_FAULT &&
                    std::strstr(outcome.error.text, "memory access") != nullptr,
                "both lanes name the fault");
}

void refuse_nonsense(const Fleet &fleet, Card &card) {
    duckhost_error error;
    duckhost_lane_outcome outcome[kLanes + 1];
    uint32_t count = 0;
    duckhost_lane_call call;
    require(duckhost_lanes_end(card.lanes, outcome, kLanes + 1, &error) == DUCKHOST_ERR_ARGUMENT,
            "too many outcomes");
    require(duckhost_lanes_calls(card.lanes, kLanes, &call, 1, &count, &error) ==
                DUCKHOST_ERR_ARGUMENT,
            "no such lane");
    card.begin();
    require(duckhost_lanes_begin(card.lanes, &error) == DUCKHOST_ERR_STATE, "a step runs already");
    card.end();
    duckhost_lane lane = card.box[0].lane();
    duckhost_lanes *out = nullptr;
    duckhost_lane_shape shape{};
    const auto refused = [&](uint32_t lanes, const char *words) {
        require(duckhost_lanes_open(fleet.handle, &lane, lanes, &shape, &out, &error) ==
                        DUCKHOST_ERR_ARGUMENT &&
                    std::strstr(error.text, words) != nullptr,
                words);
    };
    refused(0, "0 lanes: expected 1 to 8");
    refused(1, "hidden_size is 0");
    shape.hidden_size = 128;
    refused(1, "top_k is 0: expected 1 to 16");
    shape.top_k = 1;
    shape.result_dtype = DUCK_DTYPE_FP8;
    refused(1, "dtypes 0 and 2");
    shape.result_dtype = DUCK_DTYPE_F32;
    lane.result = nullptr;
    refused(1, "lane 0: a pointer is null");
}

} // namespace

int main(int count, char **words) {
    require(count >= 5, "usage: lanes KEY_HEX KERNEL.elf STEPS PORT...");
    Fleet fleet = open_fleet(words[1], words[2], words + 4, static_cast<uint32_t>(count - 4));
    const auto steps = static_cast<uint32_t>(std::stoul(words[3]));
    load_all(fleet);
    open_session(fleet);
    duckhost_error error;
    duckhost_faults faults{};
    faults.seed = 5;
    faults.drop = faults.duplicate = faults.reorder = 0.03;
    check(duckhost_set_faults(fleet.handle, &faults, &error), error, "set_faults");
    for (const uint32_t policy : {uint32_t{DUCK_POLL_BLOCK}, uint32_t{DUCK_POLL_SPIN}}) {
        auto card = open_card(fleet, policy);
        run_steps(*card, policy == DUCK_POLL_SPIN ? 2 : steps);
        fail_one_lane(*card);
        refuse_nonsense(fleet, *card);
        run_steps(*card, 1);
        card->begin(); // and never ended
        card->close();
    }
    auto card = open_card(fleet, DUCK_POLL_SLEEP);
    crash(*card);
    duckhost_close(fleet.handle); // the lanes sleep: they do not use it
    card->close();
    std::printf("the lanes are over\n");
    return 0;
}
