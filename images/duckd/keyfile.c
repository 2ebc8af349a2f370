/* SPDX-License-Identifier: Apache-2.0 */
#include "duckd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

void key_read(const char *path, uint8_t key[DUCK_WIRE_KEY_BYTES]) {
    char text[2 * DUCK_WIRE_KEY_BYTES + 2];
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("key file %s: %s", path, strerror(errno));
    if (fstat(fd, &facts) != 0) fail("key file %s: %s", path, strerror(errno));
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        fail("key file %s is readable by others (mode %03o); chmod 600 it", path,
             facts.st_mode & 0777u);
    ssize_t bytes = read(fd, text, sizeof text);
    close(fd);
    if (bytes > 0 && text[bytes - 1] == '\n') bytes--;
    bool good = bytes == 2 * DUCK_WIRE_KEY_BYTES;
    for (size_t i = 0; good && i < DUCK_WIRE_KEY_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        key[i] = (uint8_t)(high << 4 | low);
    }
    explicit_bzero(text, sizeof text);
    if (!good) fail("key file %s: expected 64 hexadecimal digits and nothing else", path);
}
