/* SPDX-License-Identifier: Apache-2.0
 *
 * Input and output of the experts kernel: what a CALL message carries and what a RESULT message
 * brings back.
 * The duck core does not look into either; the kernel checks every field.
 *
 * CALL message    struct duck_experts_call
 *                 uint16_t expert[token_count][top_k]      expert ids; DUCK_EXPERT_NONE = unused
 *                 place
 *                 zero bytes up to a multiple of 8
 *                 float    weight[token_count][top_k]      routing weights (routed_scaling_factor
 *                 included)
 *                 zero bytes up to a multiple of 64, counted from the start of the message
 *                 activation[token_count][hidden_size]     float32 or bf16
 * RESULT message  output[token_count][hidden_size]         float32 or bf16: this duck's partial
 * sums
 *
 *     y[t] = sum over j of weight[t][j] * down_e( silu(gate_e(x[t])) * up_e(x[t]) ),  e =
 *     expert[t][j]
 *
 * restricted to the duck's slice of the MoE intermediate rows. The result of one token does not
 * depend on the other
 * tokens of the call, on core_count, or on the body used: fixed reduction order
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

enum duck_dtype { DUCK_DTYPE_F32 = 0, DUCK_DTYPE_BF16 = 1 };

struct duck_experts_call {
    uint32_t magic;
    uint32_t layer; /* model layer index, as in the checkpoint */
    uint32_t token_count;
    uint32_t top_k;
    uint32_t hidden_size;
    uint8_t activation_dtype; /* enum duck_dtype */
    uint8_t result_dtype;     /* enum duck_dtype */
    uint16_t reserved;
    uint32_t activation_offset; /* from the start of the message, a multiple of 64 */
    uint32_t reserved2;
};
static_assert(sizeof(struct duck_experts_call) == 32, "experts call");

#endif
