/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel ABI: what a duck promises to a compute kernel, and what it asks of it.
 *
 * A kernel is a freestanding x86-64 ELF (ET_DYN, static-pie, no interpreter, only R_X86_64_RELATIVE
 * relocations, segments never both writable and executable). Its entry point is a function
 *
 *     void entry(uint32_t core, const struct duck_kernel_context *context);
 *
 * that every core of the session enters once, with the stack aligned as for a call and MXCSR =
 * 0x1F80 (no DAZ, no FTZ). The ELF names itself by a PT_NOTE: name "duck", type
 * DUCK_KERNEL_NOTE_TYPE, content struct duck_kernel_note.
 *
 * Persistent session (run_mode PERSISTENT): core 0 checks weights and limits and writes
 * `init_status` (0 = ready) exactly once with release order. Then each core loops: wait until
 * `call_published` differs from the last call number seen (context->wait), do its part of the call
 * in slot (number % DUCK_KERNEL_SLOTS), and report. The last core to finish stores the slot's
 * output_bytes and status, then calls context->complete(number) once. When `stop` is non-zero the
 * entry returns.
 *
 * One-shot (run_mode ONE_SHOT): call 1 is already published; the kernel returns after completing
 * it.
 *
 * A kernel makes no system calls. Calls into the runtime go through the three functions of the
 * context.
 */
#ifndef DUCK_KERNEL_ABI_H
#define DUCK_KERNEL_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DUCK_KERNEL_ABI_VERSION 1u
#define DUCK_KERNEL_CORES_MAX 64u
#define DUCK_KERNEL_SLOTS 4u
#define DUCK_KERNEL_STACK_BYTES (256u << 10)
#define DUCK_KERNEL_ELF_BYTES_MAX (4u << 20)
#define DUCK_KERNEL_NOTE_TYPE 0x4455434Bu

struct duck_kernel_note {
    uint32_t abi_version;
    uint32_t cpu_features; /* DUCK_CPU_* bits of wire.h that the code needs */
    char name[24];         /* zero-padded */
};
static_assert(sizeof(struct duck_kernel_note) == 32, "kernel note");

enum duck_kernel_run_mode { DUCK_KERNEL_PERSISTENT = 0, DUCK_KERNEL_ONE_SHOT = 1 };

/* One call. The runtime writes input and the first group before publishing, the kernel the second
 * group before completing. `status` 0 = fine; any other value ends the call with
 * DUCK_ERR_BAD_REQUEST and the text. */
struct duck_kernel_slot {
    uint32_t call_number;
    uint32_t input_bytes;
    uint64_t input_offset;  /* from context->calls */
    uint64_t output_offset; /* from context->calls */
    uint32_t output_bytes_max;
    uint32_t output_bytes;
    int32_t status;
    char text[92];
};
static_assert(sizeof(struct duck_kernel_slot) == 128, "slot");

/* Shared between runtime and kernel; every counter has a cache line of its own. */
struct duck_kernel_mailbox {
    uint32_t call_published; /* owner: runtime. Number of the newest call, 0 = none yet */
    uint32_t stop;           /* owner: runtime */
    uint8_t pad0[56];
    uint32_t call_completed; /* owner: the runtime's complete() */
    uint8_t pad1[60];
    /* owner: kernel core 0. DUCK_KERNEL_INIT_PENDING until set; 0 = ready, > 0 = error */
    int32_t init_status;
    char init_text[124];
    struct duck_kernel_slot slot[DUCK_KERNEL_SLOTS];
};
static_assert(offsetof(struct duck_kernel_mailbox, call_completed) == 64, "mailbox lines");
static_assert(offsetof(struct duck_kernel_mailbox, init_status) == 128, "mailbox lines");
static_assert(sizeof(struct duck_kernel_mailbox) == 256 + 128 * DUCK_KERNEL_SLOTS, "mailbox");
#define DUCK_KERNEL_INIT_PENDING (-1)

struct duck_kernel_context {
    uint32_t abi_version; /* of the duck */
    uint32_t core_count;
    uint32_t run_mode; /* enum duck_kernel_run_mode */
    uint32_t reserved;
    struct duck_kernel_mailbox *mailbox;
    const uint8_t *weights; /* read-only; at least DUCK_KERNEL_READ_AHEAD readable bytes follow */
    uint64_t weights_bytes;
    uint8_t *calls; /* input and output buffers of the slots; 64-byte aligned */
    uint64_t calls_bytes;
    uint8_t *scratch; /* zeroed at the start, 4096-byte aligned */
    uint64_t scratch_bytes;
    /* Returns when *word != seen, or mailbox->stop is set, or spuriously; obeys the duck's poll
     * policy. */
    void (*wait)(const struct duck_kernel_context *context, const uint32_t *word, uint32_t seen);
    /* Wake every core that waits for `word` (after storing to it); cheap when nobody sleeps. */
    void (*wake)(const struct duck_kernel_context *context, const uint32_t *word);
    /* The call is finished: its slot is filled. Called once per call, in order. */
    void (*complete)(const struct duck_kernel_context *context, uint32_t call_number);
    void *runtime; /* the runtime's own */
};
static_assert(sizeof(struct duck_kernel_context) == 104, "context");
#define DUCK_KERNEL_READ_AHEAD 8192u

#endif
