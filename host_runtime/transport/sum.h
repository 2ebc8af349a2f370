// SPDX-License-Identifier: Apache-2.0
//
// Adding up the ducks' outputs. Every element is added in the order of the calls, so the bits do
// not depend on which duck answered first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace duckhost {

// `first`: store instead of add. `bytes` starts 64-byte aligned and holds `count` values.
void sum_f32(float *out, const uint8_t *bytes, size_t count, bool first);
void sum_bf16(float *out, const uint8_t *bytes, size_t count, bool first);

} // namespace duckhost
