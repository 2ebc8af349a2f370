/* SPDX-License-Identifier: Apache-2.0
 *
 * A small kernel for the transport's tests: what a call does is told by its first words. Core 0
 * works, the others wait for the end of the session.
 */
#include <duck/experts.h>
#include <duck/kernel_abi.h>

enum test_command {
    TEST_ECHO = 0,     /* output = input */
    TEST_SCALE = 1,    /* floats after the header, times the first float of the weights */
    TEST_GENERATE = 2, /* `argument` bytes made from the seed and the weights' first word */
    TEST_REFUSE = 3,   /* the call ends with status 7 */
    TEST_CRASH = 4,    /* write to address `argument` */
    TEST_FOREVER = 5,
    TEST_BUSY = 6, /* `argument` spins, then echo */
    /* One float32 row: times the factor, after layer and each weight * (expert + 1) were added.
     * Layer 7 is refused, layer 8 crashes. */
    TEST_EXPERTS = DUCK_EXPERTS_CALL_MAGIC,
};
enum { REFUSED_LAYER = 7, CRASHING_LAYER = 8 };

struct test_call {
    uint32_t command, argument, seed, reserved;
};

static const struct {
    uint32_t name_bytes, description_bytes, type;
    char name[8];
    struct duck_kernel_note note;
} kernel_note __attribute__((section(".note.duck"), used, aligned(4))) = {
    5,
    sizeof(struct duck_kernel_note),
    DUCK_KERNEL_NOTE_TYPE,
    "duck",
    {DUCK_KERNEL_ABI_VERSION, 0, "transport-test"},
};

static void copy(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) to[i] = from[i];
}

static void spin(uint32_t count) {
    for (volatile uint32_t i = 0; i < count; i++) {
    }
}

static void scale(const struct duck_kernel_context *context, float *to, const float *from,
                  uint32_t count) {
    const float factor = context->weights_bytes >= 4 ? *(const float *)context->weights : 1.0f;
    for (uint32_t i = 0; i < count; i++) to[i] = from[i] * factor;
}

static void generate(const struct duck_kernel_context *context, uint32_t *to, uint32_t count,
                     uint32_t seed) {
    if (context->weights_bytes >= 4) seed += *(const uint32_t *)context->weights;
    for (uint32_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = seed;
    }
}

static void refuse(struct duck_kernel_slot *slot) {
    slot->status = 7;
    copy((uint8_t *)slot->text, (const uint8_t *)"seven is refused", 17);
}

static void experts(const struct duck_kernel_context *context, struct duck_kernel_slot *slot,
                    const uint8_t *input, float *output) {
    const struct duck_experts_call *call = (const struct duck_experts_call *)input;
    const uint16_t *expert = (const uint16_t *)(input + sizeof *call);
    const float *weight = (const float *)(input + duck_experts_weight_offset(1, call->top_k));
    const float *hidden = (const float *)(input + call->activation_offset);
    float shift = (float)call->layer;
    if (call->layer == REFUSED_LAYER) {
        refuse(slot);
        return;
    }
    if (call->layer == CRASHING_LAYER) *(volatile uint32_t *)(uintptr_t)(4 * call->top_k) = 1;
    for (uint32_t j = 0; j < call->top_k; j++) shift += weight[j] * (float)(expert[j] + 1);
    slot->output_bytes = 4 * call->hidden_size;
    for (uint32_t i = 0; i < call->hidden_size; i++) output[i] = hidden[i] + shift;
    scale(context, output, output, call->hidden_size);
}

static void work(const struct duck_kernel_context *context, struct duck_kernel_slot *slot) {
    const uint8_t *input = context->calls + slot->input_offset;
    uint8_t *output = context->calls + slot->output_offset;
    const struct test_call *call = (const struct test_call *)input;
    slot->status = 0;
    slot->output_bytes = slot->input_bytes;
    switch (call->command) {
    case TEST_SCALE:
        slot->output_bytes = slot->input_bytes - (uint32_t)sizeof *call;
        scale(context, (float *)output, (const float *)(input + sizeof *call),
              slot->output_bytes / 4);
        return;
    case TEST_GENERATE:
        slot->output_bytes = call->argument;
        generate(context, (uint32_t *)output, call->argument / 4, call->seed);
        return;
    case TEST_REFUSE: refuse(slot); return;
    case TEST_CRASH: *(volatile uint32_t *)(uintptr_t)call->argument = 1; return;
    case TEST_FOREVER:
        for (;;) spin(1000000);
    case TEST_BUSY: spin(call->argument); break;
    case TEST_EXPERTS: experts(context, slot, input, (float *)output); return;
    default: break;
    }
    copy(output, input, slot->input_bytes);
}

__attribute__((visibility("default"))) void
duck_kernel_entry(uint32_t core, const struct duck_kernel_context *context) {
    struct duck_kernel_mailbox *mailbox = context->mailbox;
    uint32_t seen = 0;
    if (core == 0) {
        __atomic_store_n(&mailbox->init_status, 0, __ATOMIC_RELEASE);
        context->wake(context, (const uint32_t *)&mailbox->init_status);
    }
    while (__atomic_load_n(&mailbox->stop, __ATOMIC_ACQUIRE) == 0) {
        uint32_t newest = __atomic_load_n(&mailbox->call_published, __ATOMIC_ACQUIRE);
        if (newest == seen) {
            context->wait(context, &mailbox->call_published, seen);
            continue;
        }
        if (core != 0) {
            seen = newest;
            continue;
        }
        seen++;
        work(context, &mailbox->slot[seen % DUCK_KERNEL_SLOTS]);
        context->complete(context, seen);
        if (context->run_mode == DUCK_KERNEL_ONE_SHOT) return;
    }
}
