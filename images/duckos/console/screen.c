/* SPDX-License-Identifier: Apache-2.0 */
#include "console/screen.h"

#include "memory/memory.h"

static struct {
    volatile uint16_t *cell; /* character and colour; NULL = no screen */
    uint32_t columns, rows, row;
} screen;

#define TEXT_GREY 0x0700u

void screen_init(const struct handover_screen *from) {
    if (from->address == 0 || !from->text) return;
    screen.columns = from->width;
    screen.rows = from->height;
    screen.cell = memory_map_device(from->address, (uint64_t)from->pitch_bytes * from->height);
}

void screen_off(void) { screen.cell = NULL; }

static void clear_row(uint32_t row) {
    for (uint32_t i = 0; i < screen.columns; i++)
        screen.cell[row * screen.columns + i] = TEXT_GREY | ' ';
}

void screen_line(const char *line, size_t bytes) {
    if (screen.cell == NULL) return;
    for (size_t at = 0; at == 0 || at < bytes; at += screen.columns) {
        clear_row(screen.row);
        for (uint32_t i = 0; i < screen.columns && at + i < bytes; i++)
            screen.cell[screen.row * screen.columns + i] =
                (uint16_t)(TEXT_GREY | (uint8_t)line[at + i]);
        screen.row = (screen.row + 1) % screen.rows;
        clear_row(screen.row);
    }
}
