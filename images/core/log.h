/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck's log: the newest CORE_LOG_BYTES of text, addressed by byte position since start.
 */
#ifndef DUCK_LOG_H
#define DUCK_LOG_H

#include "text.h"

#define CORE_LOG_BYTES (64u << 10)
#define CORE_LOG_LINE_BYTES 256u

struct core_log {
    uint64_t end; /* position behind the newest byte */
    char ring[CORE_LOG_BYTES];
};

/* Append `line` and a newline, and hand it to the platform. */
void log_line(struct core_log *log, const char *line, size_t bytes);
/* Copy at most `room` bytes from position `since` on; moves `since` forward to the oldest byte kept
 * where needed and returns the bytes copied. */
size_t log_read(const struct core_log *log, uint64_t *since, char *out, size_t room);

#endif
