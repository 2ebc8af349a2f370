/* SPDX-License-Identifier: Apache-2.0
 *
 * Which body is fastest on this CPU, and from how many tokens on it pays to decode to memory first.
 * Core 0 measures on the first record's codes when a session opens (about a millisecond); every
 * choice gives the same bits, so a wrong one costs time only.
 */
#include <x86intrin.h>

#include "kernel.h"

#define COLUMNS_MAX 1024u /* 32 KB of codes: near the core, as prefetched data is */
#define TRIALS 7u         /* the fastest counts: others were disturbed */

/* Ticks of the fastest of TRIALS runs. */
static uint64_t measure(const struct duck_body *body, struct duck_run *run) {
    uint64_t best = UINT64_MAX;
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        uint64_t begin = __rdtsc();
        body->run(run);
        uint64_t ticks = __rdtsc() - begin;
        best = ticks < best ? ticks : best;
    }
    return best;
}

/* A run over the first columns of the first gate panel; all activations are 1. */
static struct duck_run trial_run(const struct duck_core *core, const struct duck_body *body) {
    const struct duck_directory *d = core->directory;
    const uint8_t *record = core->context->weights + DUCK_DIRECTORY_BYTES;
    uint32_t columns = d->hidden_size < COLUMNS_MAX ? d->hidden_size : COLUMNS_MAX;
    float *x = (float *)(core->context->scratch + sizeof(struct duck_shared));
    float ones[32];
    for (uint32_t i = 0; i < 32; i++) ones[i] = 1.0f;
    for (uint32_t place = 0; place < DUCK_BLOCK; place += 32) {
        duck_place(ones, place, body->x_scale, x);
    }
    struct duck_run run = {
        .codes = record + duck_record_header_bytes(d->hidden_size, d->first_row, d->rows),
        .scale = (const float *)record,
        .panels = 1,
        .groups = columns / DUCK_BLOCK,
        .first_columns = DUCK_BLOCK,
        .columns = columns,
        .x = x,
    };
    run.next = run.codes;
    return run;
}

static uint32_t choose_body(const struct duck_core *core, const uint32_t *rows, float *out,
                            uint64_t ticks[DUCK_BODIES_MAX]) {
    uint32_t chosen = 1;
    const struct duck_body *body;
    for (uint32_t n = 1; n <= DUCK_BODIES_MAX; n++) {
        body = duck_find_body(core->directory->format, n);
        if (body == NULL) break;
        struct duck_run run = trial_run(core, body);
        run.entries = 1;
        run.x_row = rows;
        run.out = out;
        ticks[n - 1] = measure(body, &run);
        if (ticks[n - 1] < ticks[chosen - 1]) chosen = n;
    }
    return chosen;
}

/* The smallest measured count from which on decoding to memory is faster. */
static uint32_t choose_gemm_entries(const struct duck_core *core, const struct duck_body *body,
                                    const uint32_t *rows, float *out) {
    static const uint32_t counts[] = {8, 12, 18, 24, 36, 48};
    for (uint32_t i = 0; body->has_gemm && i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct duck_run run = trial_run(core, body);
        run.entries = counts[i];
        run.x_row = rows;
        run.out = out;
        run.out_stride = DUCK_PANEL_ROWS;
        run.gemm_entries = counts[i] + 1;
        uint64_t direct = measure(body, &run);
        run.gemm_entries = counts[i];
        if (measure(body, &run) < direct) return counts[i];
    }
    return counts[sizeof(counts) / sizeof(counts[0]) - 1] + 1;
}

void duck_calibrate(const struct duck_core *core, struct duck_choice *choice) {
    uint32_t rows[64] = {0}; /* all entries use the same activations */
    float out[48 * DUCK_PANEL_ROWS];
    choice->body = choose_body(core, rows, out, choice->ticks);
    const struct duck_body *body = duck_find_body(core->directory->format, choice->body);
    choice->gemm_entries = choose_gemm_entries(core, body, rows, out);
}
