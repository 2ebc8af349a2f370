/* SPDX-License-Identifier: Apache-2.0
 *
 * Input and output of the experts kernel: what a CALL message carries and what a RESULT message
 * brings back. The duck core does not look into either; the kernel checks every field.
 *
 * CALL message    struct duck_experts_call
 *                 uint16_t expert[token_count][top_k]      DUCK_EXPERT_NONE = unused place
 *                 zero bytes up to a multiple of 8
 *                 float    weight[token_count][top_k]      routed_scaling_factor included
 *                 zero bytes up to a multiple of 64, counted from the start of the message
 *                 activation[token_count][hidden_size]     float32, bf16 or fp8
 * RESULT message  output[token_count][hidden_size]         float32 or bf16: partial sums
 *
 *     y[t] = sum over j of weight[t][j] * down_e( silu(gate_e(x[t])) * up_e(x[t]) ),
 *            e = expert[t][j],
 *
 * restricted to the duck's slice of the MoE intermediate rows. The result of one token does not
 * depend on the other tokens of the call, on core_count, or on the body used: fixed reduction order
 * (docs/reference/shard-format.md).
 */
#ifndef DUCK_EXPERTS_H
#define DUCK_EXPERTS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DUCK_EXPERTS_CALL_MAGIC 0x4C4C4143u /* "CALL" */
#define DUCK_EXPERT_NONE 0xFFFFu
#define DUCK_EXPERTS_TOKENS_MAX 512u
#define DUCK_EXPERTS_TOP_K_MAX 16u

/* FP8, of activations only: E4M3 values; behind all of them float32 scale[token_count][blocks], a
 * block being 128 values, and value = E4M3 * the scale of its block. */
enum duck_dtype { DUCK_DTYPE_F32 = 0, DUCK_DTYPE_BF16 = 1, DUCK_DTYPE_FP8 = 2 };

struct duck_experts_call {
    uint32_t magic;
    uint32_t layer; /* model layer index, as in the checkpoint */
    uint32_t token_count;
    uint32_t top_k;
    uint32_t hidden_size;
    uint8_t activation_dtype; /* enum duck_dtype */
    uint8_t result_dtype;     /* enum duck_dtype */
    uint16_t body; /* 0 = what the kernel chose; n = its n-th body for the format (same bits) */
    uint32_t activation_offset; /* from the start of the message, a multiple of 64 */
    uint32_t reserved;
};
static_assert(sizeof(struct duck_experts_call) == 32, "experts call");

/* A call that measures instead: the cores read [offset, offset + bytes) of the weights region in
 * equal parts, as fast as they can. The time is the call's kernel time. */
#define DUCK_EXPERTS_READ_MAGIC 0x44414552u /* "READ" */
struct duck_experts_read {
    uint32_t magic;
    uint32_t core_count; /* cores that read; 0 = all */
    uint64_t offset;     /* a multiple of 64 */
    uint64_t bytes;      /* a multiple of 64 */
};
struct duck_experts_read_result {
    uint64_t sum; /* of the 64-bit words, so that the reading cannot be left out */
};
static_assert(sizeof(struct duck_experts_read) == 24, "experts read");
static_assert(sizeof(struct duck_experts_read_result) == 8, "experts read result");

/* Where the parts of a CALL message are, from its start. */
static inline uint32_t duck_experts_weight_offset(uint32_t token_count, uint32_t top_k) {
    return (32 + 2 * token_count * top_k + 7) / 8 * 8;
}
static inline uint32_t duck_experts_activation_offset(uint32_t token_count, uint32_t top_k) {
    return (duck_experts_weight_offset(token_count, top_k) + 4 * token_count * top_k + 63) / 64 *
           64;
}

static inline uint64_t duck_experts_activation_bytes(uint32_t token_count, uint32_t hidden_size,
                                                     uint8_t dtype) {
    uint64_t values = (uint64_t)token_count * hidden_size;
    if (dtype == DUCK_DTYPE_FP8) return values + values / 128 * 4;
    return values * (dtype == DUCK_DTYPE_BF16 ? 2u : 4u);
}

/* Scratch that a session needs for calls of up to tokens_max x top_k_max: prepared activations and
 * SiLU outputs that all cores share, and for each core its plan and its sums. */
#define DUCK_EXPERTS_SUM_FLOATS 131072u /* sums of one core: at least this many */
static inline uint64_t duck_experts_scratch_core_bytes(uint32_t hidden, uint32_t tokens_max,
                                                       uint32_t top_k_max) {
    uint64_t pairs = (uint64_t)tokens_max * top_k_max;
    uint64_t sums = 32 * pairs > DUCK_EXPERTS_SUM_FLOATS ? 32 * pairs : DUCK_EXPERTS_SUM_FLOATS;
    uint64_t plan = 16 * pairs + 64;
    uint64_t floats = 2 * (uint64_t)hidden + sums;
    return (4 * floats + plan + 4095) / 4096 * 4096;
}
static inline uint64_t duck_experts_scratch_bytes(uint32_t hidden, uint32_t rows,
                                                  uint32_t tokens_max, uint32_t top_k_max,
                                                  uint32_t core_count) {
    uint64_t groups_max = (rows + 95) / 128 + 1; /* blocks that a slice of `rows` can touch */
    uint64_t pairs = (uint64_t)tokens_max * top_k_max;
    uint64_t shared = 4096 + 4 * (uint64_t)tokens_max * hidden + 512 * pairs * groups_max;
    return (shared + 4095) / 4096 * 4096 +
           core_count * duck_experts_scratch_core_bytes(hidden, tokens_max, top_k_max);
}

#endif
