/* SPDX-License-Identifier: Apache-2.0 */
#include "console/screen.h"

#include "console/font.h"
#include "memory/memory.h"

/* Each pixel of a letter is 2 x 2 on the screen, in a cell with some air. */
#define SCALE 2u
#define CELL_WIDTH ((FONT_COLUMNS + 1) * SCALE)
#define CELL_HEIGHT ((FONT_ROWS + 2) * SCALE)
#define LETTER_PIXEL 0x00c0c0c0u /* the same in RGB and BGR */
#define TEXT_GREY 0x0700u
#define COLUMNS_MAX 512u

static struct {
    volatile uint8_t *memory; /* NULL = no screen */
    uint32_t columns, rows, row, pitch_bytes;
    bool text;
} screen;

void screen_init(const struct handover_screen *from) {
    if (from->address == 0 || from->width == 0 || from->height == 0) return;
    screen.text = from->text;
    screen.columns = from->text ? from->width : from->width / CELL_WIDTH;
    screen.rows = from->text ? from->height : from->height / CELL_HEIGHT;
    screen.pitch_bytes = from->pitch_bytes;
    if (screen.columns == 0 || screen.rows == 0 || screen.columns > COLUMNS_MAX) return;
    screen.memory =
        memory_map_frame_buffer(from->address, (uint64_t)from->pitch_bytes * from->height);
}

void screen_off(void) { screen.memory = NULL; }

static void put_text(uint32_t column, char letter) {
    volatile uint8_t *at = screen.memory + screen.row * screen.pitch_bytes;
    ((volatile uint16_t *)at)[column] = (uint16_t)(TEXT_GREY | (uint8_t)letter);
}

static void put_pixels(uint32_t column, char letter) {
    uint32_t index = (uint8_t)letter - FONT_FIRST;
    for (uint32_t y = 0; y < CELL_HEIGHT; y++) {
        uint32_t row = y / SCALE;
        uint32_t bits = row < FONT_ROWS && index < FONT_COUNT ? font[index][row] : 0;
        volatile uint8_t *line =
            screen.memory + (uint64_t)(screen.row * CELL_HEIGHT + y) * screen.pitch_bytes;
        for (uint32_t x = 0; x < CELL_WIDTH; x++) {
            bool lit =
                x / SCALE < FONT_COLUMNS && (bits >> (FONT_COLUMNS - 1 - x / SCALE) & 1) != 0;
            ((volatile uint32_t *)line)[column * CELL_WIDTH + x] = lit ? LETTER_PIXEL : 0;
        }
    }
}

static void put(uint32_t column, char letter) {
    if (screen.text)
        put_text(column, letter);
    else
        put_pixels(column, letter);
}

static void write_row(const char *text, size_t bytes) {
    for (uint32_t i = 0; i < screen.columns; i++) put(i, i < bytes ? text[i] : ' ');
}

void screen_line(const char *line, size_t bytes) {
    if (screen.memory == NULL) return;
    for (size_t at = 0; at == 0 || at < bytes; at += screen.columns) {
        write_row(line + at, bytes - at);
        screen.row = (screen.row + 1) % screen.rows;
    }
    write_row("", 0); /* the gap shows where the newest line ends */
}
