// SPDX-License-Identifier: Apache-2.0
//
// Plain loops that the compiler turns into SIMD (this file is built with -O3); a clone for AVX2 is
// chosen at load time where the CPU has it. Element-wise addition gives the same bits in both.
#include "sum.h"

#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DUCKHOST_CLONES [[gnu::target_clones("avx2", "default")]]
#else
#define DUCKHOST_CLONES
#endif

namespace duckhost {

DUCKHOST_CLONES void sum_f32(float *__restrict out, const uint8_t *__restrict bytes, size_t count,
                             bool first) {
    if (first) {
        std::memcpy(out, bytes, count * sizeof(float));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        float value;
        std::memcpy(&value, bytes + i * sizeof value, sizeof value);
        out[i] += value;
    }
}

DUCKHOST_CLONES void sum_bf16(float *__restrict out, const uint8_t *__restrict bytes, size_t count,
                              bool first) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        std::memcpy(&half, bytes + i * sizeof half, sizeof half);
        const uint32_t word = static_cast<uint32_t>(half) << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        out[i] = first ? value : out[i] + value;
    }
}

} // namespace duckhost
