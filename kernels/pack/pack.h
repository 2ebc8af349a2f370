/* SPDX-License-Identifier: Apache-2.0
 *
 * libduckpack: puts expert weights into kernel order (fp9.h) on the host, and takes them out again.
 *
 * Every function is reentrant, keeps no state and allocates nothing; several threads may pack at
 * once. Functions return DUCK_PACK_OK or the reason of a refusal, and the report says where.
 */
#ifndef DUCK_PACK_H
#define DUCK_PACK_H

#include <stdint.h>

#include <duck/fp9.h>

#define DUCK_PACK_API __attribute__((visibility("default")))
#define DUCK_PACK_VERSION 1u
#define DUCK_PACK_TEXT_BYTES 192u

enum duck_pack_status {
    DUCK_PACK_OK = 0,
    DUCK_PACK_BAD_ARGUMENT = 1, /* text says which and what was expected */
    DUCK_PACK_NOT_FINITE = 2,   /* a NaN code, or a bf16 value that is NaN or infinite */
    DUCK_PACK_BAD_SCALE = 3     /* a block scale that is NaN, infinite, negative or above 2^60 */
};

enum duck_pack_source_type { DUCK_SOURCE_E4M3 = 1, DUCK_SOURCE_BF16 = 2 };
enum duck_pack_matrix_name { DUCK_MATRIX_GATE = 0, DUCK_MATRIX_UP = 1, DUCK_MATRIX_DOWN = 2 };

/* One whole source matrix, row-major: gate and up [moe_intermediate_size][hidden_size],
 * down [hidden_size][moe_intermediate_size]. */
struct duck_pack_matrix {
    const void *data;    /* E4M3 codes (1 byte) or bf16 (2 bytes) */
    uint64_t row_stride; /* elements from one row to the next */
    const float *scale;  /* [ceil(rows/128)][ceil(columns/128)]; bf16: from duck_pack_bf16_scales */
    uint64_t scale_stride; /* floats from one row of blocks to the next */
};

struct duck_pack_slice {
    uint32_t format; /* enum duck_format: what the record will hold */
    uint32_t source; /* enum duck_pack_source_type */
    uint32_t hidden_size;
    uint32_t moe_intermediate_size;
    uint32_t first_row; /* a multiple of 32 */
    uint32_t rows;      /* a multiple of 32, never 0 */
};

struct duck_pack_report {
    /* over the slice's weights, per matrix; against the source; 0 where packing is lossless */
    double squared_error[3];
    double squared_sum[3]; /* of the source; only filled where the packing is not lossless */
    uint32_t matrix;       /* enum duck_pack_matrix_name of the refused value */
    uint32_t row;          /* in the source matrix; for a scale, in the scale grid */
    uint32_t column;
    uint32_t value; /* the refused code, bf16 bits, or float32 bits of the scale */
    char text[DUCK_PACK_TEXT_BYTES];
};

/* DUCK_PACK_VERSION of the library that is loaded. */
DUCK_PACK_API uint32_t duck_pack_version(void);

/* 0 when `format` is none that this library packs, else record_bytes of fp9.h. */
DUCK_PACK_API uint64_t duck_pack_record_bytes(uint32_t format, uint32_t hidden_size,
                                              uint32_t first_row, uint32_t rows);

/* Block scales for a bf16 matrix, from the largest magnitude of each whole 128 x 128 block, so that
 * they do not depend on how ducks slice it. scale[ceil(rows/128)][ceil(columns/128)] is written. */
DUCK_PACK_API int duck_pack_bf16_scales(uint32_t format, const uint16_t *data, uint64_t row_stride,
                                        uint32_t rows, uint32_t columns, float *scale,
                                        struct duck_pack_report *report);

/* Pack one expert's slice; writes exactly duck_pack_record_bytes() bytes at `record` (any
 * alignment), padding included. `matrix` holds gate, up, down in that order. */
DUCK_PACK_API int duck_pack_record(const struct duck_pack_slice *slice,
                                   const struct duck_pack_matrix matrix[3], uint8_t *record,
                                   struct duck_pack_report *report);

/* The weights that a kernel sees in a record: gate[rows][hidden], up[rows][hidden],
 * down[hidden][rows], each code value * scale in float32. `slice->source` is not looked at. */
DUCK_PACK_API int duck_unpack_record(const struct duck_pack_slice *slice, const uint8_t *record,
                                     float *gate, float *up, float *down,
                                     struct duck_pack_report *report);

/* Directory of a weights region; `layer` holds layer_count ascending model layer numbers. */
DUCK_PACK_API int duck_pack_directory(const struct duck_pack_slice *slice, uint32_t expert_count,
                                      uint32_t layer_count, const uint16_t *layer,
                                      uint8_t directory[DUCK_DIRECTORY_BYTES],
                                      struct duck_pack_report *report);

/* The checks that the kernel makes when a session opens. */
DUCK_PACK_API int duck_pack_check_directory(const uint8_t *directory, uint64_t region_bytes,
                                            struct duck_pack_report *report);

#endif
