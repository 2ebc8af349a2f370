/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight codes and the packed shard layout ("P32": 32-row column panels).
 *
 * Codes
 *   fp8   E4M3 as the checkpoint stores it: s eeee mmm, bias 7, subnormals, no infinities; 0x7F and
 *         0xFF are NaN and refused.
 *   fp9   s eeeee mmm: the top nine bits of an IEEE half, bias 15. Every finite E4M3 value is exact
 *         (all are normal halves). Infinities and NaN (eeeee = 31) are refused.
 *   fp7   s eee mmm, subnormals, no infinities or NaN: m units for eee = 0, (8 + m) 2^(eee-1) units
 *         above. The unit is folded into the block scale, so that the block's largest magnitude
 *         gets eee = 7: the lower exponents of FP8 blocks round to multiples of the unit.
 *   q4    integers -8..7, stored + 8, with a half-precision scale per row and 32 columns
 *   q6    integers -32..31, stored + 32, with the same scales
 *   A weight is code value * [row scale *] block scale; block scales are float32.
 *
 * Weights region of a duck = directory (4096 bytes) + one segment per MoE layer, in directory
 * order. Segment = expert_count records of record_bytes. Record of one expert = header (scales),
 * then panels in reading order:
 *
 *   header   float gate_scale[panels][hidden/128]      panels = rows / 32
 *            float up_scale[panels][hidden/128]
 *            float down_scale[hidden/128][groups]      groups: see below
 *            zero bytes up to a multiple of 64
 *   panels   for p in 0..panels-1: gate panel p, up panel p     32 rows x hidden columns each
 *            for n in 0..hidden/32-1: down panel n               32 output rows x `rows` columns
 *
 * Panel: column after column, 32 codes per column. In 8-bit codes row r = 8 v + l (v 0..3, l 0..7)
 * of a column is byte 4 l + (3 - v): little-endian 32-bit lane l holds rows l, 8+l, 16+l, 24+l from
 * its top byte down.
 *
 *        lane 0              lane 1        ...  lane 7
 *     byte 0  1  2  3     4  5  6  7           28 29 30 31
 *     row 24 16  8  0    25 17  9  1           31 23 15  7
 *
 * fp9 panels: per 8 columns 288 bytes = 32-byte bit plane (byte r, bit j = last mantissa bit of row
 * r, column j), then 8 x 32 bytes with the upper eight bits (s eeeee mm) of rows 0..31 in order.
 *
 * fp7 panels: per 8 columns 7 x 32 bytes in the byte order of 8-bit codes. Byte of column j < 7 =
 * code << 1 | bit j of the same row's code in column 7.
 *
 * q4 panels: per 32 columns 64 bytes of row scales (rows in order), then 4 x 128 bytes for 8
 * columns each: byte 32 i + 4 l + c has row 8 i + l, column c in its low half and column 4 + c in
 * its high half. q6 panels: the same for the low four bits of the codes, then 2 x 128 bytes for 16
 * columns each: byte 32 i + 4 l + c has the upper two bits of row 8 i + l, columns c, 4 + c, 8 + c,
 * 12 + c, from bit 0 up.
 *
 * Column groups of down panels: the slice's columns are the source's MoE intermediate rows
 * first_row .. first_row + rows - 1, and a source block spans 128 of them.
 * min(rows, 128 - first_row % 128) columns belong to group 0, each further group has 128 (the last
 * may be shorter); groups = number of source blocks that the slice touches.
 * Gate and up rows lie in panel-sized pieces of one block each because first_row is a multiple of
 * 32.
 */
#ifndef DUCK_FP9_H
#define DUCK_FP9_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DUCK_LAYOUT_VERSION 1u
#define DUCK_PANEL_ROWS 32u
#define DUCK_BLOCK 128u /* edge of a scale block */
#define DUCK_FP9_COLUMNS 8u
#define DUCK_FP9_GROUP_BYTES 288u /* 8 columns x 32 rows x 9 bits */
#define DUCK_FP7_GROUP_BYTES 224u /* 8 columns x 32 rows x 7 bits */
#define DUCK_RECORD_ALIGN 4096u   /* record_bytes is a multiple: O_DIRECT and pages */
#define DUCK_DIRECTORY_BYTES 4096u
#define DUCK_DIRECTORY_MAGIC 0x31445244u /* "DRD1" */
#define DUCK_LAYERS_MAX 256u

enum duck_format {
    DUCK_FORMAT_Q4 = 4,
    DUCK_FORMAT_Q6 = 6,
    DUCK_FORMAT_FP7 = 7,
    DUCK_FORMAT_FP8 = 8,
    DUCK_FORMAT_FP9 = 9
};

/* First bytes of the weights region; the kernel refuses a directory that does not add up. */
struct duck_directory {
    uint32_t magic;
    uint32_t layout_version;
    uint32_t format; /* enum duck_format */
    uint32_t hidden_size;
    uint32_t first_row; /* of this duck's slice, in MoE intermediate rows; a multiple of 32 */
    uint32_t rows;      /* of this duck's slice; a multiple of 32, never 0 */
    uint32_t expert_count;
    uint32_t layer_count;
    uint64_t record_bytes;
    uint64_t segment_bytes; /* expert_count * record_bytes */
    uint64_t region_bytes;  /* DUCK_DIRECTORY_BYTES + layer_count * segment_bytes */
    uint32_t moe_intermediate_size;
    uint32_t reserved[17];
    uint16_t layer[DUCK_LAYERS_MAX]; /* model layer index of each segment, ascending */
    uint8_t pad[DUCK_DIRECTORY_BYTES - 128 - 2 * DUCK_LAYERS_MAX];
};
static_assert(offsetof(struct duck_directory, layer) == 128, "directory");
static_assert(sizeof(struct duck_directory) == DUCK_DIRECTORY_BYTES, "directory fills its page");

/* 1 when an E4M3 code is finite. */
static inline int duck_e4m3_is_finite(uint8_t code) { return (code & 0x7F) != 0x7F; }

/* 1 when `format` is one of enum duck_format. */
static inline int duck_format_is_known(uint32_t format) {
    return format == DUCK_FORMAT_Q4 || (format >= DUCK_FORMAT_Q6 && format <= DUCK_FORMAT_FP9);
}

/* Number of source blocks that rows [first_row, first_row + rows) touch. */
static inline uint32_t duck_down_groups(uint32_t first_row, uint32_t rows) {
    return (first_row + rows - 1) / DUCK_BLOCK - first_row / DUCK_BLOCK + 1;
}

/* Bytes of the scales in front of a record's panels. */
static inline uint64_t duck_record_header_bytes(uint32_t hidden, uint32_t first_row,
                                                uint32_t rows) {
    uint64_t blocks = hidden / DUCK_BLOCK;
    uint64_t floats =
        2 * (rows / DUCK_PANEL_ROWS) * blocks + blocks * duck_down_groups(first_row, rows);
    return (4 * floats + 63) / 64 * 64;
}

/* Bytes of 32 columns of a panel: 32 x 32 codes, and for q4 and q6 their row scales. */
static inline uint32_t duck_chunk_bytes(uint32_t format) {
    uint32_t codes = 128u * format;
    return format <= DUCK_FORMAT_Q6 ? codes + 64u : codes;
}

/* Bytes of one panel of 32 rows x columns. */
static inline uint64_t duck_panel_bytes(uint32_t format, uint32_t columns) {
    return (uint64_t)(columns / 32) * duck_chunk_bytes(format);
}

/* Bytes of one expert's record, padded to DUCK_RECORD_ALIGN. */
static inline uint64_t duck_record_bytes(uint32_t format, uint32_t hidden, uint32_t first_row,
                                         uint32_t rows) {
    uint64_t panels = 2 * (rows / DUCK_PANEL_ROWS) * duck_panel_bytes(format, hidden) +
                      (hidden / DUCK_PANEL_ROWS) * duck_panel_bytes(format, rows);
    uint64_t bytes = duck_record_header_bytes(hidden, first_row, rows) + panels;
    return (bytes + DUCK_RECORD_ALIGN - 1) / DUCK_RECORD_ALIGN * DUCK_RECORD_ALIGN;
}

#endif
