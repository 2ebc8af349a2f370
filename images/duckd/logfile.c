/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines go to stderr and, when asked for, to a file that never grows beyond LOG_FILE_BYTES_MAX
 * (the full one becomes FILE.1).
 */
#include "duckd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOG_FILE_BYTES_MAX (1 << 20)

static const char *duck_name = "";
static const char *file_path;
static int file = -1;
static off_t file_bytes;

static int open_file(void) {
    return open(file_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
}

void logfile_open(const char *name, const char *path) {
    struct stat facts;
    duck_name = name;
    file_path = path;
    if (path == NULL) return;
    file = open_file();
    if (file < 0) fail("log file %s: %s", path, strerror(errno));
    if (fstat(file, &facts) == 0) file_bytes = facts.st_size;
}

static void turn_over(void) {
    char old[4096];
    int length = snprintf(old, sizeof old, "%s.1", file_path);
    if (length < 0 || (size_t)length >= sizeof old || rename(file_path, old) != 0) return;
    close(file);
    file = open_file();
    file_bytes = 0;
}

void plat_log(const char *line, size_t bytes) {
    struct iovec part[] = {
        {(char *)(uintptr_t)"duckd ", 6}, {(char *)(uintptr_t)duck_name, strlen(duck_name)},
        {(char *)(uintptr_t)": ", 2},     {(char *)(uintptr_t)line, bytes},
        {(char *)(uintptr_t)"\n", 1},
    };
    ssize_t written = writev(STDERR_FILENO, part, 5);
    if (file < 0) return;
    written = writev(file, part, 5);
    if (written > 0) file_bytes += written;
    if (file_bytes > LOG_FILE_BYTES_MAX) turn_over();
}
