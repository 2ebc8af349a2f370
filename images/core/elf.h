/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading kernel ELFs (duck/kernel_abi.h). elf_check reads an untrusted file and either refuses it
 * by name or makes a plan; elf_load follows the plan without a further check.
 */
#ifndef DUCK_ELF_H
#define DUCK_ELF_H

#include <duck/kernel_abi.h>

#define ELF_PAGE_BYTES 4096u
#define ELF_SEGMENTS_MAX 8u
#define ELF_SPAN_BYTES_MAX (64u << 20) /* memory of all segments together */
#define ELF_RELOCATIONS_MAX 65536u

enum elf_error {
    ELF_OK = 0,
    ELF_TRUNCATED_HEADER,
    ELF_TOO_LARGE,
    ELF_BAD_MAGIC,
    ELF_NOT_64_BIT,
    ELF_NOT_LITTLE_ENDIAN,
    ELF_BAD_VERSION,
    ELF_NOT_X86_64,
    ELF_NOT_DYN,
    ELF_BAD_HEADER_SIZE,
    ELF_BAD_PROGRAM_HEADERS,
    ELF_NEEDS_INTERPRETER,
    ELF_NEEDS_TLS,
    ELF_EXECUTABLE_STACK,
    ELF_TOO_MANY_SEGMENTS,
    ELF_NO_SEGMENTS,
    ELF_SEGMENT_OUTSIDE_FILE,
    ELF_SEGMENT_SIZE,
    ELF_SEGMENT_ORDER,
    ELF_SEGMENT_WRITE_AND_EXECUTE,
    ELF_SPAN_TOO_LARGE,
    ELF_ENTRY_NOT_EXECUTABLE,
    ELF_BAD_DYNAMIC,
    ELF_NEEDS_LIBRARY,
    ELF_UNSUPPORTED_DYNAMIC,
    ELF_BAD_RELOCATION_TABLE,
    ELF_UNSUPPORTED_RELOCATION,
    ELF_RELOCATION_OUTSIDE,
    ELF_BAD_NOTE,
    ELF_NO_NOTE,
    ELF_TWO_NOTES,
    ELF_ERROR_COUNT
};

struct elf_segment {
    uint64_t address; /* from the base */
    uint64_t file_offset;
    uint64_t file_bytes;
    uint64_t memory_bytes;
    uint8_t writable, executable;
};

struct elf_plan {
    uint64_t span; /* bytes of address space from the base, whole pages */
    uint64_t entry;
    uint64_t relocations_at; /* file offset */
    uint32_t relocation_count;
    uint32_t segment_count;
    struct elf_segment segment[ELF_SEGMENTS_MAX];
    struct duck_kernel_note note;
};

enum elf_error elf_check(const uint8_t *file, uint64_t bytes, struct elf_plan *plan);
const char *elf_error_text(enum elf_error error);

/* Copy the segments to `memory` (plan->span zeroed, page-aligned bytes) and relocate them for
 * running at `base`. */
void elf_load(const uint8_t *file, const struct elf_plan *plan, uint8_t *memory, uint64_t base);

#endif
