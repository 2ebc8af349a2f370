/* SPDX-License-Identifier: Apache-2.0 */
#include "console/console.h"

#include "boot/handover.h"
#include "boot/options.h"
#include "console/format.h"
#include "console/screen.h"
#include "console/serial.h"
#include "cpu/lock.h"
#include "param.h"

#include <string.h>

static struct lock lock;
static char ring[CONSOLE_RING_BYTES]; /* lines with their newlines */
static uint64_t ring_end;             /* bytes ever written */
static void (*follower)(const char *line, size_t bytes);

void console_init(void) {
    serial_init();
    screen_init(&handover.screen);
}

void console_obey_options(void) {
    const char *wanted = options_text("console");
    if (wanted == NULL || strcmp(wanted, "both") == 0) return;
    if (strcmp(wanted, "serial") == 0 || strcmp(wanted, "off") == 0) screen_off();
    if (strcmp(wanted, "screen") == 0 || strcmp(wanted, "off") == 0) serial_off();
}

static void ring_put(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ring[ring_end++ % CONSOLE_RING_BYTES] = text[i];
}

static void write_line(const char *line, size_t bytes) {
    ring_put(line, bytes);
    ring_put("\n", 1);
    serial_write_bytes(line, bytes);
    serial_write("\r\n");
    screen_line(line, bytes);
}

void klog_line(const char *line, size_t bytes) {
    char text[CONSOLE_LINE_BYTES];
    if (bytes >= sizeof text) bytes = sizeof text - 1;
    for (size_t i = 0; i < bytes; i++) {
        /* Lines may hold what a peer sent: nothing that moves a terminal's cursor. */
        bool printable = line[i] >= ' ' && line[i] <= '~';
        text[i] = printable ? line[i] : '?';
    }
    text[bytes] = 0;
    uint64_t flags = lock_take(&lock);
    write_line(text, bytes);
    if (follower != NULL) follower(text, bytes);
    lock_give(&lock, flags);
}

void klog_list(const char *format, va_list arguments) {
    char text[CONSOLE_LINE_BYTES];
    size_t bytes = format_list(text, sizeof text, format, arguments);
    klog_line(text, bytes);
}

void klog(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    klog_list(format, arguments);
    va_end(arguments);
}

void console_follow(void (*function)(const char *line, size_t bytes)) {
    uint64_t flags = lock_take(&lock);
    char line[CONSOLE_LINE_BYTES];
    size_t bytes = 0;
    uint64_t at = ring_end < CONSOLE_RING_BYTES ? 0 : ring_end - CONSOLE_RING_BYTES;
    for (; at < ring_end; at++) {
        char c = ring[at % CONSOLE_RING_BYTES];
        if (c != '\n') {
            if (bytes + 1 < sizeof line) line[bytes++] = c;
            continue;
        }
        line[bytes] = 0;
        function(line, bytes);
        bytes = 0;
    }
    follower = function;
    lock_give(&lock, flags);
}

size_t console_tail(char *out, size_t room) {
    uint64_t kept = ring_end < CONSOLE_RING_BYTES ? ring_end : CONSOLE_RING_BYTES;
    uint64_t at = ring_end - (kept < room ? kept : room);
    /* Not the end of a line whose beginning is missing. */
    while (at != 0 && at < ring_end && ring[(at - 1) % CONSOLE_RING_BYTES] != '\n') at++;
    size_t bytes = 0;
    for (; at < ring_end; at++) out[bytes++] = ring[at % CONSOLE_RING_BYTES];
    return bytes;
}

void console_break_lock(void) { lock_break(&lock); }
