/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include "platform.h"

static void append(struct core_log *log, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) log->ring[log->end++ % CORE_LOG_BYTES] = bytes[i];
}

void log_line(struct core_log *log, const char *line, size_t bytes) {
    append(log, line, bytes);
    append(log, "\n", 1);
    plat_log(line, bytes);
}

size_t log_read(const struct core_log *log, uint64_t *since, char *out, size_t room) {
    uint64_t oldest = log->end > CORE_LOG_BYTES ? log->end - CORE_LOG_BYTES : 0;
    if (*since < oldest) *since = oldest;
    if (*since > log->end) *since = log->end;
    size_t count = 0;
    while (count < room && *since + count < log->end) {
        out[count] = log->ring[(*since + count) % CORE_LOG_BYTES];
        count++;
    }
    return count;
}
