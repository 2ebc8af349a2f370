/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of duckos' sessions that need no bare machine: where memory goes (areas, layout), what
 * a trap means (verdict), and how ring 3 waits (stub).
 */
#include "check.h"
#include "session/areas.h"
#include "session/layout.h"
#include "session/stub.h"
#include "session/verdict.h"

#include <cpuid.h>
#include <pthread.h>
#include <string.h>

#define MB (1ull << 20)
#define GB (1ull << 30)

static uint64_t random_state;

static uint64_t next_random(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static uint64_t below(uint64_t limit) { return next_random() % limit; }

/* ---- areas ----------------------------------------------------------------------------------- */

struct piece {
    uint64_t offset, bytes;
};

static bool apart(struct piece a, struct piece b) {
    return a.bytes == 0 || b.bytes == 0 || a.offset + a.bytes <= b.offset ||
           b.offset + b.bytes <= a.offset;
}

static void check_pieces(const struct areas *areas, const struct piece piece[3]) {
    for (int i = 0; i < 3; i++) {
        CHECK(piece[i].offset + piece[i].bytes <= areas->bytes);
        for (int j = 0; j < i; j++) CHECK(apart(piece[i], piece[j]));
    }
}

/* 100,000 random steps: nothing ever overlaps, and when all is given back all is there again. */
static void areas_never_overlap_or_leak(void) {
    struct areas areas;
    struct piece piece[3] = {{0, 0}, {0, 0}, {0, 0}};
    areas_init(&areas, 64 * MB + 12345, 0);
    CHECK(areas.bytes == 64 * MB);
    uint64_t empty = areas_session_bytes_max(&areas);
    for (int step = 0; step < 100000; step++) {
        uint32_t which = (uint32_t)below(3);
        bool is_session = which == 2;
        uint64_t most =
            is_session ? areas_session_bytes_max(&areas) : areas_region_bytes_max(&areas, which);
        if (piece[which].bytes != 0) {
            if (which == DUCK_REGION_KERNEL && piece[2].bytes != 0) continue;
            if (is_session)
                areas_give_session(&areas);
            else
                areas_give_region(&areas, which);
            piece[which].bytes = 0;
            continue;
        }
        uint64_t bytes = 1 + below(most + most / 8 + 1);
        uint64_t offset = is_session ? areas_take_session(&areas, bytes)
                                     : areas_take_region(&areas, which, bytes);
        bool blocked = which == DUCK_REGION_KERNEL && piece[2].bytes != 0;
        CHECK((offset != AREAS_NONE) == (bytes <= most && !blocked));
        if (offset == AREAS_NONE) continue;
        piece[which] = (struct piece){offset, bytes + (is_session ? 0 : DUCK_KERNEL_READ_AHEAD)};
        check_pieces(&areas, piece);
    }
    areas_give_session(&areas);
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++) areas_give_region(&areas, i);
    CHECK(areas_session_bytes_max(&areas) == empty);
}

static void areas_keep_a_limit(void) {
    struct areas areas;
    areas_init(&areas, 32 * GB, 30 * GB);
    CHECK(areas_region_bytes_max(&areas, DUCK_REGION_WEIGHTS) == 30 * GB - DUCK_KERNEL_READ_AHEAD);
    CHECK(areas_take_region(&areas, DUCK_REGION_WEIGHTS, 23 * GB) == 0);
    CHECK(areas_take_region(&areas, DUCK_REGION_WEIGHTS, 1) == AREAS_NONE);
    CHECK(areas_region_bytes_max(&areas, DUCK_REGION_WEIGHTS) == 30 * GB - DUCK_KERNEL_READ_AHEAD);
    CHECK(areas_session_bytes_max(&areas) < 7 * GB);
}

/* ---- layout ---------------------------------------------------------------------------------- */

static struct elf_plan random_plan(void) {
    struct elf_plan plan = {.segment_count = 1 + (uint32_t)below(ELF_SEGMENTS_MAX)};
    uint64_t at = below(3) * 4096;
    for (uint32_t i = 0; i < plan.segment_count; i++) {
        uint64_t bytes = 1 + below(3 * MB);
        bool executable = i == 0;
        plan.segment[i] = (struct elf_segment){.address = at + below(4096),
                                               .memory_bytes = bytes,
                                               .executable = executable,
                                               .writable = !executable && below(2) == 1};
        at = (plan.segment[i].address + bytes + 4095) / 4096 * 4096 + below(4) * 4096;
        plan.span = (plan.segment[i].address + bytes + 4095) / 4096 * 4096;
    }
    plan.entry = plan.segment[0].address;
    return plan;
}

static bool is_weights(const struct layout *layout, const struct layout_range *range) {
    return range->virtual == layout->weights;
}

/* Whatever is asked for: ranges are whole pages, meet nowhere, are never writable and executable,
 * lie in the block (the weights in theirs), and have room around them. */
static void check_layout(const struct layout *layout, uint64_t block, uint64_t weights_bytes) {
    for (uint32_t i = 0; i < layout->range_count; i++) {
        const struct layout_range *a = &layout->range[i];
        CHECK(a->bytes != 0 && (a->virtual | a->offset | a->bytes) % 4096 == 0);
        CHECK(!(a->writable && a->executable));
        CHECK(a->virtual >= LAYOUT_SLOT(128) && a->virtual + a->bytes <= LAYOUT_SLOT(256));
        CHECK(layout_offset(layout, a->virtual, a->bytes) == a->offset);
        CHECK(layout_offset(layout, a->virtual, a->bytes + 1) == UINT64_MAX);
        if (!is_weights(layout, a) || weights_bytes == 0)
            CHECK(a->offset >= block && a->offset + a->bytes <= block + layout->bytes);
        for (uint32_t j = 0; j < i; j++) {
            const struct layout_range *b = &layout->range[j];
            CHECK(a->virtual + a->bytes <= b->virtual || b->virtual + b->bytes <= a->virtual);
            CHECK(a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset);
        }
    }
}

static void layouts_are_sound(void) {
    static struct layout layout, again;
    for (int i = 0; i < 2000; i++) {
        struct elf_plan plan = random_plan();
        struct plat_session_request request = {
            .weights_bytes = below(3) == 0 ? 0 : below(24 * GB),
            .calls_bytes = 1 + below(256 * MB),
            .scratch_bytes = below(3) == 0 ? 0 : below(4 * GB),
            .core_count = 1 + (uint32_t)below(DUCK_KERNEL_CORES_MAX),
        };
        layout_make(&layout, &plan, &request, 0, 0);
        uint64_t block = 25 * GB + below(1000) * 2 * MB;
        layout_make(&again, &plan, &request, block, 0);
        CHECK(again.bytes == layout.bytes);
        check_layout(&again, block, request.weights_bytes);
        CHECK(layout_offset(&again, again.entry, 1) != UINT64_MAX);
        CHECK(layout_offset(&again, 0, 1) == UINT64_MAX);
        uint64_t top = layout_stack_top(request.core_count - 1);
        CHECK(layout_offset(&again, top - 8, 8) != UINT64_MAX);
        CHECK(layout_offset(&again, top, 1) == UINT64_MAX);
        CHECK(!layout_in_stack_guard(&again, top - DUCK_KERNEL_STACK_BYTES));
        CHECK(layout_in_stack_guard(&again, top - DUCK_KERNEL_STACK_BYTES - 1));
    }
}

/* ---- verdicts -------------------------------------------------------------------------------- */

struct verdict_case {
    uint64_t vector, error, address;
    uint8_t code[VERDICT_CODE_BYTES];
    uint32_t kind;
    uint64_t told_address;
};

static void make_small_layout(struct layout *layout) {
    struct elf_plan plan = {.span = 8192, .entry = 16, .segment_count = 1};
    plan.segment[0] = (struct elf_segment){.memory_bytes = 8192, .executable = 1};
    struct plat_session_request request = {
        .calls_bytes = 8192, .scratch_bytes = 65536, .core_count = 2};
    layout_make(layout, &plan, &request, 0, 0);
}

static void traps_get_their_kinds(void) {
    static struct layout layout;
    make_small_layout(&layout);
    const uint64_t guard = LAYOUT_STACKS + LAYOUT_STACK_PITCH + 4096;
    const struct verdict_case cases[] = {
        {14, 6, 0x10, {0}, DUCK_FAULT_MEMORY, 0x10},
        {14, 7, LAYOUT_ELF, {0}, DUCK_FAULT_MEMORY, LAYOUT_ELF},
        {14, 6, guard, {0}, DUCK_FAULT_STACK, guard},
        {14,
         6,
         LAYOUT_STACKS + 2 * LAYOUT_STACK_PITCH,
         {0},
         DUCK_FAULT_MEMORY,
         LAYOUT_STACKS + 2 * LAYOUT_STACK_PITCH},
        {6, 0, 0, {0x0F, 0x0B}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},
        {3, 0, 0, {0}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},
        {1, 0, 0, {0}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},
        {0, 0, 0, {0}, DUCK_FAULT_ARITHMETIC, 0},
        {16, 0, 0, {0}, DUCK_FAULT_ARITHMETIC, 0},
        {19, 0, 0, {0}, DUCK_FAULT_ARITHMETIC, 0},
        {17, 0, 0, {0}, DUCK_FAULT_BUS, 0},
        {12, 0, 0, {0}, DUCK_FAULT_BUS, 0},
        {13, 0, 0, {0xF4}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},                   /* hlt */
        {13, 0, 0, {0xFA}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},                   /* cli */
        {13, 0, 0, {0xE4, 0x80}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},             /* inb */
        {13, 0, 0, {0x66, 0xED}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},             /* inw %dx */
        {13, 0, 0, {0x0F, 0x22, 0xD8}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},       /* mov to CR3 */
        {13, 0, 0, {0x44, 0x0F, 0x22, 0xC0}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0}, /* to CR8 */
        {13, 0x402, 0, {0xCD, 0x40}, DUCK_FAULT_ILLEGAL_INSTRUCTION, 0},         /* int $0x40 */
        {13, 0, 0, {0x0F, 0x28, 0x44}, DUCK_FAULT_MEMORY, 0},                    /* movaps */
        {13, 0, 0, {0xC6, 0x00, 0x01}, DUCK_FAULT_MEMORY, 0},                    /* not canonical */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct verdict_trap trap = {.core = 1,
                                    .vector = cases[i].vector,
                                    .error = cases[i].error,
                                    .address = cases[i].address,
                                    .instruction = layout.elf_base + 0x123,
                                    .code_bytes = VERDICT_CODE_BYTES};
        memcpy(trap.code, cases[i].code, sizeof trap.code);
        struct duck_fault verdict;
        verdict_of_trap(&layout, DUCK_KERNEL_PERSISTENT, &trap, &verdict);
        if (verdict.fault_kind != cases[i].kind) fprintf(stderr, "case %zu\n", i);
        CHECK(verdict.fault_kind == cases[i].kind && verdict.status == DUCK_ERR_KERNEL_FAULT);
        CHECK(verdict.address == cases[i].told_address && verdict.core == 1);
        CHECK(verdict.instruction == 0x123 && verdict.text[0] != 0);
    }
}

static void places_and_limits_are_named(void) {
    static struct layout layout;
    make_small_layout(&layout);
    struct duck_fault verdict;
    struct verdict_trap trap = {.vector = 14, .instruction = 0x1000, .number = 39};
    trap.address = layout.scratch + layout.scratch_bytes;
    verdict_of_trap(&layout, DUCK_KERNEL_ONE_SHOT, &trap, &verdict);
    CHECK(verdict.status == DUCK_ERR_MEMORY_LIMIT && verdict.fault_kind == DUCK_FAULT_MEMORY);
    CHECK(verdict.instruction == UINT64_MAX);
    verdict_of_trap(&layout, DUCK_KERNEL_PERSISTENT, &trap, &verdict);
    CHECK(verdict.status == DUCK_ERR_KERNEL_FAULT);
    verdict_of_call(&layout, &trap, &verdict);
    CHECK(verdict.fault_kind == DUCK_FAULT_FORBIDDEN_CALL && verdict.address == 39);
    verdict_of_word(3, 0x7000, &verdict);
    CHECK(verdict.fault_kind == DUCK_FAULT_MEMORY && verdict.address == 0x7000);
    verdict_of_return(&verdict);
    CHECK(verdict.fault_kind == DUCK_FAULT_EXITED && verdict.core == UINT32_MAX);
}

/* ---- waiting in ring 3 ----------------------------------------------------------------------- */

static struct {
    _Alignas(64) struct duck_kernel_mailbox mailbox;
    struct stub_shared shared;
    struct duck_kernel_context context;
} waiter;

typedef void wait_function(const struct duck_kernel_context *, const uint32_t *, uint32_t);

static void *publish_calls(void *unused) {
    (void)unused;
    for (uint32_t number = 1; number <= 1000; number++) {
        __atomic_store_n(&waiter.mailbox.call_published, number, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&waiter.mailbox.call_completed, __ATOMIC_SEQ_CST) != number)
            __builtin_ia32_pause();
    }
    __atomic_store_n(&waiter.mailbox.stop, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void waits_see_every_call(wait_function *wait) {
    pthread_t publisher;
    memset(&waiter, 0, sizeof waiter);
    waiter.context.mailbox = &waiter.mailbox;
    waiter.context.runtime = &waiter.shared;
    CHECK(pthread_create(&publisher, NULL, publish_calls, NULL) == 0);
    uint32_t seen = 0;
    for (;;) {
        wait(&waiter.context, &waiter.mailbox.call_published, seen);
        if (waiter.mailbox.call_published == seen) break;
        seen++;
        const struct stub_time *time = &waiter.shared.time[seen % DUCK_KERNEL_SLOTS];
        CHECK(time->number == seen && time->start_cycles != 0);
        stub_complete_spinning(&waiter.context, seen);
        CHECK(time->end_cycles >= time->start_cycles);
    }
    CHECK(seen == 1000 && waiter.mailbox.stop == 1);
    CHECK(pthread_join(publisher, NULL) == 0);
}

static bool has_waitpkg(void) {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 5)) != 0;
}

int main(int count, char **words) {
    random_state = count > 1 ? strtoull(words[1], NULL, 10) * 2 + 1 : 1;
    areas_never_overlap_or_leak();
    areas_keep_a_limit();
    layouts_are_sound();
    traps_get_their_kinds();
    places_and_limits_are_named();
    waits_see_every_call(stub_wait_pause);
    if (has_waitpkg()) waits_see_every_call(stub_wait_monitor);
    printf("fine%s\n", has_waitpkg() ? ", with umwait" : "");
    return 0;
}
