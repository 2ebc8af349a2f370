/* SPDX-License-Identifier: Apache-2.0
 *
 * System calls of the session child that use nothing of the C library: see session_child.c for why.
 */
#ifndef DUCKD_SESSION_RAW_H
#define DUCKD_SESSION_RAW_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

static inline long call4(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

static inline _Noreturn void leave(int code) {
    for (;;) call4(SYS_exit_group, code, 0, 0, 0);
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
