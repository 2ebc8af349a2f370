/* SPDX-License-Identifier: Apache-2.0
 *
 * Core 1 faults (or, with ENDLESS, never comes back) when the first call comes.
 */
#include <duck/kernel_abi.h>

__attribute__((section(".note.duck"), used, aligned(4))) static const struct {
    uint32_t name_bytes, content_bytes, type;
    char name[8];
    struct duck_kernel_note content;
} test_note = {5,
               sizeof(struct duck_kernel_note),
               DUCK_KERNEL_NOTE_TYPE,
               "duck",
               {DUCK_KERNEL_ABI_VERSION, 0, "other core"}};

void entry(uint32_t core, const struct duck_kernel_context *context);

void entry(uint32_t core, const struct duck_kernel_context *context) {
    struct duck_kernel_mailbox *mailbox = context->mailbox;
    if (core == 0) __atomic_store_n(&mailbox->init_status, 0, __ATOMIC_RELEASE);
    for (;;) {
        context->wait(context, &mailbox->call_published, 0);
        if (core != 1 || mailbox->call_published == 0) continue;
#ifdef ENDLESS
        for (;;) __builtin_ia32_pause();
#else
        *(volatile int *)8 = 1;
#endif
    }
}
