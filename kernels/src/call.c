/* SPDX-License-Identifier: Apache-2.0
 *
 * A call before its arithmetic: checks, scratch, and the plan. Every core does this by itself: it
 * takes less time than agreeing on it.
 */
#include "kernel.h"

#define INSERTION_SORT_MAX 64u

static bool refuse(struct duck_text *text, const char *name, uint64_t found, const char *expected) {
    duck_text_append(text, "call: ");
    duck_text_mismatch(text, name, found, expected);
    return false;
}

static bool refuse_number(struct duck_text *text, const char *name, uint64_t found,
                          uint64_t expected) {
    refuse(text, name, found, "");
    duck_text_number(text, expected);
    return false;
}

static bool check_fields(const struct duck_directory *d, const struct duck_experts_call *call,
                         struct duck_text *text) {
    if (call->magic != DUCK_EXPERTS_CALL_MAGIC) {
        return refuse_number(text, "magic", call->magic, DUCK_EXPERTS_CALL_MAGIC);
    }
    if (call->token_count == 0 || call->token_count > DUCK_EXPERTS_TOKENS_MAX) {
        return refuse(text, "token_count", call->token_count, "1 to 512");
    }
    if (call->top_k == 0 || call->top_k > DUCK_EXPERTS_TOP_K_MAX) {
        return refuse(text, "top_k", call->top_k, "1 to 16");
    }
    if (call->hidden_size != d->hidden_size) {
        return refuse_number(text, "hidden_size", call->hidden_size, d->hidden_size);
    }
    if (call->activation_dtype > DUCK_DTYPE_FP8) {
        return refuse(text, "activation_dtype", call->activation_dtype,
                      "0 (f32), 1 (bf16) or 2 (fp8)");
    }
    if (call->result_dtype > DUCK_DTYPE_BF16) {
        return refuse(text, "result_dtype", call->result_dtype, "0 (f32) or 1 (bf16)");
    }
    if (call->reserved != 0) {
        return refuse(text, "reserved field", call->reserved, "0");
    }
    if (duck_find_layer(d, call->layer) < 0) {
        return refuse(text, "layer", call->layer, "one of the directory's layers");
    }
    return true;
}

static bool check_sizes(const struct duck_experts_call *call, const struct duck_kernel_slot *slot,
                        struct duck_text *text) {
    uint64_t values = (uint64_t)call->token_count * call->hidden_size;
    uint32_t offset = duck_experts_activation_offset(call->token_count, call->top_k);
    uint64_t input = offset + duck_experts_activation_bytes(call->token_count, call->hidden_size,
                                                            call->activation_dtype);
    uint64_t output = values * (call->result_dtype == DUCK_DTYPE_BF16 ? 2 : 4);
    if (call->activation_offset != offset) {
        return refuse_number(text, "activation_offset", call->activation_offset, offset);
    }
    if (slot->input_bytes != input) {
        return refuse_number(text, "length", slot->input_bytes, input);
    }
    if (slot->output_bytes_max < output) {
        duck_text_append(text, "call: the result needs ");
        duck_text_number(text, output);
        duck_text_append(text, " bytes, the session's result buffer has ");
        duck_text_number(text, slot->output_bytes_max);
        return false;
    }
    return true;
}

static bool check_padding(const uint8_t *bytes, uint32_t begin, uint32_t end,
                          struct duck_text *text) {
    for (uint32_t i = begin; i < end; i++) {
        if (bytes[i] != 0) return refuse(text, "padding byte", bytes[i], "0");
    }
    return true;
}

static bool check_experts(const struct duck_directory *d, const struct duck_job *job,
                          struct duck_text *text) {
    for (uint32_t p = 0; p < job->pairs; p++) {
        uint16_t expert = job->expert[p];
        if (expert >= d->expert_count && expert != DUCK_EXPERT_NONE) {
            refuse(text, "expert", expert, "less than ");
            duck_text_number(text, d->expert_count);
            duck_text_append(text, " or 65535 (none); token ");
            duck_text_number(text, p / job->top_k);
            return false;
        }
    }
    return true;
}

/* Lay the job's buffers into scratch (the formula of experts.h). */
static bool place_scratch(const struct duck_core *core, struct duck_job *job,
                          struct duck_text *text) {
    const struct duck_kernel_context *context = core->context;
    uint64_t needed = duck_experts_scratch_bytes(job->hidden, core->directory->rows, job->tokens,
                                                 job->top_k, context->core_count);
    if (needed > context->scratch_bytes) {
        duck_text_append(text, "call: needs ");
        duck_text_number(text, needed);
        duck_text_append(text, " bytes of scratch, the session has ");
        duck_text_number(text, context->scratch_bytes);
        return false;
    }
    uint64_t core_bytes = duck_experts_scratch_core_bytes(job->hidden, job->tokens, job->top_k);
    uint8_t *own =
        context->scratch + context->scratch_bytes / 4096 * 4096 - (core->index + 1) * core_bytes;
    float *shared_x = (float *)(context->scratch + 4096);
    job->h = shared_x + (uint64_t)job->tokens * job->hidden;
    job->x = shared_x;
    float *own_x = (float *)own;
    if (job->tokens <= 2) job->x = own_x;
    job->sums = own_x + 2 * (uint64_t)job->hidden;
    uint64_t sums = 32 * (uint64_t)job->pairs;
    job->entry_pair =
        (uint32_t *)(job->sums + (sums > DUCK_EXPERTS_SUM_FLOATS ? sums : DUCK_EXPERTS_SUM_FLOATS));
    job->entry_token = job->entry_pair + job->pairs;
    job->group_expert = job->entry_token + job->pairs;
    job->group_first = job->group_expert + job->pairs;
    return true;
}

bool duck_check_call(const struct duck_core *core, const struct duck_kernel_slot *slot,
                     struct duck_job *job, struct duck_text *text) {
    const struct duck_kernel_context *context = core->context;
    const struct duck_directory *d = core->directory;
    if (slot->input_bytes < sizeof(struct duck_experts_call)) {
        return refuse(text, "length", slot->input_bytes, "at least 32");
    }
    const uint8_t *input = context->calls + slot->input_offset;
    const struct duck_experts_call *call = (const struct duck_experts_call *)input;
    if (!check_fields(d, call, text) || !check_sizes(call, slot, text)) return false;
    uint32_t weight_offset = duck_experts_weight_offset(call->token_count, call->top_k);
    job->call = call;
    job->body = call->body == 0 ? core->body : duck_find_body(d->format, call->body);
    if (job->body == NULL) return refuse(text, "body", call->body, "one that this kernel has");
    job->tokens = call->token_count;
    job->top_k = call->top_k;
    job->pairs = call->token_count * call->top_k;
    job->hidden = call->hidden_size;
    job->expert = (const uint16_t *)(input + sizeof(*call));
    job->weight = (const float *)(input + weight_offset);
    job->activation = input + call->activation_offset;
    job->output = context->calls + slot->output_offset;
    job->output_bytes =
        job->tokens * job->hidden * (call->result_dtype == DUCK_DTYPE_BF16 ? 2u : 4u);
    uint64_t layer = (uint64_t)duck_find_layer(d, call->layer);
    job->segment = context->weights + DUCK_DIRECTORY_BYTES + layer * d->segment_bytes;
    return check_padding(input, 32 + 2 * job->pairs, weight_offset, text) &&
           check_padding(input, weight_offset + 4 * job->pairs, call->activation_offset, text) &&
           check_experts(d, job, text) && place_scratch(core, job, text);
}

/* ---- plan ------------------------------------------------------------------------------------ */

static void insertion_sort(const uint16_t *expert, uint32_t *pair, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        uint32_t moving = pair[i];
        uint32_t at = i;
        while (at > 0 && expert[pair[at - 1]] > expert[moving]) {
            pair[at] = pair[at - 1];
            at--;
        }
        pair[at] = moving;
    }
}

/* One stable counting pass over eight bits of the expert id. */
static void radix_pass(const uint16_t *expert, const uint32_t *from, uint32_t *to, uint32_t count,
                       uint32_t shift) {
    uint32_t start[257] = {0};
    for (uint32_t i = 0; i < count; i++) start[(expert[from[i]] >> shift & 0xFFu) + 1]++;
    for (uint32_t b = 0; b < 256; b++) start[b + 1] += start[b];
    for (uint32_t i = 0; i < count; i++) to[start[expert[from[i]] >> shift & 0xFFu]++] = from[i];
}

void duck_plan(struct duck_job *job) {
    uint32_t count = 0;
    for (uint32_t p = 0; p < job->pairs; p++) {
        if (job->expert[p] != DUCK_EXPERT_NONE) job->entry_pair[count++] = p;
    }
    if (count <= INSERTION_SORT_MAX) {
        insertion_sort(job->expert, job->entry_pair, count);
    } else {
        radix_pass(job->expert, job->entry_pair, job->entry_token, count, 0);
        radix_pass(job->expert, job->entry_token, job->entry_pair, count, 8);
    }
    uint32_t groups = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t expert = job->expert[job->entry_pair[i]];
        job->entry_token[i] = job->entry_pair[i] / job->top_k;
        if (groups == 0 || job->group_expert[groups - 1] != expert) {
            job->group_expert[groups] = expert;
            job->group_first[groups++] = i;
        }
    }
    job->group_first[groups] = count;
    job->group_count = groups;
    job->entry_count = count;
}
