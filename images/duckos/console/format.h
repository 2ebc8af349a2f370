/* SPDX-License-Identifier: Apache-2.0
 *
 * A small printf: %s %c %d %u %x %p %%, with l, ll and z, field width, 0 and - flags, precision for
 * %s. What is not in this list is copied as it stands. Always zero-terminated when room > 0.
 */
#ifndef DUCKOS_FORMAT_H
#define DUCKOS_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

/* Returns the bytes written, without the zero: less than room, even when the text was cut. */
size_t format_text(char *out, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
size_t format_list(char *out, size_t room, const char *format, va_list arguments);

#endif
