/* SPDX-License-Identifier: Apache-2.0
 *
 * The console: every line goes to the serial port, to the screen (where the firmware gave one) and
 * into a ring that panics and the LOG message read. Any core may log; a lock keeps lines whole.
 */
#ifndef DUCKOS_CONSOLE_H
#define DUCKOS_CONSOLE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

void console_init(void);         /* serial port and screen; the first thing that main does */
void console_obey_options(void); /* console=serial|screen|both|off */

/* One line, without the newline. The conversions are those of format_text (console/format.h). */
void klog(const char *format, ...) __attribute__((format(printf, 1, 2)));
void klog_list(const char *format, va_list arguments);
void klog_line(const char *line, size_t bytes); /* not zero-terminated */

/* Called with every line from now on, after console_init's lines were handed over in order. `line`
 * is zero-terminated, without newline. The function must not log. It feeds the duck core's log. */
void console_follow(void (*follower)(const char *line, size_t bytes));

/* The newest `room` bytes at most, whole lines, not zero-terminated; returns the bytes copied. */
size_t console_tail(char *out, size_t room);

/* For panics: take the console from whoever holds its lock. */
void console_break_lock(void);

#endif
