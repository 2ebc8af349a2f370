/* SPDX-License-Identifier: Apache-2.0 */
#include "panic/symbols.h"

#include "memory/image.h"

#include <string.h>

extern const uint8_t symbols[], symbols_end[];

const char *symbol_find(const uint8_t *list, size_t bytes, uint32_t offset, uint32_t *start) {
    const char *found = NULL;
    for (size_t at = 0; at + sizeof offset < bytes;) {
        uint32_t its;
        memcpy(&its, list + at, sizeof its);
        if (its > offset) break;
        found = (const char *)list + at + sizeof its;
        *start = its;
        at += sizeof its + strlen(found) + 1;
    }
    return found;
}

const char *symbol_of(uint64_t address, uint64_t *inside) {
    uint32_t start = 0;
    if (address < (uint64_t)image_start || address >= (uint64_t)_text_end) return NULL;
    uint32_t offset = (uint32_t)(address - (uint64_t)image_start);
    const char *name = symbol_find(symbols, (size_t)(symbols_end - symbols), offset, &start);
    *inside = offset - start;
    return name;
}
