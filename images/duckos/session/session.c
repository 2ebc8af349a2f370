/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting and ending the session: memory, ELF, contexts, page tables; then cores.c.
 */
#include "session/session.h"

#include "panic/panic.h"
#include "session/verdict.h"
#include "text.h"
#include "time/timer.h"

#include <cpuid.h>
#include <string.h>

#define FEATURE_WAITPKG (1u << 5) /* CPUID leaf 7, ECX */

/* ---- start ----------------------------------------------------------------------------------- */

static enum duck_status refuse(enum duck_status status, const char *words,
                               char text[DUCK_WIRE_TEXT_BYTES]) {
    struct text out = text_start(text, DUCK_WIRE_TEXT_BYTES);
    text_add(&out, words);
    return status;
}

static uint8_t *block_page(uint64_t block, enum layout_page page) {
    return memory_window() + block + (uint64_t)page * LAYOUT_PAGE_BYTES;
}

static bool has_waitpkg(void) {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & FEATURE_WAITPKG) != 0;
}

/* The address of a stub function in the session's copy of it. */
static uint64_t in_stub(const void *function) {
    uint64_t offset = (uint64_t)(uintptr_t)function - (uint64_t)(uintptr_t)__start_user_stub;
    return layout_page(LAYOUT_STUB) + offset;
}

#define STUB(type, function) ((type)(uintptr_t)in_stub((const void *)(uintptr_t)(function)))
typedef void wait_function(const struct duck_kernel_context *, const uint32_t *, uint32_t);
typedef void wake_function(const struct duck_kernel_context *, const uint32_t *);
typedef void complete_function(const struct duck_kernel_context *, uint32_t);

static wait_function *wait_of_others(void) {
    if (cpu_waits_by_halting()) return STUB(wait_function *, stub_wait_halting);
    return has_waitpkg() ? STUB(wait_function *, stub_wait_monitor)
                         : STUB(wait_function *, stub_wait_pause);
}

/* The two contexts differ in how they wait: the core that also polls the NIC must come out. */
static void fill_contexts(const struct plat_session_request *request, uint64_t block) {
    const struct layout *layout = &session.layout;
    uint64_t mailbox = layout_page(LAYOUT_MAILBOX);
    bool halts = cpu_waits_by_halting();
    struct duck_kernel_context context = {
        .abi_version = DUCK_KERNEL_ABI_VERSION,
        .core_count = request->core_count,
        .run_mode = request->run_mode,
        .mailbox = (struct duck_kernel_mailbox *)(uintptr_t)mailbox,
        .weights = (const uint8_t *)(uintptr_t)layout->weights,
        .weights_bytes = request->weights_bytes,
        .calls = (uint8_t *)(uintptr_t)layout->calls,
        .calls_bytes = request->calls_bytes,
        .scratch = (uint8_t *)(uintptr_t)layout->scratch,
        .scratch_bytes = request->scratch_bytes,
        .wait = wait_of_others(),
        .wake = halts ? STUB(wake_function *, stub_wake_halting)
                      : STUB(wake_function *, stub_wake_spinning),
        .complete = halts ? STUB(complete_function *, stub_complete_halting)
                          : STUB(complete_function *, stub_complete_spinning),
        .runtime = (void *)(uintptr_t)(mailbox + STUB_SHARED_OFFSET),
    };
    memcpy(block_page(block, LAYOUT_CONTEXT_OTHER), &context, sizeof context);
    context.wait = STUB(wait_function *, stub_wait_polling);
    context.complete = STUB(complete_function *, stub_complete_spinning); /* it looks itself */
    memcpy(block_page(block, LAYOUT_CONTEXT_POLLING), &context, sizeof context);
}

static void fill_block(const struct plat_session_request *request, const struct elf_plan *plan,
                       const uint8_t *file, uint64_t block) {
    const struct layout *layout = &session.layout;
    uint64_t stub_bytes = (uint64_t)(__stop_user_stub - __start_user_stub);
    if (stub_bytes > LAYOUT_PAGE_BYTES) panic("the stub has %lu bytes", stub_bytes);
    regions_clear(memory_window() + block, layout->bytes);
    memcpy(block_page(block, LAYOUT_STUB), __start_user_stub, stub_bytes);
    fill_contexts(request, block);
    elf_load(file, plan, memory_window() + layout->elf_offset, layout->elf_base);
    uint8_t *page = block_page(block, LAYOUT_MAILBOX);
    session.mailbox = (struct duck_kernel_mailbox *)(void *)page;
    session.shared = (struct stub_shared *)(void *)(page + STUB_SHARED_OFFSET);
    session.mailbox->init_status = DUCK_KERNEL_INIT_PENDING;
}

static bool map_all(void) {
    if (paging_new_space(&session.space) != PAGING_OK) return false;
    for (uint32_t i = 0; i < session.layout.range_count; i++) {
        const struct layout_range *range = &session.layout.range[i];
        uint32_t flags = PAGE_USER | (range->writable ? PAGE_WRITE : 0u) |
                         (range->executable ? PAGE_EXECUTE : 0u);
        if (memory_map_window(&session.space, range->virtual, range->offset, range->bytes, flags) !=
            PAGING_OK)
            return false;
    }
    return true;
}

/* entry(core, context), called by nobody: the return address leads to the stub. */
static void prepare_core(uint32_t index, uint32_t cpu) {
    struct session_core *core = &session.core[index];
    uint64_t top = layout_stack_top(index);
    uint64_t return_to = in_stub((const void *)(uintptr_t)stub_returned);
    uint64_t slot = layout_offset(&session.layout, top - sizeof return_to, sizeof return_to);
    memcpy(memory_window() + slot, &return_to, sizeof return_to);
    *core = (struct session_core){.index = index, .cpu = cpu};
    core->ring.full = 1;
    core->ring.has_avx = cpu_features()->avx;
    core->ring.user = (struct trap_frame){
        .rip = session.layout.entry,
        .rsp = top - sizeof return_to,
        .rdi = index,
        .rsi = layout_page(cpu == 0 ? LAYOUT_CONTEXT_POLLING : LAYOUT_CONTEXT_OTHER),
        .cs = CPU_USER_CODE,
        .ss = CPU_USER_DATA,
        .rflags = RING_USER_FLAGS,
    };
}

static void give_back(void) {
    if (session.space.root != 0) {
        paging_switch(paging_kernel_space());
        paging_free_space(&session.space);
    }
    areas_give_session(regions_areas());
    memset(&session, 0, sizeof session);
}

enum duck_status plat_session_start(const struct plat_session_request *request,
                                    struct plat_session_memory *memory,
                                    char text[DUCK_WIRE_TEXT_BYTES]) {
    struct elf_plan plan;
    uint64_t elf_bytes;
    const uint8_t *file = regions_kernel(&elf_bytes);
    if (file == NULL || elf_check(file, request->elf_bytes, &plan) != ELF_OK)
        return refuse(DUCK_ERR_BAD_ELF, "the ELF changed while the session started", text);
    layout_make(&session.layout, &plan, request, 0, 0);
    uint64_t block = areas_take_session(regions_areas(), session.layout.bytes);
    if (block == AREAS_NONE) return refuse(DUCK_ERR_NO_MEMORY, "no memory for the session", text);
    session.exists = true;
    session.run_mode = request->run_mode;
    session.core_count = request->core_count;
    session.calls_bytes = request->calls_bytes;
    account_session_begins();
    layout_make(&session.layout, &plan, request, block, 0);
    fill_block(request, &plan, file, block);
    if (!map_all()) {
        give_back();
        return refuse(DUCK_ERR_NO_MEMORY, "no page tables for the session", text);
    }
    uint32_t first_cpu = request->core_count < cpu_count() ? 1 : 0;
    for (uint32_t i = 0; i < request->core_count; i++) prepare_core(i, first_cpu + i);
    paging_switch(&session.space);
    memory->mailbox = session.mailbox;
    memory->calls = memory_window() + session.layout.calls_offset;
    if (request->run_mode == DUCK_KERNEL_PERSISTENT && !cores_enter()) {
        plat_session_stop();
        return refuse(DUCK_ERR_INTERNAL, "a core is not idle", text);
    }
    return DUCK_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

void plat_session_wake(void) {
    if (!session.exists) return;
    account_published();
    if (!session.entered && !cores_enter()) panic("a core is not idle");
    cores_wake();
}

/* ---- the end --------------------------------------------------------------------------------- */

bool plat_session_ended(struct duck_fault *verdict) {
    if (!session.exists || __atomic_load_n(&session.verdict_ready, __ATOMIC_ACQUIRE) == 0)
        return false;
    *verdict = session.verdict;
    session.verdict_told = true;
    return true;
}

void plat_session_stop(void) {
    if (!session.exists) return;
    __atomic_store_n(&session.mailbox->stop, 1, __ATOMIC_SEQ_CST);
    cores_leave();
    account_session_over();
    give_back();
}
