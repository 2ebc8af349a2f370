/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/options.h"

#include "boot/config_block.h"
#include "boot/handover.h"
#include "console/console.h"
#include "param.h"

#include <string.h>

struct option_key {
    char name[16];
    bool from_dhcp; /* may DHCP set it? */
};

/* Every key there is. What a value means is said where it is used. */
static const struct option_key keys[] = {
    {"fleet_public", false},  /* the fleet's P-256 public key: session */
    {"version", false},       /* of the image; for the log */
    {"build", false},         /* digest of the image; for the log */
    {"host", true},           /* IPv4 of the host; panics go there */
    {"domain", true},         /* number of the duck's domain; for the log */
    {"name", true},           /* the duck's name in INFO */
    {"poll", false},          /* spin | hlt */
    {"console", false},       /* serial | screen | both | off */
    {"memory_limit", false},  /* bytes that sessions may use */
    {"watchdog", false},      /* on | off */
    {"panic_seconds", false}, /* from panic to reboot */
    {"cores", false},         /* at most so many */
    {"address", true},        /* fixed IPv4 instead of DHCP, with netmask, router and mtu */
    {"netmask", true},        {"router", true}, {"mtu", true},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])
static_assert(KEY_COUNT <= OPTIONS_MAX, "options");

static struct {
    uint8_t source; /* enum option_source; 0 = not set */
    char *value;
} option[KEY_COUNT];
static char text[OPTIONS_TEXT_BYTES];
static size_t text_used;

/* KEY_COUNT = no such key. */
static size_t find_key(const char *name, size_t bytes) {
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strlen(keys[i].name) == bytes && memcmp(keys[i].name, name, bytes) == 0) return i;
    return KEY_COUNT;
}

static enum option_result set(enum option_source source, size_t key, const char *value,
                              size_t bytes) {
    if (key == KEY_COUNT) return OPTION_UNKNOWN;
    if (source == OPTION_DHCP && !keys[key].from_dhcp) return OPTION_FORBIDDEN;
    if (option[key].source > source) return OPTION_WEAKER;
    /* A lease is renewed for ever: a value that fits takes the place of the one before. */
    bool fits = option[key].value != NULL && strlen(option[key].value) >= bytes;
    if (!fits) {
        if (bytes + 1 > sizeof text - text_used) return OPTION_NO_ROOM;
        option[key].value = text + text_used;
        text_used += bytes + 1;
    }
    memcpy(option[key].value, value, bytes);
    option[key].value[bytes] = 0;
    option[key].source = (uint8_t)source;
    return OPTION_OK;
}

enum option_result options_set(enum option_source source, const char *key, const char *value,
                               size_t bytes) {
    return set(source, find_key(key, strlen(key)), value, bytes);
}

uint32_t options_parse(enum option_source source, const char *from, size_t bytes, char separator,
                       void (*complain)(const char *word, size_t bytes)) {
    uint32_t wrong = 0;
    for (size_t at = 0; at < bytes && from[at] != 0;) {
        size_t end = at, equals = 0;
        while (end < bytes && from[end] != 0 && from[end] != separator) {
            if (from[end] == '=' && equals == 0) equals = end;
            end++;
        }
        if (end != at) {
            bool is_pair = equals > at;
            size_t key = is_pair ? find_key(from + at, equals - at) : KEY_COUNT;
            if (set(source, key, from + equals + 1, is_pair ? end - equals - 1 : 0) != OPTION_OK) {
                complain(from + at, end - at);
                wrong++;
            }
        }
        at = end + 1;
    }
    return wrong;
}

static void complain(const char *word, size_t bytes) {
    klog("options: ignored: %.*s", (int)bytes, word);
}

/* Multiboot loaders put the file's name in front. */
static const char *without_file_name(const char *line) {
    size_t word = 0;
    while (line[word] != 0 && line[word] != ' ') {
        if (line[word] == '=') return line;
        word++;
    }
    return line + word;
}

void options_init(void) {
    const char *line = handover.command_line;
    if (handover.kind == HANDOVER_MULTIBOOT) line = without_file_name(line);
    options_parse(OPTION_CONFIG_BLOCK, config_block.text, sizeof config_block.text, '\n', complain);
    options_parse(OPTION_COMMAND_LINE, line, strlen(line), ' ', complain);
}

const char *options_text(const char *key) {
    size_t index = find_key(key, strlen(key));
    return index == KEY_COUNT || option[index].source == 0 ? NULL : option[index].value;
}

bool options_is(const char *key, const char *value) {
    const char *is = options_text(key);
    return is != NULL && strcmp(is, value) == 0;
}

/* Decimal digits at *at; false when there is none, or more than fits 64 bits. */
static bool read_decimal(const char **at, uint64_t *value) {
    *value = 0;
    const char *start = *at;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (*value > (UINT64_MAX - digit) / 10) return false;
        *value = *value * 10 + digit;
    }
    return *at != start;
}

uint64_t options_number(const char *key, uint64_t otherwise) {
    const char *at = options_text(key);
    uint64_t value;
    if (at == NULL) return otherwise;
    bool right = read_decimal(&at, &value);
    uint32_t shift = *at == 'K' ? 10 : *at == 'M' ? 20 : *at == 'G' ? 30 : 0;
    if (shift != 0) at++;
    if (right && *at == 0 && value <= UINT64_MAX >> shift) return value << shift;
    klog("options: %s=%s is no number", key, options_text(key));
    return otherwise;
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool options_hex(const char *key, uint8_t *out, size_t bytes) {
    const char *value = options_text(key);
    if (value == NULL || strlen(value) != 2 * bytes) return false;
    for (size_t i = 0; i < bytes; i++) {
        int high = digit_of(value[2 * i]), low = digit_of(value[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool options_address(const char *key, uint8_t out[4]) {
    const char *at = options_text(key);
    if (at == NULL) return false;
    for (int i = 0; i < 4; i++) {
        uint64_t value;
        if (!read_decimal(&at, &value) || value > 255) return false;
        out[i] = (uint8_t)value;
        if (i < 3 && *at++ != '.') return false;
    }
    return *at == 0;
}
