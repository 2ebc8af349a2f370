/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that the compiler and libbearssl.a expect. `rep movs` and `rep stos` are the
 * fastest way on every CPU since 2012 (ERMS) for all but the shortest blocks; in words, because an
 * emulator goes step by step.
 */
#include "panic/panic.h"

#include <string.h>

void *__memcpy_chk(void *to, const void *from, size_t bytes, size_t room);
void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room);
void *__memset_chk(void *to, int value, size_t bytes, size_t room);
_Noreturn void __stack_chk_fail(void);

#define SHORT_BYTES 32u

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    void *at = to;
    if (bytes <= SHORT_BYTES) {
        uint8_t *out = to;
        for (const uint8_t *in = from; bytes != 0; bytes--) *out++ = *in++;
        return to;
    }
    size_t words = bytes / 8;
    __asm__ volatile("rep movsq" : "+D"(at), "+S"(from), "+c"(words)::"memory");
    uint8_t *out = at;
    const uint8_t *in = from;
    for (bytes %= 8; bytes != 0; bytes--) *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    if ((uintptr_t)to - (uintptr_t)from >= bytes) return memcpy(to, from, bytes);
    uint8_t *out = (uint8_t *)to + bytes;
    for (const uint8_t *in = (const uint8_t *)from + bytes; bytes != 0; bytes--) *--out = *--in;
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    void *at = to;
    size_t words = bytes / 8;
    uint64_t pattern = (uint8_t)value * UINT64_C(0x0101010101010101);
    __asm__ volatile("rep stosq" : "+D"(at), "+c"(words) : "a"(pattern) : "memory");
    uint8_t *out = at;
    for (bytes %= 8; bytes != 0; bytes--) *out++ = (uint8_t)value;
    return to;
}

int memcmp(const void *left, const void *right, size_t bytes) {
    const uint8_t *a = left, *b = right;
    for (; bytes != 0; bytes--, a++, b++)
        if (*a != *b) return *a < *b ? -1 : 1;
    return 0;
}

size_t strlen(const char *text) {
    size_t bytes = 0;
    while (text[bytes] != 0) bytes++;
    return bytes;
}

int strcmp(const char *left, const char *right) {
    while (*left != 0 && *left == *right) left++, right++;
    return (uint8_t)*left - (uint8_t)*right;
}

/* libbearssl.a is compiled with -D_FORTIFY_SOURCE and stack protection. */
static void check(const char *what, size_t bytes, size_t room) {
    if (bytes > room) panic("%s: %zu bytes into room for %zu", what, bytes, room);
}

void *__memcpy_chk(void *to, const void *from, size_t bytes, size_t room) {
    check("memcpy", bytes, room);
    return memcpy(to, from, bytes);
}

void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room) {
    check("memmove", bytes, room);
    return memmove(to, from, bytes);
}

void *__memset_chk(void *to, int value, size_t bytes, size_t room) {
    check("memset", bytes, room);
    return memset(to, value, bytes);
}

void __stack_chk_fail(void) { panic("stack overwritten in BearSSL"); }
