/* SPDX-License-Identifier: Apache-2.0
 *
 * A spin lock, taken with interrupts off. Only for the console: cores share nothing else.
 */
#ifndef DUCKOS_LOCK_H
#define DUCKOS_LOCK_H

#include <stdint.h>

struct lock {
    uint32_t taken;
};

#define RFLAGS_INTERRUPTS (1ull << 9)

/* Returns the flags for lock_give. */
static inline uint64_t lock_take(struct lock *lock) {
    uint64_t flags;
    __asm__ volatile("pushfq; popq %0; cli" : "=r"(flags)::"memory");
    while (__atomic_exchange_n(&lock->taken, 1, __ATOMIC_ACQUIRE) != 0) __asm__ volatile("pause");
    return flags;
}

static inline void lock_give(struct lock *lock, uint64_t flags) {
    __atomic_store_n(&lock->taken, 0, __ATOMIC_RELEASE);
    if ((flags & RFLAGS_INTERRUPTS) != 0) __asm__ volatile("sti" ::: "memory");
}

static inline void lock_break(struct lock *lock) {
    __atomic_store_n(&lock->taken, 0, __ATOMIC_RELEASE);
}

#endif
