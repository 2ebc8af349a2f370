/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

#include <emmintrin.h>
#include <math.h>
#include <string.h>

#include "../src/directory.h"
#include "tile.h"

#define SCALE_MAX 0x1p60f

uint32_t duck_pack_version(void) { return DUCK_PACK_VERSION; }

static const char *const matrix_names[3] = {"gate", "up", "down"};

static struct duck_text text_of(struct duck_pack_report *report) {
    report->text[0] = '\0';
    return (struct duck_text){report->text, sizeof(report->text), 0};
}

static int bad_argument(struct duck_pack_report *report, const char *message) {
    struct duck_text text = text_of(report);
    duck_text_append(&text, message);
    return DUCK_PACK_BAD_ARGUMENT;
}

/* Fill in where a refused value is and say so. */
static int refuse_value(struct duck_pack_report *report, int status, uint32_t matrix, uint32_t row,
                        uint32_t column, uint32_t value) {
    struct duck_text text = text_of(report);
    report->matrix = matrix;
    report->row = row;
    report->column = column;
    report->value = value;
    duck_text_append(&text, matrix_names[matrix]);
    duck_text_append(&text, status == DUCK_PACK_BAD_SCALE ? " scale at block row " : " row ");
    duck_text_number(&text, row);
    duck_text_append(&text, status == DUCK_PACK_BAD_SCALE ? ", block column " : ", column ");
    duck_text_number(&text, column);
    duck_text_append(&text, status == DUCK_PACK_BAD_SCALE ? " is not a finite number from 0 to 2^60"
                                                          : " is not finite");
    return status;
}

static bool check_slice(const struct duck_pack_slice *slice, struct duck_pack_report *report) {
    struct duck_text text = text_of(report);
    return duck_check_shape(slice->format, slice->hidden_size, slice->moe_intermediate_size,
                            slice->first_row, slice->rows, &text);
}

uint64_t duck_pack_record_bytes(uint32_t format, uint32_t hidden_size, uint32_t first_row,
                                uint32_t rows) {
    struct duck_pack_report report;
    struct duck_text text = text_of(&report);
    if (!duck_check_shape(format, hidden_size, UINT32_MAX, first_row, rows, &text)) return 0;
    return duck_record_bytes(format, hidden_size, first_row, rows);
}

/* ---- where things are in a record ------------------------------------------------------------ */

struct record_layout {
    uint32_t panels, blocks, groups, group_first;
    uint64_t up_scale, down_scale; /* in floats from the start */
    uint64_t header_bytes, gate_panel_bytes, down_panel_bytes;
};

static struct record_layout layout_of(const struct duck_pack_slice *s) {
    struct record_layout l;
    uint32_t to_block_edge = DUCK_BLOCK - s->first_row % DUCK_BLOCK;
    l.panels = s->rows / DUCK_PANEL_ROWS;
    l.blocks = s->hidden_size / DUCK_BLOCK;
    l.groups = duck_down_groups(s->first_row, s->rows);
    l.group_first = s->rows < to_block_edge ? s->rows : to_block_edge;
    l.up_scale = (uint64_t)l.panels * l.blocks;
    l.down_scale = 2 * l.up_scale;
    l.header_bytes = duck_record_header_bytes(s->hidden_size, s->first_row, s->rows);
    l.gate_panel_bytes = duck_panel_bytes(s->format, s->hidden_size);
    l.down_panel_bytes = duck_panel_bytes(s->format, s->rows);
    return l;
}

static uint64_t gate_panel_offset(const struct record_layout *l, uint32_t matrix, uint32_t panel) {
    return l->header_bytes + (2 * (uint64_t)panel + matrix) * l->gate_panel_bytes;
}

static uint64_t down_panel_offset(const struct record_layout *l, uint32_t panel) {
    return l->header_bytes + 2 * (uint64_t)l->panels * l->gate_panel_bytes +
           panel * l->down_panel_bytes;
}

/* Columns of down group g, and where it starts within the slice. */
static uint32_t group_columns(const struct duck_pack_slice *s, const struct record_layout *l,
                              uint32_t g, uint32_t *start) {
    *start = g == 0 ? 0 : l->group_first + (g - 1) * DUCK_BLOCK;
    if (g == 0) return l->group_first;
    uint32_t left = s->rows - *start;
    return left < DUCK_BLOCK ? left : DUCK_BLOCK;
}

/* ---- packing --------------------------------------------------------------------------------- */

struct packing {
    const struct duck_pack_slice *slice;
    const struct duck_pack_matrix *matrix;
    struct duck_pack_report *report;
    struct record_layout layout;
    uint8_t *record;
};

/* The first value of the tile that is refused, in reading order. */
static int refuse_tile(const struct packing *p, uint32_t matrix, uint32_t row, uint32_t column,
                       uint32_t columns) {
    const struct duck_pack_matrix *m = &p->matrix[matrix];
    for (uint32_t r = row; r < row + TILE_ROWS; r++) {
        for (uint32_t k = column; k < column + columns; k++) {
            uint64_t at = r * m->row_stride + k;
            uint32_t value = p->slice->source == DUCK_SOURCE_E4M3 ? ((const uint8_t *)m->data)[at]
                                                                  : ((const uint16_t *)m->data)[at];
            bool finite = p->slice->source == DUCK_SOURCE_E4M3
                              ? duck_e4m3_is_finite((uint8_t)value) != 0
                              : (value & 0x7F80u) != 0x7F80u;
            if (!finite) {
                return refuse_value(p->report, DUCK_PACK_NOT_FINITE, matrix, r, k, value);
            }
        }
    }
    return bad_argument(p->report, "the source changed while it was being packed");
}

/* The largest magnitude code of the whole source block around a tile, so that the fp7 unit does not
 * depend on how ducks slice the matrix. NaN codes elsewhere in the block don't count. */
static uint8_t block_code_max(const struct packing *p, uint32_t matrix, uint32_t row,
                              uint32_t column) {
    const struct duck_pack_matrix *m = &p->matrix[matrix];
    const struct duck_pack_slice *s = p->slice;
    uint32_t rows = matrix == DUCK_MATRIX_DOWN ? s->hidden_size : s->moe_intermediate_size;
    uint32_t columns = matrix == DUCK_MATRIX_DOWN ? s->moe_intermediate_size : s->hidden_size;
    uint32_t first_row = row / DUCK_BLOCK * DUCK_BLOCK;
    uint32_t first = column / DUCK_BLOCK * DUCK_BLOCK;
    uint32_t height = rows - first_row < DUCK_BLOCK ? rows - first_row : DUCK_BLOCK;
    uint32_t width = columns - first < DUCK_BLOCK ? columns - first : DUCK_BLOCK;
    uint8_t largest = 0;
    for (uint32_t r = 0; r < height; r++) {
        const uint8_t *code = (const uint8_t *)m->data + (first_row + r) * m->row_stride + first;
#pragma omp simd reduction(max : largest)
        for (uint32_t k = 0; k < width; k++) {
            uint8_t magnitude = code[k] & 0x7Fu;
            uint8_t finite = magnitude == 0x7F ? 0 : magnitude;
            largest = finite > largest ? finite : largest;
        }
    }
    return largest;
}

/* The scale that the record gets for a tile. */
static float record_scale(const struct packing *p, uint32_t matrix, uint32_t row, uint32_t column,
                          float source_scale) {
    if (p->slice->source == DUCK_SOURCE_BF16 || p->slice->format != DUCK_FORMAT_FP7) {
        return source_scale;
    }
    return source_scale * tile_fp7_unit(block_code_max(p, matrix, row, column));
}

static bool fill_tile(const struct packing *p, uint32_t matrix, const struct tile_source *source,
                      float scale, struct tile *tile) {
    if (!source->is_bf16 && format_is_lossless(p->slice->format)) {
        return tile_from_e4m3(tile, p->slice->format, source);
    }
    struct tile_error error = {0.0, 0.0};
    tile_values values;
    if (!tile_read(source, tile->columns, values)) return false;
    tile_quantise(tile, p->slice->format, values, scale, &error);
    p->report->squared_error[matrix] += error.squared_error;
    p->report->squared_sum[matrix] += error.squared_sum;
    return true;
}

/* tile_store through a buffer: a record is not read again before megabytes of others are written,
 * so its lines need neither be fetched nor stay in the caches. */
static void store_past_cache(struct tile *tile, uint32_t format, uint8_t *panel) {
    _Alignas(64) uint8_t packed[TILE_PACKED_BYTES_MAX];
    tile_store(tile, format, packed);
    uint64_t bytes = duck_panel_bytes(format, tile->columns);
    if ((uintptr_t)panel % 16 != 0) {
        memcpy(panel, packed, bytes);
        return;
    }
    for (uint64_t at = 0; at < bytes; at += 16) {
        _mm_stream_si128((__m128i *)(panel + at), _mm_load_si128((const __m128i *)(packed + at)));
    }
}

/* Pack rows row..row+31, columns column..column+columns-1 of a source matrix to `panel`, and their
 * scale to float `scale_at` of the record. All of them lie in one source block. */
static int pack_tile(const struct packing *p, uint32_t matrix, uint32_t row, uint32_t column,
                     uint32_t columns, uint64_t scale_at, uint8_t *panel) {
    const struct duck_pack_matrix *m = &p->matrix[matrix];
    bool is_bf16 = p->slice->source == DUCK_SOURCE_BF16;
    uint64_t first = (row * m->row_stride + column) * (is_bf16 ? 2 : 1);
    struct tile_source source = {(const uint8_t *)m->data + first, m->row_stride, is_bf16, 0.0f};
    source.scale = m->scale[row / DUCK_BLOCK * m->scale_stride + column / DUCK_BLOCK];
    if (!(source.scale >= 0.0f && source.scale <= SCALE_MAX)) {
        uint32_t bits;
        memcpy(&bits, &source.scale, sizeof(bits));
        return refuse_value(p->report, DUCK_PACK_BAD_SCALE, matrix, row / DUCK_BLOCK,
                            column / DUCK_BLOCK, bits);
    }
    float scale = record_scale(p, matrix, row, column, source.scale);
    memcpy(p->record + 4 * scale_at, &scale, 4);
    struct tile tile;
    tile.columns = columns;
    if (!fill_tile(p, matrix, &source, scale, &tile)) {
        return refuse_tile(p, matrix, row, column, columns);
    }
    store_past_cache(&tile, p->slice->format, panel);
    return DUCK_PACK_OK;
}

static int pack_gate_or_up(const struct packing *p, uint32_t matrix, uint32_t panel) {
    const struct record_layout *l = &p->layout;
    uint8_t *out = p->record + gate_panel_offset(l, matrix, panel);
    uint64_t scale_at = matrix * l->up_scale + (uint64_t)panel * l->blocks;
    uint32_t row = p->slice->first_row + panel * DUCK_PANEL_ROWS;
    for (uint32_t b = 0; b < l->blocks; b++) {
        int status = pack_tile(p, matrix, row, b * DUCK_BLOCK, DUCK_BLOCK, scale_at + b, out);
        if (status != DUCK_PACK_OK) return status;
        out += duck_panel_bytes(p->slice->format, DUCK_BLOCK);
    }
    return DUCK_PACK_OK;
}

static int pack_down(const struct packing *p, uint32_t panel) {
    const struct record_layout *l = &p->layout;
    uint8_t *out = p->record + down_panel_offset(l, panel);
    uint32_t row = panel * DUCK_PANEL_ROWS;
    uint64_t scale_at = l->down_scale + (uint64_t)(row / DUCK_BLOCK) * l->groups;
    for (uint32_t g = 0; g < l->groups; g++) {
        uint32_t start;
        uint32_t columns = group_columns(p->slice, l, g, &start);
        int status = pack_tile(p, DUCK_MATRIX_DOWN, row, p->slice->first_row + start, columns,
                               scale_at + g, out);
        if (status != DUCK_PACK_OK) return status;
        out += duck_panel_bytes(p->slice->format, columns);
    }
    return DUCK_PACK_OK;
}

static void zero_gaps(const struct packing *p) {
    const struct record_layout *l = &p->layout;
    const struct duck_pack_slice *s = p->slice;
    uint64_t floats = l->down_scale + (uint64_t)l->blocks * l->groups;
    uint64_t end = down_panel_offset(l, s->hidden_size / DUCK_PANEL_ROWS);
    uint64_t bytes = duck_record_bytes(s->format, s->hidden_size, s->first_row, s->rows);
    memset(p->record + 4 * floats, 0, l->header_bytes - 4 * floats);
    memset(p->record + end, 0, bytes - end);
}

int duck_pack_record(const struct duck_pack_slice *slice, const struct duck_pack_matrix matrix[3],
                     uint8_t *record, struct duck_pack_report *report) {
    *report = (struct duck_pack_report){.matrix = 0};
    if (!check_slice(slice, report)) return DUCK_PACK_BAD_ARGUMENT;
    if (slice->source != DUCK_SOURCE_E4M3 && slice->source != DUCK_SOURCE_BF16) {
        return bad_argument(report, "source type is neither E4M3 nor bf16");
    }
    struct packing p = {slice, matrix, report, layout_of(slice), record};
    for (uint32_t panel = 0; panel < p.layout.panels; panel++) {
        for (uint32_t m = DUCK_MATRIX_GATE; m <= DUCK_MATRIX_UP; m++) {
            int status = pack_gate_or_up(&p, m, panel);
            if (status != DUCK_PACK_OK) return status;
        }
    }
    for (uint32_t panel = 0; panel < slice->hidden_size / DUCK_PANEL_ROWS; panel++) {
        int status = pack_down(&p, panel);
        if (status != DUCK_PACK_OK) return status;
    }
    _mm_sfence(); /* the record is whole before anyone is told of it */
    zero_gaps(&p);
    return DUCK_PACK_OK;
}

/* ---- block scales of bf16 matrices ----------------------------------------------------------- */

static uint32_t largest_bits(const uint16_t *data, uint64_t stride, uint32_t rows,
                             uint32_t columns) {
    uint16_t largest = 0;
    for (uint32_t r = 0; r < rows; r++) {
        const uint16_t *row = data + r * stride;
#pragma omp simd reduction(max : largest)
        for (uint32_t k = 0; k < columns; k++) {
            uint16_t magnitude = row[k] & 0x7FFFu;
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    return (uint32_t)largest << 16;
}

int duck_pack_bf16_scales(uint32_t format, const uint16_t *data, uint64_t row_stride, uint32_t rows,
                          uint32_t columns, float *scale, struct duck_pack_report *report) {
    *report = (struct duck_pack_report){.matrix = 0};
    if (!duck_format_is_known(format)) return bad_argument(report, "unknown format");
    uint32_t block_columns = (columns + DUCK_BLOCK - 1) / DUCK_BLOCK;
    for (uint32_t r = 0; r < rows; r += DUCK_BLOCK) {
        for (uint32_t k = 0; k < columns; k += DUCK_BLOCK) {
            uint32_t height = rows - r < DUCK_BLOCK ? rows - r : DUCK_BLOCK;
            uint32_t width = columns - k < DUCK_BLOCK ? columns - k : DUCK_BLOCK;
            uint32_t bits = largest_bits(data + r * row_stride + k, row_stride, height, width);
            float amax;
            memcpy(&amax, &bits, sizeof(amax));
            /* A block with NaN or infinity gets a scale too: packing names the value's place. */
            amax = bits < 0x7F800000u ? amax : 1.0f;
            scale[(uint64_t)(r / DUCK_BLOCK) * block_columns + k / DUCK_BLOCK] =
                tile_scale(format, amax);
        }
    }
    return DUCK_PACK_OK;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static float scale_of(const uint8_t *record, uint64_t at) {
    float scale;
    memcpy(&scale, record + 4 * at, sizeof(scale));
    return scale;
}

static void unpack_gate_or_up(const struct duck_pack_slice *s, const struct record_layout *l,
                              const uint8_t *record, uint32_t matrix, float *out) {
    for (uint32_t panel = 0; panel < l->panels; panel++) {
        const uint8_t *codes = record + gate_panel_offset(l, matrix, panel);
        uint64_t scale_at = matrix * l->up_scale + (uint64_t)panel * l->blocks;
        for (uint32_t b = 0; b < l->blocks; b++) {
            uint64_t first = (uint64_t)panel * DUCK_PANEL_ROWS * s->hidden_size + b * DUCK_BLOCK;
            tile_unpack(codes, s->format, DUCK_BLOCK, scale_of(record, scale_at + b), out + first,
                        s->hidden_size);
            codes += duck_panel_bytes(s->format, DUCK_BLOCK);
        }
    }
}

static void unpack_down(const struct duck_pack_slice *s, const struct record_layout *l,
                        const uint8_t *record, float *out) {
    for (uint32_t panel = 0; panel < s->hidden_size / DUCK_PANEL_ROWS; panel++) {
        const uint8_t *codes = record + down_panel_offset(l, panel);
        uint64_t scale_at = l->down_scale + (uint64_t)(panel / 4) * l->groups;
        for (uint32_t g = 0; g < l->groups; g++) {
            uint32_t start;
            uint32_t columns = group_columns(s, l, g, &start);
            tile_unpack(codes, s->format, columns, scale_of(record, scale_at + g),
                        out + (uint64_t)panel * DUCK_PANEL_ROWS * s->rows + start, s->rows);
            codes += duck_panel_bytes(s->format, columns);
        }
    }
}

int duck_unpack_record(const struct duck_pack_slice *slice, const uint8_t *record, float *gate,
                       float *up, float *down, struct duck_pack_report *report) {
    *report = (struct duck_pack_report){.matrix = 0};
    if (!check_slice(slice, report)) return DUCK_PACK_BAD_ARGUMENT;
    struct record_layout layout = layout_of(slice);
    unpack_gate_or_up(slice, &layout, record, DUCK_MATRIX_GATE, gate);
    unpack_gate_or_up(slice, &layout, record, DUCK_MATRIX_UP, up);
    unpack_down(slice, &layout, record, down);
    return DUCK_PACK_OK;
}

/* ---- directory ------------------------------------------------------------------------------- */

int duck_pack_directory(const struct duck_pack_slice *slice, uint32_t expert_count,
                        uint32_t layer_count, const uint16_t *layer,
                        uint8_t directory[DUCK_DIRECTORY_BYTES], struct duck_pack_report *report) {
    *report = (struct duck_pack_report){.matrix = 0};
    if (!check_slice(slice, report)) return DUCK_PACK_BAD_ARGUMENT;
    if (layer_count == 0 || layer_count > DUCK_LAYERS_MAX) {
        return bad_argument(report, "layer_count is not between 1 and 256");
    }
    struct duck_directory d = {
        .magic = DUCK_DIRECTORY_MAGIC,
        .layout_version = DUCK_LAYOUT_VERSION,
        .format = slice->format,
        .hidden_size = slice->hidden_size,
        .first_row = slice->first_row,
        .rows = slice->rows,
        .expert_count = expert_count,
        .layer_count = layer_count,
        .moe_intermediate_size = slice->moe_intermediate_size,
    };
    d.record_bytes =
        duck_record_bytes(slice->format, slice->hidden_size, slice->first_row, slice->rows);
    d.segment_bytes = d.record_bytes * expert_count;
    d.region_bytes = DUCK_DIRECTORY_BYTES + d.segment_bytes * layer_count;
    memcpy(d.layer, layer, layer_count * sizeof(layer[0]));
    memcpy(directory, &d, sizeof(d));
    return duck_pack_check_directory(directory, d.region_bytes, report);
}

int duck_pack_check_directory(const uint8_t *directory, uint64_t region_bytes,
                              struct duck_pack_report *report) {
    *report = (struct duck_pack_report){.matrix = 0};
    struct duck_text text = text_of(report);
    struct duck_directory d = {.magic = 0};
    if (region_bytes >= sizeof(d)) memcpy(&d, directory, sizeof(d));
    return duck_check_directory(&d, region_bytes, &text) ? DUCK_PACK_OK : DUCK_PACK_BAD_ARGUMENT;
}
