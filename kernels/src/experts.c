/* SPDX-License-Identifier: Apache-2.0
 *
 * One call on one core. Units of work are claimed from shared counters, so cores share unevenly
 * divisible work fairly, and what a core computes never depends on who computes the rest:
 *
 *   phase 1   unit = (expert, panels): gate and up of their rows, h = silu(gate) * up  -> shared h
 *   phase 2   unit = a run of down panels: all experts' parts of these output rows, kept apart per
 *             (token, place), then summed in place order -> the output
 *
 * A core claims its next unit before it starts on the current one, so that it knows where to
 * prefetch.
 */
#include "kernel.h"

#define PRIVATE_TOKENS_MAX 2u /* up to here each core prepares the activations for itself */
#define GATE_UP_ENTRIES 256u  /* tokens of one expert that go through gate and up at once */
#define GATE_UP_PANELS_MAX 4u
#define NEAR_SUM_FLOATS 32768u /* down sums of one unit: 128 KB, if a panel does not need more */
#define OUTPUT_ROWS_AHEAD 4u   /* result rows are far apart: nothing else fetches them in time */
static_assert(GATE_UP_ENTRIES * GATE_UP_PANELS_MAX * 2 * DUCK_PANEL_ROWS <= DUCK_EXPERTS_SUM_FLOATS,
              "gate and up of a unit fit the sums");

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

/* A unit of phase 1: neighbouring panels of one expert. */
struct gate_up_unit {
    uint32_t group, panel, panels;
};

static struct gate_up_unit gate_up_unit(const struct shape *s, uint32_t number, uint32_t width,
                                        uint32_t per_group) {
    struct gate_up_unit unit = {.group = number / per_group, .panel = number % per_group * width};
    unit.panels = s->panels - unit.panel < width ? s->panels - unit.panel : width;
    return unit;
}

static const uint8_t *gate_codes(const struct duck_core *core, const struct shape *s,
                                 const struct duck_job *job, const struct gate_up_unit *unit) {
    return record_of(core, job, unit->group) + s->header_bytes +
           2 * unit->panel * s->gate_panel_bytes;
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

/* Some blocks of one token as float32, multiplied by `factor`. */
static void widen_blocks(const struct duck_job *job, uint32_t token, uint32_t block,
                         uint32_t blocks, float factor, float *x, uint64_t stride) {
    uint8_t dtype = job->call->activation_dtype;
    uint64_t from = (uint64_t)token * job->hidden + block * DUCK_BLOCK;
    if (dtype == DUCK_DTYPE_FP8) {
        const uint8_t *scales = job->activation + (uint64_t)job->tokens * job->hidden;
        duck_widen_fp8(job->activation + from, scales + from / DUCK_BLOCK * sizeof(float), blocks,
                       factor, x, stride);
        return;
    }
    uint64_t value_bytes = dtype == DUCK_DTYPE_BF16 ? 2 : 4;
    duck_widen(job->activation + from * value_bytes, dtype, blocks, factor, x, stride);
}

static void prepare_blocks(const struct duck_job *job, uint32_t begin, uint32_t end) {
    float factor = job->body->x_scale;
    uint64_t stride = (uint64_t)job->tokens * DUCK_BLOCK;
    for (uint32_t t = 0; t < job->tokens; t++) { /* outermost: rows are read in order */
        float *block = job->x + begin * stride + (uint64_t)t * DUCK_BLOCK;
        if (factor != 0.0f) {
            widen_blocks(job, t, begin, end - begin, factor, block, stride);
            continue;
        }
        for (uint32_t b = begin; b < end; b++, block += stride) {
            float x[DUCK_BLOCK];
            widen_blocks(job, t, b, 1, 1.0f, x, 0);
            for (uint32_t place = 0; place < DUCK_BLOCK; place += 32) {
                duck_place(x + place, place, factor, block);
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

/* Gate, up and h of a unit's panels for up to GATE_UP_ENTRIES entries of one expert. */
static void gate_up_entries(const struct duck_core *core, const struct shape *s,
                            const struct duck_job *job, const struct gate_up_unit *unit,
                            uint32_t first, uint32_t count, const uint8_t *next) {
    const float *scale = (const float *)record_of(core, job, unit->group);
    struct duck_run run = {
        .codes = gate_codes(core, s, job, unit),
        .next = next,
        .scale = scale + unit->panel * s->blocks,
        .pair_scale = scale + (s->panels + unit->panel) * s->blocks,
        .panels = 2 * unit->panels,
        .groups = s->blocks,
        .first_columns = DUCK_BLOCK,
        .columns = job->hidden,
        .entries = count,
        .gemm_entries = core->gemm_entries,
        .x = job->x,
        .x_group_stride = (uint64_t)job->tokens * DUCK_BLOCK,
        .x_row = job->entry_token + first,
        .out = job->sums,
        .out_stride = DUCK_PANEL_ROWS,
        .out_panel_stride = (uint64_t)count * DUCK_PANEL_ROWS,
    };
    job->body->run(&run);
    for (uint32_t p = 0; p < unit->panels; p++) {
        /* Columns of the down projection that these rows are: group and place within it. */
        uint32_t row = (unit->panel + p) * DUCK_PANEL_ROWS;
        uint32_t group = row < s->group_first ? 0 : 1 + (row - s->group_first) / DUCK_BLOCK;
        uint32_t place = row < s->group_first ? row : (row - s->group_first) % DUCK_BLOCK;
        float *blocks = job->h + (uint64_t)group * job->pairs * DUCK_BLOCK;
        const float *gate = job->sums + 2 * p * run.out_panel_stride;
        for (uint32_t i = 0; i < count; i++, gate += DUCK_PANEL_ROWS) {
            float h[DUCK_PANEL_ROWS];
            duck_activate(gate, gate + run.out_panel_stride, DUCK_PANEL_ROWS, h);
            duck_place(h, place, job->body->x_scale,
                       blocks + (uint64_t)job->entry_pair[first + i] * DUCK_BLOCK);
        }
    }
}

/* Panels of one unit: one, as long as weights are read once per call anyway; for products of many
 * tokens several, which share the reading of the activations, but about four units per core. */
static uint32_t gate_up_panels(const struct duck_core *core, const struct shape *s,
                               const struct duck_job *job) {
    uint32_t cores = core->context->core_count;
    uint32_t share = cores == 1 ? s->panels : job->group_count * s->panels / (4 * cores);
    uint32_t most = s->panels < GATE_UP_PANELS_MAX ? s->panels : GATE_UP_PANELS_MAX;
    if (!job->body->has_gemm || job->entry_count < core->gemm_entries || share == 0) return 1;
    return share < most ? share : most;
}

static void gate_up_phase(const struct duck_core *core, const struct shape *s,
                          const struct duck_job *job, const uint8_t *down) {
    uint32_t width = gate_up_panels(core, s, job);
    uint32_t per_group = (s->panels + width - 1) / width;
    uint32_t units = job->group_count * per_group;
    uint32_t claimed = claim(core, 0);
    while (claimed < units) {
        struct gate_up_unit unit = gate_up_unit(s, claimed, width, per_group);
        claimed = claim(core, 0);
        struct gate_up_unit following = gate_up_unit(s, claimed, width, per_group);
        const uint8_t *next = claimed < units ? gate_codes(core, s, job, &following) : down;
        uint32_t end = job->group_first[unit.group + 1];
        for (uint32_t at = job->group_first[unit.group]; at < end; at += GATE_UP_ENTRIES) {
            uint32_t count = end - at < GATE_UP_ENTRIES ? end - at : GATE_UP_ENTRIES;
            gate_up_entries(core, s, job, &unit, at, count, next);
        }
    }
}

/* ---- phase 2 --------------------------------------------------------------------------------- */

/* Panels of one phase-2 unit: about four units per core, with sums that stay near the core. */
static uint32_t down_unit_panels(const struct duck_core *core, const struct duck_job *job) {
    uint32_t panels = job->hidden / DUCK_PANEL_ROWS;
    uint32_t cores = core->context->core_count;
    uint32_t wanted = cores == 1 ? panels : (panels + 4 * cores - 1) / (4 * cores);
    uint32_t fitting = NEAR_SUM_FLOATS / DUCK_PANEL_ROWS / job->pairs;
    uint32_t count = wanted < fitting ? wanted : fitting;
    return count == 0 ? 1 : count;
}

/* y = sum in place order of weight * down, for the rows of `count` panels. */
static void combine(const struct duck_job *job, uint32_t panel, uint32_t count) {
    uint8_t dtype = job->call->result_dtype;
    uint64_t value_bytes = dtype == DUCK_DTYPE_BF16 ? 2 : 4;
    uint64_t ahead = OUTPUT_ROWS_AHEAD * job->hidden * value_bytes;
    for (uint32_t t = 0; t < job->tokens; t++) {
        uint32_t pair = t * job->top_k;
        uint64_t at = (uint64_t)t * job->hidden + panel * DUCK_PANEL_ROWS;
        uint8_t *output = job->output + at * value_bytes;
        for (uint32_t p = 0; p < count; p++) {
            const float *sums = job->sums + ((uint64_t)p * job->pairs + pair) * DUCK_PANEL_ROWS;
            for (uint32_t line = 0; line < DUCK_PANEL_ROWS * value_bytes; line += 64) {
                __builtin_prefetch(output + ahead + line, 1);
            }
            duck_combine(job->weight + pair, job->expert + pair, job->top_k, sums, dtype, output);
            output += DUCK_PANEL_ROWS * value_bytes;
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
            .out_stride = DUCK_PANEL_ROWS,
            .out_panel_stride = (uint64_t)job->pairs * DUCK_PANEL_ROWS,
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
