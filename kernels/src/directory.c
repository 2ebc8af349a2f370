/* SPDX-License-Identifier: Apache-2.0 */
#include "directory.h"

#include <duck/experts.h>

static bool refuse(struct duck_text *text, const char *name, uint64_t found, const char *expected) {
    duck_text_mismatch(text, name, found, expected);
    return false;
}

static bool refuse_number(struct duck_text *text, const char *name, uint64_t found,
                          uint64_t expected) {
    duck_text_mismatch(text, name, found, "");
    duck_text_number(text, expected);
    return false;
}

bool duck_check_shape(uint32_t format, uint32_t hidden, uint32_t moe_intermediate_size,
                      uint32_t first_row, uint32_t rows, struct duck_text *text) {
    if (!duck_format_is_known(format)) {
        return refuse(text, "format", format, "one of enum duck_format");
    }
    if (hidden == 0 || hidden > DUCK_HIDDEN_MAX || hidden % DUCK_BLOCK != 0) {
        return refuse(text, "hidden_size", hidden, "a multiple of 128 up to 32768");
    }
    if (first_row % DUCK_PANEL_ROWS != 0 || first_row > DUCK_ROWS_MAX) {
        return refuse(text, "first_row", first_row, "a multiple of 32 up to 32768");
    }
    if (rows == 0 || rows % DUCK_PANEL_ROWS != 0 || rows > DUCK_ROWS_MAX) {
        return refuse(text, "rows", rows, "a multiple of 32 from 32 to 32768");
    }
    if (moe_intermediate_size < first_row + rows) {
        return refuse_number(text, "moe_intermediate_size", moe_intermediate_size,
                             first_row + rows);
    }
    return true;
}

static bool check_layers(const struct duck_directory *d, struct duck_text *text) {
    if (d->layer_count == 0 || d->layer_count > DUCK_LAYERS_MAX) {
        return refuse(text, "layer_count", d->layer_count, "1 to 256");
    }
    for (uint32_t i = 1; i < d->layer_count; i++) {
        if (d->layer[i] <= d->layer[i - 1]) {
            return refuse(text, "layer", d->layer[i], "more than the layer before it");
        }
    }
    for (uint32_t i = d->layer_count; i < DUCK_LAYERS_MAX; i++) {
        if (d->layer[i] != 0) return refuse(text, "unused layer", d->layer[i], "0");
    }
    return true;
}

static bool check_reserved(const struct duck_directory *d, struct duck_text *text) {
    uint32_t bits = 0;
    for (size_t i = 0; i < sizeof(d->reserved) / sizeof(d->reserved[0]); i++) {
        bits |= d->reserved[i];
    }
    for (size_t i = 0; i < sizeof(d->pad); i++) bits |= d->pad[i];
    return bits == 0 || refuse(text, "reserved part of the directory", bits, "0");
}

static bool check_sizes(const struct duck_directory *d, uint64_t region_bytes,
                        struct duck_text *text) {
    uint64_t record = duck_record_bytes(d->format, d->hidden_size, d->first_row, d->rows);
    uint64_t segment = record * d->expert_count;
    uint64_t region = DUCK_DIRECTORY_BYTES + segment * d->layer_count;
    if (d->record_bytes != record) {
        return refuse_number(text, "record_bytes", d->record_bytes, record);
    }
    if (d->segment_bytes != segment) {
        return refuse_number(text, "segment_bytes", d->segment_bytes, segment);
    }
    if (d->region_bytes != region) {
        return refuse_number(text, "region_bytes", d->region_bytes, region);
    }
    if (region_bytes < region) {
        return refuse_number(text, "size of the weights region", region_bytes, region);
    }
    return true;
}

bool duck_check_directory(const struct duck_directory *d, uint64_t region_bytes,
                          struct duck_text *text) {
    if (region_bytes < DUCK_DIRECTORY_BYTES) {
        return refuse(text, "size of the weights region", region_bytes, "at least 4096");
    }
    if (d->magic != DUCK_DIRECTORY_MAGIC) {
        return refuse_number(text, "magic", d->magic, DUCK_DIRECTORY_MAGIC);
    }
    if (d->layout_version != DUCK_LAYOUT_VERSION) {
        return refuse_number(text, "layout_version", d->layout_version, DUCK_LAYOUT_VERSION);
    }
    if (d->expert_count == 0 || d->expert_count >= DUCK_EXPERT_NONE) {
        return refuse(text, "expert_count", d->expert_count, "1 to 65534");
    }
    return duck_check_shape(d->format, d->hidden_size, d->moe_intermediate_size, d->first_row,
                            d->rows, text) &&
           check_layers(d, text) && check_reserved(d, text) && check_sizes(d, region_bytes, text);
}

int duck_find_layer(const struct duck_directory *d, uint32_t layer) {
    uint32_t low = 0;
    uint32_t high = d->layer_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (d->layer[middle] < layer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < d->layer_count && d->layer[low] == layer ? (int)low : -1;
}
