/* SPDX-License-Identifier: Apache-2.0
 *
 * What duckd and a session child share: one memory file mapped by both. The kernel in the child may
 * write any byte of it, so duckd reads nothing here that it would have to trust.
 */
#ifndef DUCKD_SESSION_SHARED_H
#define DUCKD_SESSION_SHARED_H

#include <duck/kernel_abi.h>
#include <duck/wire.h>
#include <stdbool.h>

#define SESSION_CHILD_ARGUMENT "session-child"

/* Descriptors that the child finds at its start; it closes all but the last before the kernel runs.
 */
enum session_fd {
    SESSION_FD_SHARED = 3,
    SESSION_FD_CALLS = 4,
    SESSION_FD_ELF = 5,
    SESSION_FD_WEIGHTS = 6, /* only with weights_bytes > 0 */
    SESSION_FD_COMPLETE = 7 /* eventfd */
};

struct session_setup {
    uint32_t core_count;
    uint32_t run_mode;    /* enum duck_kernel_run_mode */
    uint32_t poll_policy; /* enum duck_poll_policy */
    uint32_t pin;         /* 1: core i stays on the i-th allowed CPU */
    int32_t parent_pid;
    uint32_t reserved;
    uint64_t elf_bytes;
    uint64_t weights_bytes;
    uint64_t weights_map_bytes; /* whole pages, with the read-ahead */
    uint64_t calls_bytes;
    uint64_t scratch_bytes;
};

struct session_call_time {
    uint32_t number;
    uint32_t reserved;
    uint64_t start_ns, end_ns;
};

struct session_shared {
    struct session_setup setup; /* owner: duckd, before the child exists */

    /* owner: the child. Why it could not start, or what ended the kernel. */
    uint32_t verdict_written; /* 1 once `verdict` is complete */
    uint32_t verdict_claimed; /* the first fault wins */
    struct duck_fault verdict;

    uint32_t sleepers;      /* owner: the child. Threads in a futex wait */
    uint32_t parent_sleeps; /* owner: duckd. 1: complete() must write the eventfd */
    uint32_t returned;      /* owner: the child. Cores whose entry has returned */
    uint32_t reserved;
    uint64_t entered_tsc, returned_tsc; /* one-shot: around the whole run */
    uint64_t entered_ns, returned_ns;
    uint64_t memory_used_bytes; /* one-shot: at the end */
    struct session_call_time time[DUCK_KERNEL_SLOTS];
};

/* The mailbox has a page of its own behind. */
#define SESSION_MAILBOX_OFFSET 4096u
#define SESSION_SHARED_BYTES 8192u
static_assert(sizeof(struct session_shared) <= SESSION_MAILBOX_OFFSET, "fits its page");
static_assert(sizeof(struct duck_kernel_mailbox) <= SESSION_SHARED_BYTES - SESSION_MAILBOX_OFFSET,
              "fits its page");

/* Poll policy "sleep": a quarter of the wait so far, within limits. */
static inline uint64_t session_nap_ns(uint64_t waited_ns) {
    const uint64_t shortest = 50000, longest = 2000000;
    uint64_t ns = waited_ns / 4;
    return ns < shortest ? shortest : ns > longest ? longest : ns;
}

/* Poll policy "block": going to sleep and being woken costs more than most waits last. So a wait
 * whose forerunner was short looks around for a while first and lets others on the CPU between two
 * looks; one whose forerunner was long sleeps at once. */
#define SESSION_PATIENCE_NS 200000u

static inline bool session_may_look(uint64_t last_wait_ns, uint64_t waited_ns) {
    return last_wait_ns < SESSION_PATIENCE_NS && waited_ns < SESSION_PATIENCE_NS;
}

/* Exit codes of the child. */
enum {
    SESSION_EXIT_RETURNED = 0, /* every core's entry returned */
    SESSION_EXIT_VERDICT = 70, /* see session_shared.verdict */
};

int session_child_main(void);

#endif
