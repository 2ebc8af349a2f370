// SPDX-License-Identifier: Apache-2.0
//
// Prints the CALL message that a lane makes of the mailbox on standard input.
//
//     lane_message HIDDEN TOP_K ACTIVATION RESULT LAYER < hidden, weights, experts
#include "program.h"

#include <lane_message.h>

int main(int count, char **words) {
    require(count == 6, "usage: lane_message HIDDEN TOP_K ACTIVATION RESULT LAYER");
    uint32_t number[5];
    for (int i = 0; i < 5; i++) number[i] = static_cast<uint32_t>(std::stoul(words[i + 1]));
    duckhost_lane_shape shape{};
    shape.hidden_size = number[0];
    shape.top_k = number[1];
    shape.activation_dtype = number[2];
    shape.result_dtype = number[3];
    std::vector<float> hidden(shape.hidden_size), weight(shape.top_k);
    std::vector<uint16_t> expert(shape.top_k);
    const bool is_whole = std::fread(hidden.data(), 4, hidden.size(), stdin) == hidden.size() &&
                          std::fread(weight.data(), 4, weight.size(), stdin) == weight.size() &&
                          std::fread(expert.data(), 2, expert.size(), stdin) == expert.size();
    require(is_whole, "the mailbox is whole");
    duckhost::LaneMessage message;
    require(message.prepare(shape), "there is memory");
    message.fill({nullptr, expert.data(), weight.data(), hidden.data(), nullptr}, number[4]);
    require(std::fwrite(message.data(), 1, message.size(), stdout) == message.size(), "written");
    return 0;
}
