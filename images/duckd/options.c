/* SPDX-License-Identifier: Apache-2.0 */
#include "duckd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "usage: duckd --name NAME --listen ADDRESS:PORT [--listen ...] --fleet-pub FILE\n"
    "             [--identity-file FILE] [--cores N] [--pin] [--memory-limit BYTES] [--poll "
    "block|sleep|spin]\n"
    "             [--log-file FILE] [--huge-pages auto|never] [--image]\n"
    "       duckd run KERNEL.elf [--input FILE] [--output FILE] [--weights FILE]\n"
    "             [--cores N] [--time-limit-ms N] [--memory-limit BYTES]\n"
    "       duckd --version\n";

static void complain(const char *format, va_list values) {
    fputs("duckd: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
}

_Noreturn void usage_error(const char *format, ...) {
    va_list values;
    va_start(values, format);
    complain(format, values);
    va_end(values);
    fputs(usage_text, stderr);
    exit(EXIT_USAGE);
}

_Noreturn void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    complain(format, values);
    va_end(values);
    exit(EXIT_FAILED);
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t number(const char *option, const char *word, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(word, &end, 10);
    if (word[0] < '0' || word[0] > '9' || *end != 0 || errno != 0 || value < least || value > most)
        usage_error("%s wants a number from %llu to %llu, not \"%s\"", option,
                    (unsigned long long)least, (unsigned long long)most, word);
    return value;
}

static struct sockaddr_in address(const char *word) {
    struct sockaddr_in result = {.sin_family = AF_INET};
    const char *colon = strrchr(word, ':');
    char host[INET_ADDRSTRLEN];
    size_t length = colon == NULL ? sizeof host : (size_t)(colon - word);
    if (length >= sizeof host)
        usage_error("--listen wants an IPv4 address and a port like 127.0.0.1:7211, not \"%s\"",
                    word);
    memcpy(host, word, length);
    host[length] = 0;
    if (inet_pton(AF_INET, host, &result.sin_addr) != 1)
        usage_error("--listen: \"%s\" is no IPv4 address", host);
    result.sin_port = htons((uint16_t)number("--listen PORT", colon + 1, 0, 65535));
    return result;
}

static void set_name(struct options *options, const char *word) {
    size_t length = strlen(word);
    if (length == 0 || length >= sizeof options->name)
        usage_error("--name wants 1 to %zu characters", sizeof options->name - 1);
    for (const char *at = word; *at != 0; at++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *at) ==
            NULL)
            usage_error("--name: letters, digits, - _ . only, not \"%s\"", word);
    memcpy(options->name, word, length + 1);
}

static enum duck_poll_policy poll_policy(const char *word) {
    if (strcmp(word, "block") == 0) return DUCK_POLL_BLOCK;
    if (strcmp(word, "sleep") == 0) return DUCK_POLL_SLEEP;
    if (strcmp(word, "spin") == 0) return DUCK_POLL_SPIN;
    usage_error("--poll wants block, sleep or spin, not \"%s\"", word);
}

static bool huge_pages(const char *word) {
    if (strcmp(word, "auto") == 0) return true;
    if (strcmp(word, "never") == 0) return false;
    usage_error("--huge-pages wants auto or never, not \"%s\"", word);
}

static void set_common(struct options *options) {
    memset(options, 0, sizeof *options);
    options->poll = DUCK_POLL_BLOCK;
    options->huge_pages = true;
    options->core_count = machine_allowed_cpus();
}

/* The word after an option. */
static const char *value_of(int count, char **words, int *at) {
    if (*at + 1 >= count) usage_error("%s needs a value", words[*at]);
    return words[++*at];
}

/* ---- the two command lines ------------------------------------------------------------------- */

static void parse_option(int count, char **words, int *at, struct options *options) {
    const char *option = words[*at];
    if (strcmp(option, "--pin") == 0) {
        options->pin = true;
    } else if (strcmp(option, "--restarted") == 0) {
        options->restarted = true;
    } else if (strcmp(option, "--image") == 0) {
        options->image = true;
    } else if (strcmp(option, "--name") == 0) {
        set_name(options, value_of(count, words, at));
    } else if (strcmp(option, "--listen") == 0) {
        if (options->listen_count == LISTEN_MAX)
            usage_error("--listen: at most %d addresses", LISTEN_MAX);
        options->listen[options->listen_count++] = address(value_of(count, words, at));
    } else if (strcmp(option, "--fleet-pub") == 0) {
        options->fleet_public_file = value_of(count, words, at);
    } else if (strcmp(option, "--identity-file") == 0) {
        options->identity_file = value_of(count, words, at);
    } else if (strcmp(option, "--cores") == 0) {
        options->core_count =
            (uint32_t)number(option, value_of(count, words, at), 1, DUCK_KERNEL_CORES_MAX);
    } else if (strcmp(option, "--memory-limit") == 0) {
        options->memory_limit = number(option, value_of(count, words, at), 1, UINT64_MAX / 2);
    } else if (strcmp(option, "--poll") == 0) {
        options->poll = poll_policy(value_of(count, words, at));
    } else if (strcmp(option, "--log-file") == 0) {
        options->log_file = value_of(count, words, at);
    } else if (strcmp(option, "--huge-pages") == 0) {
        options->huge_pages = huge_pages(value_of(count, words, at));
    } else {
        usage_error("unknown option \"%s\"", option);
    }
}

void options_parse(int count, char **words, struct options *options) {
    set_common(options);
    for (int at = 1; at < count; at++) parse_option(count, words, &at, options);
    if (options->name[0] == 0) usage_error("--name is missing");
    if (options->listen_count == 0) usage_error("--listen is missing");
    if (options->fleet_public_file == NULL) usage_error("--fleet-pub is missing");
}

void options_parse_run(int count, char **words, struct options *options) {
    set_common(options);
    options->time_limit_ms = 10000;
    for (int at = 2; at < count; at++) {
        const char *option = words[at];
        if (option[0] != '-' && options->kernel_file == NULL)
            options->kernel_file = option;
        else if (strcmp(option, "--input") == 0)
            options->input_file = value_of(count, words, &at);
        else if (strcmp(option, "--output") == 0)
            options->output_file = value_of(count, words, &at);
        else if (strcmp(option, "--weights") == 0)
            options->weights_file = value_of(count, words, &at);
        else if (strcmp(option, "--time-limit-ms") == 0)
            options->time_limit_ms = (uint32_t)number(option, value_of(count, words, &at), 1,
                                                      CORE_CALL_TIME_LIMIT_MS_MAX);
        else if (strcmp(option, "--cores") == 0 || strcmp(option, "--memory-limit") == 0)
            parse_option(count, words, &at, options);
        else
            usage_error("run: unknown option \"%s\"", option);
    }
    if (options->kernel_file == NULL) usage_error("run: the kernel file is missing");
}
