/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the experts kernel: what its parts tell each other.
 *
 *   entry.c     a core's life: init, wait for calls, agree on completion
 *   calibrate.c chooses the fastest body when a session opens
 *   call.c      checks a call and groups its (token, place) pairs by expert
 *   experts.c   the two phases of a call: gate/up/SiLU, then down and the weighted sum
 *   element.c   element-wise arithmetic, one source for every body (same bits by construction)
 *   body_*.c    the inner products, one set per instruction set
 *
 * Arithmetic contract (docs/reference/shard-format.md): an inner product is, per block of up to 128
 * columns that share a scale, one fma chain in column order from 0; then
 * total = fma(block sum, scale, total) from 0 in block order. Bodies may carry weights and
 * activations multiplied by powers of two, because the limits on activations (element.c) keep every
 * such product and sum exact in float32's exponent range.
 */
#ifndef DUCK_KERNEL_H
#define DUCK_KERNEL_H

#include <stdbool.h>

#include "directory.h"
#include "text.h"
#include <duck/experts.h>
#include <duck/fp9.h>
#include <duck/kernel_abi.h>

#define DUCK_HIDDEN __attribute__((visibility("hidden")))

/* Inner products of `panels` neighbouring panels with `entries` activation rows. */
struct duck_run {
    const uint8_t *codes;    /* of the first panel */
    const uint8_t *next;     /* where this core reads next: prefetched towards the end */
    const float *scale;      /* scales of the first panel's row block */
    const float *pair_scale; /* not null: panels alternate between two matrices, each panel has a
                              * scale row of its own, and here the second matrix's begin */
    uint32_t panels;         /* at least 1 */
    uint32_t first_panel;    /* index of the first panel: scale rows change every 4 panels */
    uint32_t groups;         /* column groups, each with a scale of its own */
    uint32_t first_columns;  /* columns of group 0 */
    uint32_t columns;        /* of a panel; groups after the first have 128, the last the rest */
    uint32_t entries;
    uint32_t gemm_entries; /* from this count on, blocks are decoded to memory first */
    const float *x;        /* activation blocks: x + group * x_group_stride + x_row[entry] * 128 */
    uint64_t x_group_stride; /* in floats */
    const uint32_t *x_row;
    float *out; /* out[panel * out_panel_stride + out_row[entry] * out_stride + row] */
    uint64_t out_stride, out_panel_stride;
    const uint32_t *out_row; /* null: entry i goes to row i */
};

/* Scales of panel p of the run, one per group. */
static inline const float *duck_scale_row(const struct duck_run *run, uint32_t p) {
    if (run->pair_scale != NULL) {
        return (p % 2 == 0 ? run->scale : run->pair_scale) + p / 2 * run->groups;
    }
    return run->scale + ((run->first_panel + p) / 4 - run->first_panel / 4) * run->groups;
}

/* What bodies with x_scale 0 find in an activation block of 128 floats: per 32 columns integers,
 * the float that a step of 1 stands for, and their sum. */
struct duck_int8_block {
    int8_t x[DUCK_BLOCK];
    float scale[DUCK_BLOCK / 32];
    int32_t sum[DUCK_BLOCK / 32];
};
static_assert(sizeof(struct duck_int8_block) <= 4 * DUCK_BLOCK, "fits into a block of floats");

struct duck_body {
    const char *name;
    uint32_t format; /* enum duck_format */
    float x_scale; /* activations are multiplied by this power of two; 0: struct duck_int8_block */
    void (*run)(const struct duck_run *run);
    bool has_gemm; /* looks at duck_run.gemm_entries */
};

/* The bodies of this ELF; ends with a null name. The first of each format is the default. */
extern const struct duck_body duck_bodies[] DUCK_HIDDEN;

/* Shared by the cores, at the start of scratch; every word has a cache line of its own. */
struct duck_line {
    uint32_t word;
    uint8_t pad[60];
};
struct duck_shared {
    uint64_t read_sum; /* of a read call; closed by the last core */
    uint8_t pad[56];
    struct duck_line claimed[2];  /* next unit of each phase to be taken */
    struct duck_line arrived;     /* cores at the barrier */
    struct duck_line epoch;       /* barriers passed */
    struct duck_line finished;    /* cores that are done with the call */
    struct duck_line done_call;   /* number of the newest call that all cores are done with */
    struct duck_line bad_mxcsr;   /* 1 + core that could not keep its floating-point rules */
    struct duck_line chosen_body; /* what core 0 chose; 0 = not yet */
    struct duck_line chosen_gemm_entries;
};
static_assert(sizeof(struct duck_shared) <= 4096, "the first page of scratch");

/* One core's view of a session. */
struct duck_core {
    uint32_t index;
    const struct duck_kernel_context *context;
    const struct duck_directory *directory;
    const struct duck_body *body; /* the chosen one */
    uint32_t gemm_entries;
    struct duck_shared *shared;
};

/* A checked call and its plan. Entries are the used (token, place) pairs ordered by expert; group g
 * has entries group_first[g] .. group_first[g + 1] - 1, all for expert group_expert[g]. */
struct duck_job {
    const struct duck_experts_call *call;
    const struct duck_body *body;
    const uint16_t *expert;
    const float *weight;
    const uint8_t *activation;
    uint8_t *output;
    const uint8_t *segment; /* weights of the call's layer */
    uint32_t tokens, top_k, pairs, hidden;
    uint32_t output_bytes;
    uint32_t entry_count, group_count;
    uint32_t *entry_pair;  /* token * top_k + place */
    uint32_t *entry_token; /* token */
    uint32_t *group_expert;
    uint32_t *group_first;
    /* scratch */
    float *x;    /* [hidden / 128][tokens][128], this core's own or shared */
    float *h;    /* [groups][pairs][128], shared */
    float *sums; /* this core's own; phase 1: gate and up, [panels][2][entries][32], phase 2:
                  * [panels][pairs][32] */
};

/* Check the call in `slot` and fill in `job`; false with a text otherwise. */
bool duck_check_call(const struct duck_core *core, const struct duck_kernel_slot *slot,
                     struct duck_job *job, struct duck_text *text) DUCK_HIDDEN;
/* Group the job's pairs by expert. */
void duck_plan(struct duck_job *job) DUCK_HIDDEN;

/* The body with this number for the format, counted from 1; null when there is none. */
const struct duck_body *duck_find_body(uint32_t format, uint32_t number) DUCK_HIDDEN;

/* What calibration found: the number of the fastest body, every body's ticks for one token, and
 * duck_run.gemm_entries. */
#define DUCK_BODIES_MAX 4u
struct duck_choice {
    uint32_t body;
    uint32_t gemm_entries;
    uint64_t ticks[DUCK_BODIES_MAX];
};
void duck_calibrate(const struct duck_core *core, struct duck_choice *choice) DUCK_HIDDEN;

/* A call of struct duck_experts_read: checks, this core's part, and the result's bytes. */
bool duck_run_read(const struct duck_core *core, const struct duck_kernel_slot *slot,
                   uint32_t *output_bytes, struct duck_text *text) DUCK_HIDDEN;

/* This core's part of a call. False when the session stops meanwhile. */
bool duck_run_experts(const struct duck_core *core, struct duck_job *job) DUCK_HIDDEN;

/* All cores meet; false when the session stops meanwhile. */
bool duck_barrier(const struct duck_core *core) DUCK_HIDDEN;

/* Element-wise arithmetic (element.c). Neighbouring blocks of 128 activations to float32 blocks,
 * `stride` floats apart and multiplied by `factor`, a power of two. */
void duck_widen(const void *activation, uint8_t dtype, uint32_t blocks, float factor, float *x,
                uint64_t stride) DUCK_HIDDEN;
/* The same for E4M3 values with a float32 scale per block. */
void duck_widen_fp8(const uint8_t *in, const uint8_t *scales, uint32_t blocks, float factor,
                    float *x, uint64_t stride) DUCK_HIDDEN;
/* `count` is a multiple of 32. */
void duck_activate(const float *gate, const float *up, uint32_t count, float *h) DUCK_HIDDEN;
/* 32 values to `place` of an activation block of a body with this x_scale. */
void duck_place(const float *x, uint32_t place, float x_scale, float *block) DUCK_HIDDEN;
/* output[32] = sum over j in order of weight[j] * sums[j][32], used places only. */
void duck_combine(const float *weight, const uint16_t *expert, uint32_t top_k, const float *sums,
                  uint8_t dtype, void *output) DUCK_HIDDEN;

#endif
