/* SPDX-License-Identifier: Apache-2.0 */
#include "console/format.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct output {
    char *text;
    size_t room, bytes;
};

struct conversion {
    bool left, zeros, is_long, has_precision;
    uint32_t width, precision;
};

#define DIGITS_MAX 20u
#define FIELD_MAX 256u /* of a width or precision */

static void put(struct output *out, char c) {
    if (out->bytes + 1 < out->room) out->text[out->bytes++] = c;
}

static void put_many(struct output *out, char c, size_t count) {
    while (count-- != 0) put(out, c);
}

/* `text` in its field; a sign stays in front of padding zeros. */
static void put_field(struct output *out, const struct conversion *conversion, const char *text,
                      size_t bytes) {
    size_t padding = bytes < conversion->width ? conversion->width - bytes : 0;
    bool zeros = conversion->zeros && !conversion->left;
    if (zeros && bytes != 0 && *text == '-') {
        put(out, *text++);
        bytes--;
    }
    if (!conversion->left) put_many(out, zeros ? '0' : ' ', padding);
    for (size_t i = 0; i < bytes; i++) put(out, text[i]);
    if (conversion->left) put_many(out, ' ', padding);
}

static void put_number(struct output *out, const struct conversion *conversion, uint64_t value,
                       uint32_t base, const char *prefix) {
    char text[DIGITS_MAX + 3];
    size_t at = sizeof text;
    do {
        text[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    for (size_t i = strlen(prefix); i != 0; i--) text[--at] = prefix[i - 1];
    put_field(out, conversion, text + at, sizeof text - at);
}

static void put_text(struct output *out, const struct conversion *conversion, const char *text) {
    if (text == NULL) text = "(null)";
    size_t bytes = 0;
    while ((!conversion->has_precision || bytes < conversion->precision) && text[bytes] != 0)
        bytes++;
    struct conversion plain = *conversion;
    plain.zeros = false;
    put_field(out, &plain, text, bytes);
}

static const char *read_count(const char *format, va_list *arguments, uint32_t *count) {
    *count = 0;
    if (*format == '*') {
        int value = va_arg(*arguments, int);
        *count = value < 0 ? 0 : (uint32_t)value;
        format++;
    }
    for (; *format >= '0' && *format <= '9'; format++)
        *count = *count * 10 + (uint32_t)(*format - '0');
    if (*count > FIELD_MAX) *count = FIELD_MAX;
    return format;
}

static const char *read_conversion(const char *format, va_list *arguments,
                                   struct conversion *conversion) {
    memset(conversion, 0, sizeof *conversion);
    for (; *format == '-' || *format == '0'; format++)
        *(*format == '-' ? &conversion->left : &conversion->zeros) = true;
    format = read_count(format, arguments, &conversion->width);
    if (*format == '.') {
        conversion->has_precision = true;
        format = read_count(format + 1, arguments, &conversion->precision);
    }
    for (; *format == 'l' || *format == 'z'; format++) conversion->is_long = true;
    return format;
}

/* What follows a '%'; returns where the format goes on. */
static const char *put_conversion(struct output *out, const char *format, va_list *arguments) {
    struct conversion conversion;
    const char *start = format;
    format = read_conversion(format, arguments, &conversion);
    switch (*format) {
    case 'd': {
        int64_t value = conversion.is_long ? va_arg(*arguments, int64_t) : va_arg(*arguments, int);
        uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
        put_number(out, &conversion, size, 10, value < 0 ? "-" : "");
        break;
    }
    case 'u':
    case 'x': {
        uint64_t value =
            conversion.is_long ? va_arg(*arguments, uint64_t) : va_arg(*arguments, uint32_t);
        put_number(out, &conversion, value, *format == 'x' ? 16 : 10, "");
        break;
    }
    case 'p': put_number(out, &conversion, (uint64_t)va_arg(*arguments, void *), 16, "0x"); break;
    case 's': put_text(out, &conversion, va_arg(*arguments, const char *)); break;
    case 'c': put(out, (char)va_arg(*arguments, int)); break;
    case '%': put(out, '%'); break;
    default: put(out, '%'); return start; /* not ours: as it stands */
    }
    return format + 1;
}

size_t format_list(char *out, size_t room, const char *format, va_list arguments) {
    struct output output = {out, room, 0};
    va_list copy;
    va_copy(copy, arguments);
    while (*format != 0) {
        if (*format == '%')
            format = put_conversion(&output, format + 1, &copy);
        else
            put(&output, *format++);
    }
    va_end(copy);
    if (room != 0) out[output.bytes] = 0;
    return output.bytes;
}

size_t format_text(char *out, size_t room, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t bytes = format_list(out, room, format, arguments);
    va_end(arguments);
    return bytes;
}
