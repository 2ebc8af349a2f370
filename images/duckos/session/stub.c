/* SPDX-License-Identifier: Apache-2.0
 *
 * All of this runs in ring 3, in a copy: it may refer to nothing but itself and its arguments (no
 * constants in memory, no jump tables, no calls out of the section).
 */
#include "stub.h"

#define IN_STUB __attribute__((section("user_stub"), noinline))
#define INLINE static inline __attribute__((always_inline))

#define HALT_SPINS 200u       /* looks before the OS is asked to halt the core */
#define MONITOR_SPINS 64u     /* looks before UMWAIT */
#define MONITOR_CYCLES 50000u /* the longest UMWAIT: `stop` may lie in another cache line */
#define UMWAIT_C0_1 1u        /* the shallow state: wakes faster */

INLINE uint64_t cycles(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

INLINE void call_os(uint64_t number, uint64_t a, uint64_t b) {
    __asm__ volatile("syscall"
                     : "+a"(number), "+D"(a), "+S"(b)
                     :
                     : "rcx", "rdx", "r8", "r9", "r10", "r11", "memory", "cc");
}

INLINE struct stub_shared *shared_of(const struct duck_kernel_context *context) {
    return (struct stub_shared *)context->runtime;
}

INLINE int must_return(const struct duck_kernel_context *context, const uint32_t *word,
                       uint32_t seen) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) != seen ||
           __atomic_load_n(&context->mailbox->stop, __ATOMIC_ACQUIRE) != 0;
}

/* The first core that sees a new call notes when. */
INLINE void note_start(const struct duck_kernel_context *context, const uint32_t *word,
                       uint32_t seen) {
    if (word != &context->mailbox->call_published ||
        __atomic_load_n(word, __ATOMIC_ACQUIRE) == seen)
        return;
    uint32_t number = seen + 1;
    struct stub_time *time = &shared_of(context)->time[number % DUCK_KERNEL_SLOTS];
    uint32_t before = __atomic_load_n(&time->number, __ATOMIC_RELAXED);
    if (before == number) return;
    if (__atomic_compare_exchange_n(&time->number, &before, number, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        time->start_cycles = cycles();
}

INLINE void note_end(const struct duck_kernel_context *context, uint32_t number) {
    shared_of(context)->time[number % DUCK_KERNEL_SLOTS].end_cycles = cycles();
    __atomic_store_n(&context->mailbox->call_completed, number, __ATOMIC_SEQ_CST);
}

/* ---- wait ------------------------------------------------------------------------------------ */

IN_STUB void stub_wait_polling(const struct duck_kernel_context *context, const uint32_t *word,
                               uint32_t seen) {
    if (!must_return(context, word, seen)) call_os(STUB_CALL_WAIT, (uint64_t)(uintptr_t)word, seen);
    note_start(context, word, seen);
}

IN_STUB void stub_wait_pause(const struct duck_kernel_context *context, const uint32_t *word,
                             uint32_t seen) {
    while (!must_return(context, word, seen)) __builtin_ia32_pause();
    note_start(context, word, seen);
}

IN_STUB void stub_wait_monitor(const struct duck_kernel_context *context, const uint32_t *word,
                               uint32_t seen) {
    for (uint32_t looks = 0; !must_return(context, word, seen); looks++) {
        if (looks < MONITOR_SPINS) {
            __builtin_ia32_pause();
            continue;
        }
        __asm__ volatile("umonitor %0" ::"r"(word) : "memory");
        if (must_return(context, word, seen)) break;
        uint64_t until = cycles() + MONITOR_CYCLES;
        __asm__ volatile("umwait %0" ::"r"(UMWAIT_C0_1), "a"((uint32_t)until),
                         "d"((uint32_t)(until >> 32))
                         : "memory", "cc");
    }
    note_start(context, word, seen);
}

IN_STUB void stub_wait_halting(const struct duck_kernel_context *context, const uint32_t *word,
                               uint32_t seen) {
    uint32_t *sleepers = &shared_of(context)->sleepers;
    for (uint32_t looks = 0; !must_return(context, word, seen); looks++) {
        if (looks < HALT_SPINS) {
            __builtin_ia32_pause();
            continue;
        }
        __atomic_fetch_add(sleepers, 1, __ATOMIC_SEQ_CST);
        call_os(STUB_CALL_WAIT, (uint64_t)(uintptr_t)word, seen);
        __atomic_fetch_sub(sleepers, 1, __ATOMIC_SEQ_CST);
    }
    note_start(context, word, seen);
}

/* ---- wake and complete ----------------------------------------------------------------------- */

IN_STUB void stub_wake_spinning(const struct duck_kernel_context *context, const uint32_t *word) {
    (void)context;
    (void)word;
}

IN_STUB void stub_wake_halting(const struct duck_kernel_context *context, const uint32_t *word) {
    (void)word;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared_of(context)->sleepers, __ATOMIC_RELAXED) != 0)
        call_os(STUB_CALL_WAKE, 0, 0);
}

IN_STUB void stub_complete_spinning(const struct duck_kernel_context *context, uint32_t number) {
    note_end(context, number);
}

IN_STUB void stub_complete_halting(const struct duck_kernel_context *context, uint32_t number) {
    note_end(context, number);
    call_os(STUB_CALL_COMPLETE, 0, 0);
}

IN_STUB void stub_returned(void) {
    for (;;) call_os(STUB_CALL_RETURNED, 0, 0);
}
