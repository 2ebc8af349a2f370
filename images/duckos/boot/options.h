/* SPDX-License-Identifier: Apache-2.0
 *
 * Boot options: key=value. Three sources, and a stronger one wins: the command line (of whoever
 * started the image), the image's config block (written by `duckctl image build`), DHCP. DHCP may
 * never set what trust rests on: fleet_public.
 */
#ifndef DUCKOS_OPTIONS_H
#define DUCKOS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_source { OPTION_DHCP = 1, OPTION_CONFIG_BLOCK = 2, OPTION_COMMAND_LINE = 3 };

enum option_result {
    OPTION_OK = 0,
    OPTION_WEAKER = 1,    /* a stronger source has set it already */
    OPTION_UNKNOWN = 2,   /* no such key */
    OPTION_FORBIDDEN = 3, /* this source may not set it */
    OPTION_NO_ROOM = 4,
};

void options_init(void); /* reads the config block and the command line */

/* What the network learns. `bytes` of `value` (no zero needed). */
enum option_result options_set(enum option_source source, const char *key, const char *value,
                               size_t bytes);

const char *options_text(const char *key);                     /* NULL = not set */
bool options_is(const char *key, const char *value);           /* set to exactly this */
uint64_t options_number(const char *key, uint64_t otherwise);  /* decimal, K/M/G allowed */
bool options_hex(const char *key, uint8_t *out, size_t bytes); /* exactly 2 * bytes digits */
bool options_address(const char *key, uint8_t out[4]);         /* dotted IPv4 */

/* ---- pure, for options_init and the tests ---------------------------------------------------- */
/* Words of a command line, or lines of a config block: each key=value is set. Words without '=' and
 * unknown keys are counted and named through `complain`. */
uint32_t options_parse(enum option_source source, const char *text, size_t bytes, char separator,
                       void (*complain)(const char *word, size_t bytes));

#endif
