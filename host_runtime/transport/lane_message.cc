// SPDX-License-Identifier: Apache-2.0
#include "lane_message.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace duckhost {
namespace {

constexpr size_t kAlignment = 64;
constexpr uint32_t kBlock = 128; // values that share an FP8 scale
constexpr float kE4m3Max = 448.0f;

} // namespace

uint16_t to_bf16(float value) {
    if (std::isnan(value)) return 0x7FC0;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint8_t to_e4m3(float value) {
    constexpr uint32_t kFirstTooLarge = 1087u << 20;                     // 480
    constexpr uint32_t kFirstNormal = 121u << 23;                        // 2^-6
    constexpr uint32_t kSubnormalBias = (127u - 7 + (23 - 3) + 1) << 23; // 2^14: its ulp is 2^-9
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
    bits &= 0x7FFFFFFF;
    if (bits >= kFirstTooLarge) return sign | 0x7F;
    if (bits < kFirstNormal) { // the addition rounds to a multiple of 2^-9
        float magnitude, bias;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        std::memcpy(&bias, &kSubnormalBias, sizeof bias);
        magnitude += bias;
        std::memcpy(&bits, &magnitude, sizeof bits);
        return static_cast<uint8_t>(sign | (bits - kSubnormalBias));
    }
    const uint32_t odd = bits >> 20 & 1;
    bits += 0x7FFFF + odd;
    bits -= (127u - 7) << 23;
    return static_cast<uint8_t>(sign | bits >> 20);
}

void LaneMessage::Free::operator()(uint8_t *memory) const { std::free(memory); }

bool LaneMessage::prepare(const duckhost_lane_shape &shape) {
    shape_ = shape;
    const auto dtype = static_cast<uint8_t>(shape.activation_dtype);
    weight_at_ = duck_experts_weight_offset(1, shape.top_k);
    activation_at_ = duck_experts_activation_offset(1, shape.top_k);
    size_ = activation_at_ +
            static_cast<uint32_t>(duck_experts_activation_bytes(1, shape.hidden_size, dtype));
    const size_t room = (size_ + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.reset(static_cast<uint8_t *>(std::aligned_alloc(kAlignment, room)));
    if (!bytes_) return false;
    std::memset(bytes_.get(), 0, room);
    duck_experts_call head{};
    head.magic = DUCK_EXPERTS_CALL_MAGIC;
    head.token_count = 1;
    head.top_k = shape.top_k;
    head.hidden_size = shape.hidden_size;
    head.activation_dtype = dtype;
    head.result_dtype = static_cast<uint8_t>(shape.result_dtype);
    head.activation_offset = activation_at_;
    std::memcpy(bytes_.get(), &head, sizeof head);
    return true;
}

void LaneMessage::fill(const duckhost_lane &lane, uint32_t layer) {
    uint8_t *bytes = bytes_.get();
    std::memcpy(bytes + offsetof(duck_experts_call, layer), &layer, sizeof layer);
    std::memcpy(bytes + sizeof(duck_experts_call), lane.expert, shape_.top_k * sizeof(uint16_t));
    std::memcpy(bytes + weight_at_, lane.weight, shape_.top_k * sizeof(float));
    uint8_t *activation = bytes + activation_at_;
    switch (shape_.activation_dtype) {
    case DUCK_DTYPE_BF16:
        for (uint32_t i = 0; i < shape_.hidden_size; i++) {
            const uint16_t half = to_bf16(lane.hidden[i]);
            std::memcpy(activation + sizeof half * i, &half, sizeof half);
        }
        return;
    case DUCK_DTYPE_FP8: fill_fp8(lane.hidden); return;
    default: std::memcpy(activation, lane.hidden, shape_.hidden_size * sizeof(float));
    }
}

// The largest magnitude of each block becomes 448; blocks of zeros or with NaN keep their values.
void LaneMessage::fill_fp8(const float *hidden) {
    uint8_t *activation = bytes_.get() + activation_at_;
    uint8_t *scales = activation + shape_.hidden_size;
    for (uint32_t block = 0; block < shape_.hidden_size / kBlock; block++) {
        const float *value = hidden + size_t{block} * kBlock;
        float largest = 0;
        for (uint32_t i = 0; i < kBlock; i++) {
            const float magnitude = std::fabs(value[i]);
            if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;
            if (std::isnan(magnitude)) break;
        }
        float scale = largest / kE4m3Max;
        if (!(scale > 0)) scale = 1;
        for (uint32_t i = 0; i < kBlock; i++)
            activation[size_t{block} * kBlock + i] = to_e4m3(value[i] / scale);
        std::memcpy(scales + block * sizeof scale, &scale, sizeof scale);
    }
}

} // namespace duckhost
