/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts without a C library: a bounded buffer and two ways to append to it.
 */
#ifndef DUCK_TEXT_H
#define DUCK_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct duck_text {
    char *data;
    size_t bytes; /* of data, at least 1; the text is cut to fit and always ends with a zero */
    size_t used;
};

static inline void duck_text_append(struct duck_text *text, const char *string) {
    while (*string != '\0' && text->used + 1 < text->bytes) {
        text->data[text->used++] = *string++;
    }
    text->data[text->used] = '\0';
}

static inline void duck_text_number(struct duck_text *text, uint64_t number) {
    char digits[21];
    size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    duck_text_append(text, digits + at);
}

/* "NAME is FOUND, expected EXPECTED" */
static inline void duck_text_mismatch(struct duck_text *text, const char *name, uint64_t found,
                                      const char *expected) {
    duck_text_append(text, name);
    duck_text_append(text, " is ");
    duck_text_number(text, found);
    duck_text_append(text, ", expected ");
    duck_text_append(text, expected);
}

#endif
