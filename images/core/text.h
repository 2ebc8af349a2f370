/* SPDX-License-Identifier: Apache-2.0
 *
 * Building short texts without stdio: each function appends to a zero-terminated buffer and cuts
 * what does not fit.
 */
#ifndef DUCK_TEXT_H
#define DUCK_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    char *at;
    size_t room; /* of the whole buffer, terminator included */
    size_t used; /* without the terminator */
};

/* Start an empty text; the buffer is filled with zeros, so that it may travel as it is. */
struct text text_start(char *buffer, size_t bytes);
void text_add(struct text *text, const char *words);
void text_add_bytes(struct text *text, const char *words, size_t bytes);
/* Words that somebody else chose: zero-terminated or not, and any byte that is not printable ASCII
 * becomes '?'. */
void text_add_foreign(struct text *text, const char *words, size_t bytes_max);
void text_add_u64(struct text *text, uint64_t value);
void text_add_hex(struct text *text, uint64_t value);
void text_add_digest(struct text *text, const uint8_t *bytes, size_t count);

#endif
