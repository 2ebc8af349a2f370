/* SPDX-License-Identifier: Apache-2.0
 *
 * Written from the System V ABI (gABI chapters 4 and 5, x86-64 psABI 4.4). Every offset is checked
 * before use with subtractions that can't wrap.
 */
#include "elf.h"

#include <string.h>

struct elf_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_offset, section_offset;
    uint32_t flags;
    uint16_t header_bytes, program_entry_bytes, program_count;
    uint16_t section_entry_bytes, section_count, section_names;
};
static_assert(sizeof(struct elf_header) == 64, "Elf64_Ehdr");

struct elf_program {
    uint32_t type, flags;
    uint64_t offset, address, physical, file_bytes, memory_bytes, align;
};
static_assert(sizeof(struct elf_program) == 56, "Elf64_Phdr");

struct elf_dynamic {
    int64_t tag;
    uint64_t value;
};
struct elf_relocation {
    uint64_t offset, info;
    int64_t addend;
};
struct elf_note_header {
    uint32_t name_bytes, content_bytes, type;
};

enum { TYPE_DYN = 3, MACHINE_X86_64 = 62, PROGRAMS_MAX = 32, DYNAMIC_MAX = 256 };
enum {
    PROGRAM_LOAD = 1,
    PROGRAM_DYNAMIC = 2,
    PROGRAM_INTERPRETER = 3,
    PROGRAM_NOTE = 4,
    PROGRAM_TLS = 7,
    PROGRAM_GNU_STACK = 0x6474E551
};
enum { FLAG_EXECUTE = 1, FLAG_WRITE = 2 };
enum {
    TAG_END = 0,
    TAG_NEEDED = 1,
    TAG_PLT_BYTES = 2,
    TAG_RELA = 7,
    TAG_RELA_BYTES = 8,
    TAG_RELA_ENTRY = 9,
    TAG_INIT = 12,
    TAG_FINI = 13,
    TAG_REL = 17,
    TAG_TEXTREL = 22,
    TAG_JMPREL = 23,
    TAG_INIT_ARRAY = 25,
    TAG_FINI_ARRAY = 26,
    TAG_PREINIT_ARRAY = 32,
    TAG_RELR_BYTES = 35,
    TAG_RELR = 36
};
enum { RELOCATION_RELATIVE = 8 };

static const char *const error_text[ELF_ERROR_COUNT] = {
    [ELF_OK] = "fine",
    [ELF_TRUNCATED_HEADER] = "the file is shorter than an ELF header",
    [ELF_TOO_LARGE] = "the file is larger than DUCK_KERNEL_ELF_BYTES_MAX",
    [ELF_BAD_MAGIC] = "this is no ELF file",
    [ELF_NOT_64_BIT] = "not a 64-bit ELF",
    [ELF_NOT_LITTLE_ENDIAN] = "not a little-endian ELF",
    [ELF_BAD_VERSION] = "unknown ELF version",
    [ELF_NOT_X86_64] = "not for x86-64",
    [ELF_NOT_DYN] = "not position-independent (ET_DYN): link with -static-pie",
    [ELF_BAD_HEADER_SIZE] = "ELF or program header size is wrong",
    [ELF_BAD_PROGRAM_HEADERS] = "the program headers leave the file or are too many",
    [ELF_NEEDS_INTERPRETER] = "asks for an interpreter (PT_INTERP): link with -static-pie",
    [ELF_NEEDS_TLS] = "uses thread-local storage (PT_TLS)",
    [ELF_EXECUTABLE_STACK] = "asks for an executable stack: link with -z noexecstack",
    [ELF_TOO_MANY_SEGMENTS] = "more than 8 PT_LOAD segments",
    [ELF_NO_SEGMENTS] = "no PT_LOAD segment",
    [ELF_SEGMENT_OUTSIDE_FILE] = "a segment's bytes leave the file",
    [ELF_SEGMENT_SIZE] = "a segment is larger in the file than in memory, or empty",
    [ELF_SEGMENT_ORDER] = "segments overlap, share a page or are not in ascending order",
    [ELF_SEGMENT_WRITE_AND_EXECUTE] = "a segment is both writable and executable",
    [ELF_SPAN_TOO_LARGE] = "the segments span more than 64 MiB",
    [ELF_ENTRY_NOT_EXECUTABLE] = "the entry point lies outside of executable code",
    [ELF_BAD_DYNAMIC] = "the dynamic section leaves the file or has no end",
    [ELF_NEEDS_LIBRARY] = "needs a shared library (DT_NEEDED): link with -static-pie",
    [ELF_UNSUPPORTED_DYNAMIC] = "has constructors, PLT, REL, RELR or text relocations",
    [ELF_BAD_RELOCATION_TABLE] = "the relocation table is malformed or leaves the file",
    [ELF_UNSUPPORTED_RELOCATION] = "a relocation is not R_X86_64_RELATIVE",
    [ELF_RELOCATION_OUTSIDE] = "a relocation's place or target lies outside of the segments",
    [ELF_BAD_NOTE] = "a note is malformed",
    [ELF_NO_NOTE] = "no \"duck\" note (struct duck_kernel_note)",
    [ELF_TWO_NOTES] = "more than one \"duck\" note",
};

const char *elf_error_text(enum elf_error error) {
    return (uint32_t)error < ELF_ERROR_COUNT ? error_text[error] : "unknown";
}

/* [offset, offset + bytes) lies within [0, limit). */
static int inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
    return offset <= limit && bytes <= limit - offset;
}

static uint64_t page_down(uint64_t address) { return address & ~(uint64_t)(ELF_PAGE_BYTES - 1); }
static uint64_t page_up(uint64_t address) { return page_down(address + ELF_PAGE_BYTES - 1); }

/* ---- header ---------------------------------------------------------------------------------- */

static enum elf_error check_header(const uint8_t *file, uint64_t bytes, struct elf_header *header) {
    if (bytes < sizeof *header) return ELF_TRUNCATED_HEADER;
    if (bytes > DUCK_KERNEL_ELF_BYTES_MAX) return ELF_TOO_LARGE;
    memcpy(header, file, sizeof *header);
    if (memcmp(header->ident, "\177ELF", 4) != 0) return ELF_BAD_MAGIC;
    if (header->ident[4] != 2) return ELF_NOT_64_BIT;
    if (header->ident[5] != 1) return ELF_NOT_LITTLE_ENDIAN;
    if (header->ident[6] != 1 || header->version != 1) return ELF_BAD_VERSION;
    if (header->machine != MACHINE_X86_64) return ELF_NOT_X86_64;
    if (header->type != TYPE_DYN) return ELF_NOT_DYN;
    if (header->header_bytes != sizeof *header) return ELF_BAD_HEADER_SIZE;
    if (header->program_entry_bytes != sizeof(struct elf_program)) return ELF_BAD_HEADER_SIZE;
    if (header->program_count == 0 || header->program_count > PROGRAMS_MAX)
        return ELF_BAD_PROGRAM_HEADERS;
    uint64_t table_bytes = (uint64_t)header->program_count * sizeof(struct elf_program);
    if (!inside(header->program_offset, table_bytes, bytes)) return ELF_BAD_PROGRAM_HEADERS;
    return ELF_OK;
}

/* ---- segments -------------------------------------------------------------------------------- */

static enum elf_error add_segment(const struct elf_program *program, uint64_t bytes,
                                  struct elf_plan *plan) {
    if (plan->segment_count == ELF_SEGMENTS_MAX) return ELF_TOO_MANY_SEGMENTS;
    if (program->memory_bytes == 0 || program->file_bytes > program->memory_bytes)
        return ELF_SEGMENT_SIZE;
    if (!inside(program->offset, program->file_bytes, bytes)) return ELF_SEGMENT_OUTSIDE_FILE;
    if (!inside(program->address, program->memory_bytes, ELF_SPAN_BYTES_MAX))
        return ELF_SPAN_TOO_LARGE;
    /* Protection works by page, so two segments may not meet in one; plan->span is the page end of
     * the one before. */
    if (page_down(program->address) < plan->span) return ELF_SEGMENT_ORDER;
    int writable = (program->flags & FLAG_WRITE) != 0;
    int executable = (program->flags & FLAG_EXECUTE) != 0;
    if (writable && executable) return ELF_SEGMENT_WRITE_AND_EXECUTE;
    plan->segment[plan->segment_count++] = (struct elf_segment){
        .address = program->address,
        .file_offset = program->offset,
        .file_bytes = program->file_bytes,
        .memory_bytes = program->memory_bytes,
        .writable = (uint8_t)writable,
        .executable = (uint8_t)executable,
    };
    plan->span = page_up(program->address + program->memory_bytes);
    return ELF_OK;
}

static const struct elf_segment *segment_of(const struct elf_plan *plan, uint64_t address,
                                            uint64_t bytes) {
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        const struct elf_segment *segment = &plan->segment[i];
        if (address >= segment->address &&
            inside(address - segment->address, bytes, segment->memory_bytes))
            return segment;
    }
    return NULL;
}

/* ---- relocations ----------------------------------------------------------------------------- */

/* The file offset of [address, address + bytes), or UINT64_MAX when a segment does not hold it. */
static uint64_t file_offset_of(const struct elf_plan *plan, uint64_t address, uint64_t bytes) {
    const struct elf_segment *segment = segment_of(plan, address, bytes);
    if (segment == NULL) return UINT64_MAX;
    uint64_t within = address - segment->address;
    if (!inside(within, bytes, segment->file_bytes)) return UINT64_MAX;
    return segment->file_offset + within;
}

static enum elf_error check_relocations(const uint8_t *file, const struct elf_plan *plan) {
    for (uint32_t i = 0; i < plan->relocation_count; i++) {
        struct elf_relocation relocation;
        memcpy(&relocation, file + plan->relocations_at + i * sizeof relocation, sizeof relocation);
        if (relocation.info != RELOCATION_RELATIVE) return ELF_UNSUPPORTED_RELOCATION;
        const struct elf_segment *place = segment_of(plan, relocation.offset, 8);
        if (place == NULL || !place->writable) return ELF_RELOCATION_OUTSIDE;
        if (relocation.addend < 0 || (uint64_t)relocation.addend > plan->span)
            return ELF_RELOCATION_OUTSIDE;
    }
    return ELF_OK;
}

struct dynamic_facts {
    uint64_t rela, rela_bytes, rela_entry;
};

static enum elf_error read_tag(const struct elf_dynamic *entry, struct dynamic_facts *facts) {
    switch (entry->tag) {
    case TAG_NEEDED: return ELF_NEEDS_LIBRARY;
    case TAG_RELA: facts->rela = entry->value; return ELF_OK;
    case TAG_RELA_BYTES: facts->rela_bytes = entry->value; return ELF_OK;
    case TAG_RELA_ENTRY: facts->rela_entry = entry->value; return ELF_OK;
    case TAG_PLT_BYTES:
    case TAG_RELR_BYTES: return entry->value == 0 ? ELF_OK : ELF_UNSUPPORTED_DYNAMIC;
    case TAG_INIT:
    case TAG_FINI:
    case TAG_REL:
    case TAG_TEXTREL:
    case TAG_JMPREL:
    case TAG_INIT_ARRAY:
    case TAG_FINI_ARRAY:
    case TAG_PREINIT_ARRAY:
    case TAG_RELR: return ELF_UNSUPPORTED_DYNAMIC;
    default: return ELF_OK;
    }
}

static enum elf_error read_dynamic(const uint8_t *file, uint64_t bytes,
                                   const struct elf_program *program, struct elf_plan *plan) {
    if (!inside(program->offset, program->file_bytes, bytes)) return ELF_BAD_DYNAMIC;
    struct dynamic_facts facts = {0, 0, sizeof(struct elf_relocation)};
    uint64_t count = program->file_bytes / sizeof(struct elf_dynamic);
    if (count > DYNAMIC_MAX) return ELF_BAD_DYNAMIC;
    int ended = 0;
    for (uint64_t i = 0; i < count && !ended; i++) {
        struct elf_dynamic entry;
        memcpy(&entry, file + program->offset + i * sizeof entry, sizeof entry);
        enum elf_error error = read_tag(&entry, &facts);
        if (error != ELF_OK) return error;
        ended = entry.tag == TAG_END;
    }
    if (!ended) return ELF_BAD_DYNAMIC;
    if (facts.rela_bytes == 0) return ELF_OK;
    if (facts.rela_entry != sizeof(struct elf_relocation)) return ELF_BAD_RELOCATION_TABLE;
    if (facts.rela_bytes % sizeof(struct elf_relocation) != 0) return ELF_BAD_RELOCATION_TABLE;
    if (facts.rela_bytes / sizeof(struct elf_relocation) > ELF_RELOCATIONS_MAX)
        return ELF_BAD_RELOCATION_TABLE;
    plan->relocations_at = file_offset_of(plan, facts.rela, facts.rela_bytes);
    if (plan->relocations_at == UINT64_MAX) return ELF_BAD_RELOCATION_TABLE;
    plan->relocation_count = (uint32_t)(facts.rela_bytes / sizeof(struct elf_relocation));
    return check_relocations(file, plan);
}

/* ---- notes ----------------------------------------------------------------------------------- */

static enum elf_error read_notes(const uint8_t *file, uint64_t bytes,
                                 const struct elf_program *program, struct elf_plan *plan,
                                 uint32_t *found) {
    if (!inside(program->offset, program->file_bytes, bytes)) return ELF_BAD_NOTE;
    const uint8_t *at = file + program->offset;
    uint64_t left = program->file_bytes;
    /* .note.gnu.property is aligned to 8 bytes, all other notes to 4 (gABI). */
    const uint64_t align = program->align == 8 ? 8 : 4;
    while (left >= sizeof(struct elf_note_header)) {
        struct elf_note_header note;
        memcpy(&note, at, sizeof note);
        uint64_t name_end = sizeof note + (uint64_t)note.name_bytes;
        uint64_t content = (name_end + align - 1) & ~(align - 1);
        uint64_t end = content + note.content_bytes;
        if (end > left) return ELF_BAD_NOTE;
        if (note.type == DUCK_KERNEL_NOTE_TYPE && note.name_bytes == 5 &&
            memcmp(at + sizeof note, "duck", 5) == 0) {
            if (note.content_bytes != sizeof plan->note) return ELF_BAD_NOTE;
            memcpy(&plan->note, at + content, sizeof plan->note);
            *found += 1;
        }
        uint64_t next = (end + align - 1) & ~(align - 1);
        if (next >= left) break;
        at += next;
        left -= next;
    }
    return ELF_OK;
}

/* ---- the whole file -------------------------------------------------------------------------- */

static struct elf_program program_at(const uint8_t *file, const struct elf_header *header,
                                     uint32_t index) {
    struct elf_program program;
    memcpy(&program, file + header->program_offset + index * sizeof program, sizeof program);
    return program;
}

static enum elf_error check_loads(const uint8_t *file, uint64_t bytes,
                                  const struct elf_header *header, struct elf_plan *plan) {
    for (uint32_t i = 0; i < header->program_count; i++) {
        struct elf_program program = program_at(file, header, i);
        enum elf_error error = ELF_OK;
        if (program.type == PROGRAM_INTERPRETER) error = ELF_NEEDS_INTERPRETER;
        if (program.type == PROGRAM_TLS) error = ELF_NEEDS_TLS;
        if (program.type == PROGRAM_GNU_STACK && (program.flags & FLAG_EXECUTE) != 0)
            error = ELF_EXECUTABLE_STACK;
        if (program.type == PROGRAM_LOAD) error = add_segment(&program, bytes, plan);
        if (error != ELF_OK) return error;
    }
    if (plan->segment_count == 0) return ELF_NO_SEGMENTS;
    const struct elf_segment *code = segment_of(plan, header->entry, 1);
    if (code == NULL || !code->executable) return ELF_ENTRY_NOT_EXECUTABLE;
    plan->entry = header->entry;
    return ELF_OK;
}

enum elf_error elf_check(const uint8_t *file, uint64_t bytes, struct elf_plan *plan) {
    struct elf_header header;
    uint32_t notes = 0;
    memset(plan, 0, sizeof *plan);
    enum elf_error error = check_header(file, bytes, &header);
    if (error == ELF_OK) error = check_loads(file, bytes, &header, plan);
    for (uint32_t i = 0; error == ELF_OK && i < header.program_count; i++) {
        struct elf_program program = program_at(file, &header, i);
        if (program.type == PROGRAM_DYNAMIC) error = read_dynamic(file, bytes, &program, plan);
        if (program.type == PROGRAM_NOTE) error = read_notes(file, bytes, &program, plan, &notes);
    }
    if (error != ELF_OK) return error;
    if (notes == 0) return ELF_NO_NOTE;
    return notes == 1 ? ELF_OK : ELF_TWO_NOTES;
}

void elf_load(const uint8_t *file, const struct elf_plan *plan, uint8_t *memory, uint64_t base) {
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        const struct elf_segment *segment = &plan->segment[i];
        memcpy(memory + segment->address, file + segment->file_offset, segment->file_bytes);
    }
    for (uint32_t i = 0; i < plan->relocation_count; i++) {
        struct elf_relocation relocation;
        memcpy(&relocation, file + plan->relocations_at + i * sizeof relocation, sizeof relocation);
        uint64_t value = base + (uint64_t)relocation.addend;
        memcpy(memory + relocation.offset, &value, sizeof value);
    }
}
