/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel of `duckctl bench gap` and `bench wire`: answers at once with as many bytes as the
 * call's first word says (what stands in the output buffer), so that a round trip is transport and
 * nothing else. Core 0 works, the others wait for the end.
 */
#include <duck/kernel_abi.h>

static const struct {
    uint32_t name_bytes, description_bytes, type;
    char name[8];
    struct duck_kernel_note note;
} kernel_note __attribute__((section(".note.duck"), used, aligned(4))) = {
    5,      sizeof(struct duck_kernel_note),     DUCK_KERNEL_NOTE_TYPE,
    "duck", {DUCK_KERNEL_ABI_VERSION, 0, "gap"},
};

/* Read from memory, so that there is something in the read-only segment: a duck refuses an empty
 * one. */
static const int32_t fine = 0;

static void answer(const struct duck_kernel_context *context, struct duck_kernel_slot *slot) {
    const uint32_t *input = (const uint32_t *)(const void *)(context->calls + slot->input_offset);
    const int32_t *status = &fine;
    __asm__("" : "+r"(status)); /* the compiler must not know what it points to */
    slot->status = *status;
    slot->output_bytes = slot->input_bytes >= sizeof *input ? *input : 0;
    if (slot->output_bytes > slot->output_bytes_max) slot->output_bytes = slot->output_bytes_max;
}

__attribute__((visibility("default"))) void
duck_kernel_entry(uint32_t core, const struct duck_kernel_context *context);

__attribute__((visibility("default"))) void
duck_kernel_entry(uint32_t core, const struct duck_kernel_context *context) {
    struct duck_kernel_mailbox *mailbox = context->mailbox;
    uint32_t seen = 0;
    if (core == 0) {
        __atomic_store_n(&mailbox->init_status, 0, __ATOMIC_RELEASE);
        context->wake(context, (const uint32_t *)(const void *)&mailbox->init_status);
    }
    while (__atomic_load_n(&mailbox->stop, __ATOMIC_ACQUIRE) == 0) {
        uint32_t newest = __atomic_load_n(&mailbox->call_published, __ATOMIC_ACQUIRE);
        if (newest == seen) {
            context->wait(context, &mailbox->call_published, seen);
            continue;
        }
        seen = core == 0 ? seen + 1 : newest;
        if (core != 0) continue;
        answer(context, &mailbox->slot[seen % DUCK_KERNEL_SLOTS]);
        context->complete(context, seen);
        if (context->run_mode == DUCK_KERNEL_ONE_SHOT) return;
    }
}
