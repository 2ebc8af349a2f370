/* SPDX-License-Identifier: Apache-2.0
 *
 * The read call: what the memory gives when nothing is computed. Kernels are judged against it.
 */
#include "kernel.h"

#define WORDS_PER_STEP 16u /* 128 bytes */

static bool refuse(struct duck_text *text, const char *name, uint64_t found, const char *expected) {
    duck_text_append(text, "read: ");
    duck_text_mismatch(text, name, found, expected);
    return false;
}

static bool check(const struct duck_core *core, const struct duck_kernel_slot *slot,
                  const struct duck_experts_read *call, struct duck_text *text) {
    uint64_t weights = core->context->weights_bytes;
    if (slot->input_bytes != sizeof(*call)) {
        return refuse(text, "length", slot->input_bytes, "24");
    }
    if (call->core_count > core->context->core_count) {
        return refuse(text, "core_count", call->core_count, "at most the session's");
    }
    if (call->offset % 64 != 0 || call->offset > weights) {
        return refuse(text, "offset", call->offset, "a multiple of 64 within the weights");
    }
    if (call->bytes % 64 != 0 || call->bytes > weights - call->offset) {
        return refuse(text, "bytes", call->bytes, "a multiple of 64 within the weights");
    }
    if (slot->output_bytes_max < sizeof(struct duck_experts_read_result)) {
        return refuse(text, "size of the result buffer", slot->output_bytes_max, "at least 8");
    }
    return true;
}

static uint64_t sum_words(const uint64_t *word, uint64_t count) {
    uint64_t sum[WORDS_PER_STEP] = {0};
    uint64_t i = 0;
    for (; i + WORDS_PER_STEP <= count; i += WORDS_PER_STEP) {
        for (uint32_t lane = 0; lane < WORDS_PER_STEP; lane++) sum[lane] += word[i + lane];
    }
    for (; i < count; i++) sum[0] += word[i];
    for (uint32_t lane = 1; lane < WORDS_PER_STEP; lane++) sum[0] += sum[lane];
    return sum[0];
}

bool duck_run_read(const struct duck_core *core, const struct duck_kernel_slot *slot,
                   uint32_t *output_bytes, struct duck_text *text) {
    const struct duck_experts_read *call =
        (const struct duck_experts_read *)(core->context->calls + slot->input_offset);
    if (!check(core, slot, call, text)) return false;
    uint32_t cores = call->core_count == 0 ? core->context->core_count : call->core_count;
    uint64_t lines = call->bytes / 64;
    if (core->index < cores) {
        uint64_t first = lines * core->index / cores;
        uint64_t end = lines * (core->index + 1) / cores;
        const uint8_t *begin = core->context->weights + call->offset + 64 * first;
        uint64_t sum = sum_words((const uint64_t *)begin, 8 * (end - first));
        __atomic_fetch_add(&core->shared->read_sum, sum, __ATOMIC_ACQ_REL);
    }
    *output_bytes = sizeof(struct duck_experts_read_result);
    return true;
}
