/* SPDX-License-Identifier: Apache-2.0
 *
 * One call on one core. Units of work are claimed from shared counters, so cores share unevenly
 * divisible work fairly, and what a core computes never depends on who computes the rest:
 *
 *   phase 1   unit = (expert, panel): gate and up of 32 rows, h = silu(gate) * up  -> shared h
 *   phase 2   unit = a run of down panels: all experts' parts of these output rows, kept apart per
 *             (token, place), then summed in place order -> the output
 *
 * A core claims its next unit before it starts on the current one, so that it knows where to
 * prefetch.
 */
#include "kernel.h"

#define PRIVATE_TOKENS_MAX 2u /* up to here each core prepares the activations for itself */

struct shape {
    uint32_t panels, blocks, groups, group_first;
    uint64_t header_bytes, gate_panel_bytes, down_panel_bytes;
};

static struct shape shape_of(const struct duck_directory *d) {
    uint32_t to_block_edge = DUCK_BLOCK - d->first_row % DUCK_BLOCK;
    struct shape s;
    s.panels = d->rows / DUCK_PANEL_ROWS;
    s.blocks = d->hidden_size / DUCK_BLOCK;
    s.groups = duck_down_groups(d->first_row, d->rows);
    s.group_first = d->rows < to_block_edge ? d->rows : to_block_edge;
    s.header_bytes = duck_record_header_bytes(d->hidden_size, d->first_row, d->rows);
    s.gate_panel_bytes = duck_panel_bytes(d->format, d->hidden_size);
    s.down_panel_bytes = duck_panel_bytes(d->format, d->rows);
    return s;
}

static const uint8_t *record_of(const struct duck_core *core, const struct duck_job *job,
                                uint32_t group) {
    return job->segment + job->group_expert[group] * core->directory->record_bytes;
}

static const uint8_t *gate_codes(const struct duck_core *core, const struct shape *s,
                                 const struct duck_job *job, uint32_t unit) {
    return record_of(core, job, unit / s->panels) + s->header_bytes +
           2 * (unit % s->panels) * s->gate_panel_bytes;
}

static const uint8_t *down_codes(const struct duck_core *core, const struct shape *s,
                                 const struct duck_job *job, uint32_t group, uint32_t panel) {
    return record_of(core, job, group) + s->header_bytes + 2 * s->panels * s->gate_panel_bytes +
           panel * s->down_panel_bytes;
}

static uint32_t claim(const struct duck_core *core, uint32_t phase) {
    return __atomic_fetch_add(&core->shared->claimed[phase].word, 1, __ATOMIC_RELAXED);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* One block of one token, as float32. */
static void widen_block(const struct duck_job *job, uint32_t token, uint32_t block, float *x) {
    uint8_t dtype = job->call->activation_dtype;
    uint64_t from = (uint64_t)token * job->hidden + block * DUCK_BLOCK;
    if (dtype == DUCK_DTYPE_FP8) {
        const uint8_t *scales = job->activation + (uint64_t)job->tokens * job->hidden;
        float scale;
        __builtin_memcpy(&scale, scales + from / DUCK_BLOCK * sizeof scale, sizeof scale);
        duck_widen_fp8(job->activation + from, scale, DUCK_BLOCK, x);
        return;
    }
    duck_widen(job->activation + from * (dtype == DUCK_DTYPE_BF16 ? 2 : 4), dtype, DUCK_BLOCK, x);
}

static void prepare_blocks(const struct duck_job *job, uint32_t begin, uint32_t end) {
    for (uint32_t b = begin; b < end; b++) {
        for (uint32_t t = 0; t < job->tokens; t++) {
            float *block = job->x + ((uint64_t)b * job->tokens + t) * DUCK_BLOCK;
            float x[DUCK_BLOCK];
            widen_block(job, t, b, x);
            for (uint32_t place = 0; place < DUCK_BLOCK; place += 32) {
                duck_place(x + place, place, job->body->x_scale, block);
            }
        }
    }
}

static bool prepare(const struct duck_core *core, const struct duck_job *job) {
    uint32_t blocks = job->hidden / DUCK_BLOCK;
    if (job->tokens <= PRIVATE_TOKENS_MAX) {
        prepare_blocks(job, 0, blocks);
        return true;
    }
    uint32_t cores = core->context->core_count;
    prepare_blocks(job, blocks * core->index / cores, blocks * (core->index + 1) / cores);
    return duck_barrier(core);
}

/* ---- phase 1 --------------------------------------------------------------------------------- */

/* Gate, up and h of 32 rows for up to DUCK_EXPERTS_CHUNK_TOKENS entries of one expert. */
static void gate_up_chunk(const struct duck_core *core, const struct shape *s,
                          const struct duck_job *job, uint32_t unit, uint32_t first, uint32_t count,
                          const uint8_t *next) {
    uint32_t panel = unit % s->panels;
    const float *scale = (const float *)record_of(core, job, unit / s->panels);
    struct duck_run run = {
        .codes = gate_codes(core, s, job, unit),
        .scale = scale + panel * s->blocks,
        .panels = 1,
        .groups = s->blocks,
        .first_columns = DUCK_BLOCK,
        .columns = job->hidden,
        .entries = count,
        .gemm_entries = core->gemm_entries,
        .x = job->x,
        .x_group_stride = (uint64_t)job->tokens * DUCK_BLOCK,
        .x_row = job->entry_token + first,
        .out = job->gate,
        .out_stride = DUCK_PANEL_ROWS,
    };
    run.next = run.codes + s->gate_panel_bytes;
    job->body->run(&run);
    run.codes = run.next;
    run.next = next;
    run.scale = scale + (s->panels + panel) * s->blocks;
    run.out = job->up;
    job->body->run(&run);
    /* Columns of the down projection that these rows are: group and place within it. */
    uint32_t row = panel * DUCK_PANEL_ROWS;
    uint32_t group = row < s->group_first ? 0 : 1 + (row - s->group_first) / DUCK_BLOCK;
    uint32_t place = row < s->group_first ? row : (row - s->group_first) % DUCK_BLOCK;
    float *blocks = job->h + (uint64_t)group * job->pairs * DUCK_BLOCK;
    for (uint32_t i = 0; i < count; i++) {
        float h[DUCK_PANEL_ROWS];
        duck_activate(job->gate + i * DUCK_PANEL_ROWS, job->up + i * DUCK_PANEL_ROWS,
                      DUCK_PANEL_ROWS, h);
        duck_place(h, place, job->body->x_scale,
                   blocks + (uint64_t)job->entry_pair[first + i] * DUCK_BLOCK);
    }
}

static void gate_up_unit(const struct duck_core *core, const struct shape *s,
                         const struct duck_job *job, uint32_t unit, const uint8_t *next) {
    uint32_t group = unit / s->panels;
    uint32_t end = job->group_first[group + 1];
    for (uint32_t at = job->group_first[group]; at < end; at += DUCK_EXPERTS_CHUNK_TOKENS) {
        uint32_t left = end - at;
        uint32_t count = left < DUCK_EXPERTS_CHUNK_TOKENS ? left : DUCK_EXPERTS_CHUNK_TOKENS;
        gate_up_chunk(core, s, job, unit, at, count, next);
    }
}

static void gate_up_phase(const struct duck_core *core, const struct shape *s,
                          const struct duck_job *job, const uint8_t *down) {
    uint32_t units = job->group_count * s->panels;
    uint32_t unit = claim(core, 0);
    while (unit < units) {
        uint32_t following = claim(core, 0);
        const uint8_t *next = following < units ? gate_codes(core, s, job, following) : down;
        gate_up_unit(core, s, job, unit, next);
        unit = following;
    }
}

/* ---- phase 2 --------------------------------------------------------------------------------- */

/* Panels of one phase-2 unit: about four units per core, with sums that fit the core's buffer. */
static uint32_t down_unit_panels(const struct duck_core *core, const struct duck_job *job) {
    uint32_t panels = job->hidden / DUCK_PANEL_ROWS;
    uint32_t cores = core->context->core_count;
    uint32_t wanted = cores == 1 ? panels : (panels + 4 * cores - 1) / (4 * cores);
    uint32_t fitting = DUCK_EXPERTS_SUM_FLOATS / DUCK_PANEL_ROWS / job->pairs;
    uint32_t count = wanted < fitting ? wanted : fitting;
    return count == 0 ? 1 : count;
}

/* y = sum in place order of weight * down, for the rows of `count` panels. */
static void combine(const struct duck_job *job, uint32_t panel, uint32_t count) {
    uint32_t rows = count * DUCK_PANEL_ROWS;
    uint8_t dtype = job->call->result_dtype;
    uint64_t value_bytes = dtype == DUCK_DTYPE_BF16 ? 2 : 4;
    for (uint32_t t = 0; t < job->tokens; t++) {
        for (uint32_t r = 0; r < rows; r += DUCK_BLOCK) {
            uint32_t part = rows - r < DUCK_BLOCK ? rows - r : DUCK_BLOCK;
            float y[DUCK_BLOCK];
            for (uint32_t i = 0; i < DUCK_BLOCK; i++) y[i] = 0.0f;
            for (uint32_t j = 0; j < job->top_k; j++) {
                uint32_t pair = t * job->top_k + j;
                if (job->expert[pair] == DUCK_EXPERT_NONE) continue;
                duck_add_weighted(job->weight[pair], job->sums + (uint64_t)pair * rows + r, part,
                                  y);
            }
            uint64_t at = (uint64_t)t * job->hidden + panel * DUCK_PANEL_ROWS + r;
            duck_store(y, dtype, part, job->output + at * value_bytes);
        }
    }
}

static void down_unit(const struct duck_core *core, const struct shape *s,
                      const struct duck_job *job, uint32_t panel, uint32_t count,
                      const uint8_t *next) {
    for (uint32_t g = 0; g < job->group_count; g++) {
        const float *scale = (const float *)record_of(core, job, g) + 2 * s->panels * s->blocks;
        uint32_t first = job->group_first[g];
        struct duck_run run = {
            .codes = down_codes(core, s, job, g, panel),
            .next = g + 1 < job->group_count ? down_codes(core, s, job, g + 1, panel) : next,
            .scale = scale + panel / 4 * s->groups,
            .panels = count,
            .first_panel = panel,
            .groups = s->groups,
            .first_columns = s->group_first,
            .columns = core->directory->rows,
            .entries = job->group_first[g + 1] - first,
            .gemm_entries = core->gemm_entries,
            .x = job->h,
            .x_group_stride = (uint64_t)job->pairs * DUCK_BLOCK,
            .x_row = job->entry_pair + first,
            .out = job->sums,
            .out_stride = (uint64_t)count * DUCK_PANEL_ROWS,
            .out_row = job->entry_pair + first,
        };
        job->body->run(&run);
    }
    combine(job, panel, count);
}

bool duck_run_experts(const struct duck_core *core, struct duck_job *job) {
    struct shape s = shape_of(core->directory);
    duck_plan(job);
    if (!prepare(core, job)) return false;
    uint32_t panels = job->hidden / DUCK_PANEL_ROWS;
    uint32_t unit_panels = down_unit_panels(core, job);
    uint32_t units = (panels + unit_panels - 1) / unit_panels;
    uint32_t unit = claim(core, 1);
    /* Where a core without a next unit prefetches: its own input, which is in the cache. */
    const uint8_t *nowhere = (const uint8_t *)job->x;
    bool has_experts = job->group_count != 0;
    const uint8_t *down =
        has_experts && unit < units ? down_codes(core, &s, job, 0, unit * unit_panels) : nowhere;
    gate_up_phase(core, &s, job, down);
    if (!duck_barrier(core)) return false;
    while (unit < units) {
        uint32_t following = claim(core, 1);
        uint32_t panel = unit * unit_panels;
        uint32_t count = panels - panel < unit_panels ? panels - panel : unit_panels;
        const uint8_t *next = has_experts && following < units
                                  ? down_codes(core, &s, job, 0, following * unit_panels)
                                  : nowhere;
        down_unit(core, &s, job, panel, count, next);
        unit = following;
    }
    return true;
}
