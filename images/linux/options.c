/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND_LINE_BYTES 4096
#define DUCK_PORT 7211
#define MTU_MIN 576
#define MTU_MAX 9000

static bool copy_word(char *out, size_t room, const char *word) {
    size_t length = strlen(word);
    if (length == 0 || length >= room) return false;
    memcpy(out, word, length + 1);
    return true;
}

static bool number(const char *word, long least, long most, long *out) {
    char *end;
    long value = strtol(word, &end, 10);
    if (word[0] == 0 || *end != 0 || value < least || value > most) return false;
    *out = value;
    return true;
}

static bool unsigned_number(const char *word, long least, long most, unsigned *out) {
    long value;
    if (!number(word, least, most, &value)) return false;
    *out = (unsigned)value;
    return true;
}

/* "01-aa-bb-cc-dd-ee-ff": hardware type 1 and the address, as boot loaders write it. */
static bool boot_mac(struct options *options, const char *word) {
    unsigned byte[7];
    if (sscanf(word, "%2x-%2x-%2x-%2x-%2x-%2x-%2x", &byte[0], &byte[1], &byte[2], &byte[3],
               &byte[4], &byte[5], &byte[6]) != 7 ||
        byte[0] != 1)
        return false;
    for (int i = 0; i < 6; i++) options->boot_mac[i] = (uint8_t)byte[i + 1];
    options->has_boot_mac = true;
    return true;
}

static bool poll_policy(struct options *options, const char *word) {
    if (strcmp(word, "spin") != 0 && strcmp(word, "sleep") != 0 && strcmp(word, "block") != 0)
        return false;
    return copy_word(options->poll, sizeof options->poll, word);
}

/* False: the word has a name of ours and a value that it cannot have. */
static bool take(struct options *options, const char *word) {
    const char *value = strchr(word, '=');
    if (value == NULL) return true;
    size_t length = (size_t)(value - word);
    value++;
#define IS(name) (length == sizeof(name) - 1 && memcmp(word, name, sizeof(name) - 1) == 0)
    if (IS("duck.name")) return copy_word(options->name, sizeof options->name, value);
    if (IS("duck.poll")) return poll_policy(options, value);
    if (IS("duck.memory"))
        return copy_word(options->memory_limit, sizeof options->memory_limit, value);
    if (IS("duck.mtu")) return unsigned_number(value, MTU_MIN, MTU_MAX, &options->mtu);
    if (IS("duck.port")) return unsigned_number(value, 1, 65535, &options->port);
    if (IS("duck.cores")) return unsigned_number(value, 1, 1024, &options->cores);
    if (IS("duck.hugepages")) return number(value, 0, 1L << 30, &options->huge_mib);
    if (IS("BOOTIF")) return boot_mac(options, value);
#undef IS
    return strncmp(word, "duck.", 5) != 0;
}

void options_parse(struct options *options, char *line) {
    memset(options, 0, sizeof *options);
    options->port = DUCK_PORT;
    options->huge_mib = -1;
    copy_word(options->poll, sizeof options->poll, "block");
    char *rest = NULL;
    for (char *word = strtok_r(line, " \n", &rest); word != NULL;
         word = strtok_r(NULL, " \n", &rest))
        if (!take(options, word)) say("command line: \"%s\" is not understood", word);
}

void options_read(struct options *options, const char *path) {
    char line[COMMAND_LINE_BYTES] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(line, sizeof line, file) == NULL) say("no kernel command line");
    if (file != NULL) fclose(file);
    options_parse(options, line);
}
