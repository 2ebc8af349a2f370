/* SPDX-License-Identifier: Apache-2.0 */
#include "verdict.h"

#include "text.h"

enum {
    VECTOR_DIVIDE = 0,
    VECTOR_STACK = 12,
    VECTOR_PROTECTION = 13,
    VECTOR_PAGE = 14,
    VECTOR_X87 = 16,
    VECTOR_ALIGNMENT = 17,
    VECTOR_SIMD = 19
};
#define PROTECTION_OF_GATE 2u /* error code of #GP: an IDT gate that ring 3 may not use */

static const char *const kind_text[] = {
    [DUCK_FAULT_NONE] = "the session could not start",
    [DUCK_FAULT_MEMORY] = "memory access outside of what the kernel may touch",
    [DUCK_FAULT_ILLEGAL_INSTRUCTION] = "illegal instruction",
    [DUCK_FAULT_ARITHMETIC] = "division error or floating-point trap",
    [DUCK_FAULT_BUS] = "memory that could not be provided",
    [DUCK_FAULT_FORBIDDEN_CALL] = "system call (number = address)",
    [DUCK_FAULT_STACK] = "stack overflow",
    [DUCK_FAULT_EXITED] = "the kernel ended by itself (code 0)",
    [DUCK_FAULT_KILLED] = "the session was killed from outside",
};

static void fill(struct duck_fault *verdict, enum duck_fault_kind kind, uint32_t core,
                 uint64_t address, uint64_t instruction) {
    *verdict = (struct duck_fault){
        .status = DUCK_ERR_KERNEL_FAULT,
        .fault_kind = kind,
        .core = core,
        .address = address,
        .instruction = instruction,
    };
    struct text text = text_start(verdict->text, sizeof verdict->text);
    text_add(&text, kind_text[kind]);
}

/* Privileged instructions and impossible addresses both are general protection faults; the opcode
 * tells them apart (SDM volume 3, 5.9). */
static bool is_privileged(const uint8_t *code, uint32_t bytes) {
    static const uint8_t one_byte[] = {0xF4, 0xFA, 0xFB, 0xE4, 0xE5, 0xE6, 0xE7, 0xEC,
                                       0xED, 0xEE, 0xEF, 0x6C, 0x6D, 0x6E, 0x6F, 0xCD};
    static const uint8_t after_0f[] = {0x00, 0x01, 0x06, 0x08, 0x09, 0x20, 0x21,
                                       0x22, 0x23, 0x30, 0x32, 0x33, 0x34, 0x35};
    uint32_t at = 0;
    /* Operand size, repeat and REX prefixes: `inw`, `rep outsb`, `mov %r8, %cr3`. */
    while (at < bytes &&
           (code[at] == 0x66 || code[at] == 0xF2 || code[at] == 0xF3 || (code[at] & 0xF0) == 0x40))
        at++;
    if (at >= bytes) return false;
    bool is_long = code[at] == 0x0F;
    if (is_long && ++at >= bytes) return false;
    const uint8_t *list = is_long ? after_0f : one_byte;
    uint32_t count = is_long ? sizeof after_0f : sizeof one_byte;
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == code[at]) return true;
    return false;
}

static enum duck_fault_kind kind_of(const struct layout *layout, const struct verdict_trap *trap) {
    switch (trap->vector) {
    case VECTOR_DIVIDE:
    case VECTOR_X87:
    case VECTOR_SIMD: return DUCK_FAULT_ARITHMETIC;
    case VECTOR_STACK:
    case VECTOR_ALIGNMENT: return DUCK_FAULT_BUS;
    case VECTOR_PAGE:
        return layout_in_stack_guard(layout, trap->address) ? DUCK_FAULT_STACK : DUCK_FAULT_MEMORY;
    case VECTOR_PROTECTION:
        if ((trap->error & PROTECTION_OF_GATE) != 0) return DUCK_FAULT_ILLEGAL_INSTRUCTION;
        return is_privileged(trap->code, trap->code_bytes) ? DUCK_FAULT_ILLEGAL_INSTRUCTION
                                                           : DUCK_FAULT_MEMORY;
    default: return DUCK_FAULT_ILLEGAL_INSTRUCTION;
    }
}

static uint64_t offset_in_elf(const struct layout *layout, uint64_t instruction) {
    uint64_t offset = instruction - layout->elf_base;
    return offset < layout->elf_span ? offset : UINT64_MAX;
}

void verdict_of_trap(const struct layout *layout, uint32_t run_mode,
                     const struct verdict_trap *trap, struct duck_fault *verdict) {
    bool has_address = trap->vector == VECTOR_PAGE;
    fill(verdict, kind_of(layout, trap), trap->core, has_address ? trap->address : 0,
         offset_in_elf(layout, trap->instruction));
    if (run_mode == DUCK_KERNEL_ONE_SHOT && has_address &&
        layout_behind_scratch(layout, trap->address)) {
        verdict->status = DUCK_ERR_MEMORY_LIMIT;
        struct text text = text_start(verdict->text, sizeof verdict->text);
        text_add(&text, "more scratch memory was touched than the limit allows");
    }
}

void verdict_of_call(const struct layout *layout, const struct verdict_trap *trap,
                     struct duck_fault *verdict) {
    fill(verdict, DUCK_FAULT_FORBIDDEN_CALL, trap->core, (uint32_t)trap->number,
         offset_in_elf(layout, trap->instruction));
}

void verdict_of_word(uint32_t core, uint64_t address, struct duck_fault *verdict) {
    fill(verdict, DUCK_FAULT_MEMORY, core, address, UINT64_MAX);
}

void verdict_of_return(struct duck_fault *verdict) {
    fill(verdict, DUCK_FAULT_EXITED, UINT32_MAX, 0, UINT64_MAX);
}
