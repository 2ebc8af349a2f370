/* SPDX-License-Identifier: Apache-2.0
 *
 * The inputs of fuzz_script.c: what happens to a duck core, step by step. A step is one byte (what,
 * and which host) and what that needs, numbers little-endian.
 */
#ifndef FUZZ_SCRIPT_H
#define FUZZ_SCRIPT_H

#include <duck/wire.h>
#include <stdio.h>

#define SCRIPT_STEPS_MAX 64u
#define SCRIPT_BYTES_MAX 16384u

enum script_step {
    SCRIPT_RAW = 0,    /* u16 size, packet as it is */
    SCRIPT_SEALED = 1, /* struct script_packet, payload: under the session's key */
    SCRIPT_DOMAIN = 2, /* the same under the domain's key */
    SCRIPT_TIME = 3,   /* u32 microseconds */
    SCRIPT_KERNEL = 4, /* struct script_kernel */
    SCRIPT_HELLO = 5,
    SCRIPT_STEPS = 6
};

/* Magic, version, session, key, epoch, counter and MAC are filled in. */
struct script_packet {
    uint8_t type;
    uint8_t is_relative; /* `sequence` counts from the last finished call */
    uint16_t fragment_bytes;
    uint32_t sequence, message_bytes, fragment_index, start;
    uint16_t payload_bytes;
    uint16_t reserved;
};
static_assert(sizeof(struct script_packet) == 24, "no holes");

enum script_kernel_act {
    KERNEL_COMPLETES = 0, /* value: output bytes; other: status */
    KERNEL_STARTS = 1,    /* value: init_status */
    KERNEL_WRITES = 2,    /* other: place in the mailbox; value: what */
    KERNEL_DIES = 3,      /* value: status; other: fault kind */
    KERNEL_ACTS = 4
};

struct script_kernel {
    uint32_t act, value, other;
};

/* Appends a step; does nothing without a file or when the script is long enough. */
struct script_writer {
    FILE *file;
    uint32_t steps;
};

static inline int script_step(struct script_writer *to, enum script_step step, uint32_t host) {
    if (to->file == NULL || to->steps == SCRIPT_STEPS_MAX) return 0;
    to->steps++;
    fputc((int)(step + SCRIPT_STEPS * host), to->file);
    return 1;
}

static inline void script_add(struct script_writer *to, const void *bytes, size_t count) {
    fwrite(bytes, 1, count, to->file);
}

#endif
