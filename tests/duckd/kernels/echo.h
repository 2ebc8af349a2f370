/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest kernel that keeps every rule of duck/kernel_abi.h. Test kernels include it and
 * define `work`, which runs on core 0 for each call; the other cores only take part in counting.
 */
#ifndef DUCK_TEST_KERNEL_H
#define DUCK_TEST_KERNEL_H

#include <duck/kernel_abi.h>

#ifndef TEST_ABI_VERSION
#define TEST_ABI_VERSION DUCK_KERNEL_ABI_VERSION
#endif
#ifndef TEST_CPU_FEATURES
#define TEST_CPU_FEATURES 0
#endif

__attribute__((section(".note.duck"), used, aligned(4))) static const struct {
    uint32_t name_bytes, content_bytes, type;
    char name[8];
    struct duck_kernel_note content;
} test_note = {5,
               sizeof(struct duck_kernel_note),
               DUCK_KERNEL_NOTE_TYPE,
               "duck",
               {TEST_ABI_VERSION, TEST_CPU_FEATURES, "test"}};

typedef const struct duck_kernel_context *context_pointer;

/* What the kernel does with one call. */
static void work(context_pointer context, struct duck_kernel_slot *slot, const uint8_t *input,
                 uint8_t *output);

/* Not 0: init_status of a kernel that refuses to start. */
static int prepare(context_pointer context);

void entry(uint32_t core, context_pointer context);

static void one_call(uint32_t core, context_pointer context, uint32_t number) {
    static uint32_t arrived[DUCK_KERNEL_SLOTS];
    struct duck_kernel_slot *slot = &context->mailbox->slot[number % DUCK_KERNEL_SLOTS];
    if (core == 0) {
        slot->status = 0;
        work(context, slot, context->calls + slot->input_offset,
             context->calls + slot->output_offset);
    }
    uint32_t *count = &arrived[number % DUCK_KERNEL_SLOTS];
    if (__atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL) < context->core_count) return;
    *count = 0;
    context->complete(context, number);
}

void entry(uint32_t core, context_pointer context) {
    struct duck_kernel_mailbox *mailbox = context->mailbox;
    if (core == 0) __atomic_store_n(&mailbox->init_status, prepare(context), __ATOMIC_RELEASE);
    for (uint32_t seen = 0;;) {
        uint32_t newest = __atomic_load_n(&mailbox->call_published, __ATOMIC_ACQUIRE);
        while (seen != newest) one_call(core, context, ++seen);
        if (context->run_mode == DUCK_KERNEL_ONE_SHOT && seen != 0) return;
        if (__atomic_load_n(&mailbox->stop, __ATOMIC_ACQUIRE) != 0) return;
        context->wait(context, &mailbox->call_published, seen);
    }
}

#endif
