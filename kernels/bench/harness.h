/* SPDX-License-Identifier: Apache-2.0
 *
 * libduckharness: runs a kernel ELF inside a process, with threads as cores and no duck around it.
 * Tests reach the shipped ELFs through it, and the benchmarks time them. It protects nothing: a
 * kernel that faults takes the process down (a duck would report it).
 */
#ifndef DUCK_HARNESS_H
#define DUCK_HARNESS_H

#include <stdint.h>

#include <duck/kernel_abi.h>

#define DUCK_HARNESS_API __attribute__((visibility("default")))

struct duck_harness;

struct duck_harness_options {
    uint32_t core_count;
    uint32_t spin;     /* 1: waiting cores spin (benchmarks), 0: they sleep */
    uint32_t pin;      /* 1: core i runs on CPU i */
    uint32_t one_shot; /* 1: the kernel returns after the first call */
    uint32_t mxcsr;    /* what cores start with; 0 = 0x1F80 */
    uint64_t scratch_bytes;
    uint64_t input_bytes_max;
    uint64_t output_bytes_max;
};

/* Memory between two inaccessible pages: its end (after `tail` readable bytes) touches the second.
 * Null when there is none. */
DUCK_HARNESS_API void *duck_harness_guarded(uint64_t bytes, uint64_t tail);
DUCK_HARNESS_API void duck_harness_release(void *memory, uint64_t bytes, uint64_t tail);

/* Load the ELF and start its cores on `weights`. Null with a text when the file is no kernel, the
 * kernel refuses, or memory is missing; otherwise `text` is what the kernel said when ready. */
DUCK_HARNESS_API struct duck_harness *duck_harness_open(const char *elf_path,
                                                        const struct duck_harness_options *options,
                                                        const uint8_t *weights,
                                                        uint64_t weights_bytes, char text[124]);

/* One call. Input and output buffers end at inaccessible pages; the output is filled with 0xFF
 * first. Returns the kernel's status; `kernel_ns` (may be null) is publication to completion. */
DUCK_HARNESS_API int32_t duck_harness_call(struct duck_harness *harness, const uint8_t *input,
                                           uint32_t input_bytes, uint8_t *output,
                                           uint32_t output_bytes_max, uint32_t *output_bytes,
                                           char text[92], uint64_t *kernel_ns);

/* How often the kernel's cores were pre-empted so far: measurements in between are dropped. */
DUCK_HARNESS_API uint64_t duck_harness_preemptions(const struct duck_harness *harness);

/* Clock cycles per second of this CPU now, from a chain of dependent additions. */
DUCK_HARNESS_API double duck_harness_cycles_per_second(void);

/* Stop the cores and free everything. */
DUCK_HARNESS_API void duck_harness_close(struct duck_harness *harness);

#endif
