/* SPDX-License-Identifier: Apache-2.0
 *
 * Key files: one line, "what-it-is:" and hexadecimal digits.
 */
#include "duckd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES_MAX 256

static const char public_label[] = "duck-p256-public:";
static const char identity_label[] = "duck-x25519-private:";

static int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

static bool parse_hex(const char *text, uint8_t *out, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool parse(const char *line, size_t length, const char *label, uint8_t *key, size_t bytes) {
    size_t front = strlen(label);
    if (length != front + 2 * bytes || strncmp(line, label, front) != 0) return false;
    return parse_hex(line + front, key, bytes);
}

/* The length without the newline; the file stays open no longer than this. */
static size_t read_line(const char *what, const char *path, int fd, char line[LINE_BYTES_MAX]) {
    ssize_t bytes = read(fd, line, LINE_BYTES_MAX);
    if (bytes < 0) fail("%s %s: %s", what, path, strerror(errno));
    close(fd);
    if (bytes > 0 && line[bytes - 1] == '\n') bytes--;
    return (size_t)bytes;
}

static bool is_old_key(const char *line, size_t length) {
    uint8_t key[32];
    return length == 2 * sizeof key && parse_hex(line, key, sizeof key);
}

void fleet_public_read(const char *path, uint8_t key[DUCK_WIRE_PUBLIC_BYTES]) {
    char line[LINE_BYTES_MAX];
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0) fail("fleet's public key %s: %s", path, strerror(errno));
    if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        fail("fleet's public key %s: others may write it (mode %03o); chmod go-w it", path,
             facts.st_mode & 0777u);
    size_t length = read_line("fleet's public key", path, fd, line);
    if (is_old_key(line, length))
        fail("%s is a shared key of an older version: a duck gets the public key now (fleet.pub, "
             "made by duckctl init)",
             path);
    if (length > 18 && strncmp(line, "duck-p256-private:", 18) == 0)
        fail("%s is the fleet's private key: keep it on the host, a duck gets fleet.pub", path);
    if (!parse(line, length, public_label, key, DUCK_WIRE_PUBLIC_BYTES) || key[0] != 4)
        fail("fleet's public key %s: expected \"%s\" and %u hexadecimal digits", path, public_label,
             2 * DUCK_WIRE_PUBLIC_BYTES);
}

/* Written beside and linked into place, so that nobody ever sees half a file and one that appears
 * meanwhile is kept. */
static void identity_make(const char *path) {
    char beside[4096], line[LINE_BYTES_MAX];
    uint8_t key[DUCK_WIRE_KEY_BYTES];
    plat_random(key, sizeof key);
    int length = snprintf(line, sizeof line, "%s", identity_label);
    for (size_t i = 0; i < sizeof key; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, "%02x", key[i]);
    line[length++] = '\n';
    explicit_bzero(key, sizeof key);
    int name = snprintf(beside, sizeof beside, "%s.%d.new", path, (int)getpid());
    if (name < 0 || (size_t)name >= sizeof beside) fail("identity file %s: name too long", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool written = fd >= 0 && write(fd, line, (size_t)length) == length && fsync(fd) == 0;
    explicit_bzero(line, sizeof line);
    if (fd >= 0) close(fd);
    if (!written || (link(beside, path) != 0 && errno != EEXIST))
        fail("identity file %s: cannot be made: %s", path, strerror(errno));
    unlink(beside);
}

void identity_read(const char *path, uint8_t key[DUCK_WIRE_KEY_BYTES]) {
    char line[LINE_BYTES_MAX];
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        identity_make(path);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0 || fstat(fd, &facts) != 0) fail("identity file %s: %s", path, strerror(errno));
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        fail("identity file %s is readable by others (mode %03o); chmod 600 it", path,
             facts.st_mode & 0777u);
    size_t length = read_line("identity file", path, fd, line);
    bool good = parse(line, length, identity_label, key, DUCK_WIRE_KEY_BYTES);
    explicit_bzero(line, sizeof line);
    if (!good)
        fail("identity file %s: expected \"%s\" and %u hexadecimal digits", path, identity_label,
             2 * DUCK_WIRE_KEY_BYTES);
}
