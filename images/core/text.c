/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdbool.h>
#include <string.h>

struct text text_start(char *buffer, size_t bytes) {
    memset(buffer, 0, bytes);
    return (struct text){.at = buffer, .room = bytes, .used = 0};
}

void text_add_bytes(struct text *text, const char *words, size_t bytes) {
    for (size_t i = 0; i < bytes && text->used + 1 < text->room; i++)
        text->at[text->used++] = words[i];
}

void text_add(struct text *text, const char *words) { text_add_bytes(text, words, strlen(words)); }

void text_add_foreign(struct text *text, const char *words, size_t bytes_max) {
    for (size_t i = 0; i < bytes_max && words[i] != 0; i++) {
        bool printable = words[i] >= ' ' && words[i] <= '~';
        text_add_bytes(text, printable ? &words[i] : "?", 1);
    }
}

void text_add_u64(struct text *text, uint64_t value) {
    char digits[20];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    text_add_bytes(text, digits + first, sizeof digits - first);
}

static char hex_digit(unsigned value) { return "0123456789abcdef"[value & 15u]; }

void text_add_hex(struct text *text, uint64_t value) {
    char digits[16];
    size_t first = sizeof digits;
    do {
        digits[--first] = hex_digit((unsigned)(value & 15u));
        value >>= 4;
    } while (value != 0);
    text_add(text, "0x");
    text_add_bytes(text, digits + first, sizeof digits - first);
}

void text_add_digest(struct text *text, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char pair[2] = {hex_digit(bytes[i] >> 4), hex_digit(bytes[i])};
        text_add_bytes(text, pair, sizeof pair);
    }
}
