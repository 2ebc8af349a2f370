/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime's part that runs in ring 3: the functions behind context->wait, wake and complete.
 * The code is copied into a page of each session; what it writes (struct stub_shared) lies behind
 * the mailbox, and the kernel may write it too, so the OS believes none of it.
 */
#ifndef DUCKOS_STUB_H
#define DUCKOS_STUB_H

#include <duck/kernel_abi.h>

/* What the stub asks of the OS: SYSCALL with the number in RAX, arguments in RDI and RSI. */
enum stub_call {
    STUB_CALL_WAIT = 0x4B435501,     /* (word, seen): go on when *word != seen */
    STUB_CALL_WAKE = 0x4B435502,     /* cores that wait in the OS look again */
    STUB_CALL_COMPLETE = 0x4B435503, /* a call is complete: the main loop looks again */
    STUB_CALL_RETURNED = 0x4B435504  /* the kernel's entry has returned on this core */
};

struct stub_time {
    uint32_t number; /* of the call */
    uint32_t reserved;
    uint64_t start_cycles, end_cycles;
};

struct stub_shared {
    uint32_t sleepers; /* cores that wait in the OS; a hint for wake */
    uint32_t reserved[15];
    struct stub_time time[DUCK_KERNEL_SLOTS];
};

#define STUB_SHARED_OFFSET 1024u /* in the mailbox's page */
static_assert(sizeof(struct duck_kernel_mailbox) <= STUB_SHARED_OFFSET, "behind the mailbox");
static_assert(STUB_SHARED_OFFSET + sizeof(struct stub_shared) <= 4096, "in its page");

/* The core that polls the NIC too: gives the CPU to the main loop until the word changes. */
void stub_wait_polling(const struct duck_kernel_context *context, const uint32_t *word,
                       uint32_t seen);
/* Other cores: PAUSE, or UMWAIT where the CPU has WAITPKG, without leaving ring 3. */
void stub_wait_pause(const struct duck_kernel_context *context, const uint32_t *word,
                     uint32_t seen);
void stub_wait_monitor(const struct duck_kernel_context *context, const uint32_t *word,
                       uint32_t seen);
/* Poll policy "hlt": the OS halts the core. */
void stub_wait_halting(const struct duck_kernel_context *context, const uint32_t *word,
                       uint32_t seen);

void stub_wake_spinning(const struct duck_kernel_context *context, const uint32_t *word);
void stub_wake_halting(const struct duck_kernel_context *context, const uint32_t *word);

void stub_complete_spinning(const struct duck_kernel_context *context, uint32_t call_number);
void stub_complete_halting(const struct duck_kernel_context *context, uint32_t call_number);

void stub_returned(void); /* where the kernel's entry returns to */

/* The code's place and size in the OS's image, made by the linker. */
extern const uint8_t __start_user_stub[], __stop_user_stub[];

#endif
