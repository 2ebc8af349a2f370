/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_BYTES 256
#define GIVE_UP_S 10

static void write_line(const char *format, va_list values) {
    static int kernel_log = -1;
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "duck-init: ");
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, values);
    size_t bytes = (size_t)used + (more < 0 ? 0 : (size_t)more);
    if (bytes > sizeof line - 2) bytes = sizeof line - 2;
    line[bytes++] = '\n';
    /* The console shows it at once; the kernel's log keeps it for whoever looks later. */
    ssize_t ignored = write(STDERR_FILENO, line, bytes);
    if (kernel_log < 0) kernel_log = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (kernel_log >= 0) ignored = write(kernel_log, line, bytes);
    (void)ignored;
}

void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_line(format, values);
    va_end(values);
}

/* Without a network the box is of no use: a fresh start is the only thing left to try. */
_Noreturn void give_up(const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_line(format, values);
    va_end(values);
    say("restarting the machine in %d s", GIVE_UP_S);
    sleep(GIVE_UP_S);
    machine_reboot();
}
