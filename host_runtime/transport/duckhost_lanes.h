/* SPDX-License-Identifier: Apache-2.0
 *
 * Expert calls of captured GPU steps, without an interpreter on the way: one thread per lane polls
 * the lane's mailbox in pinned memory, sends the call to the ducks and writes the answer.
 *
 *   lanes_open -> { lanes_begin -> (the card runs a step) -> lanes_end } ... -> lanes_close
 *
 * A call that fails is answered too (with zeros), so that the card never waits for ever; the rest
 * of that lane's calls in the step are then answered at once, other lanes go on. The threads sleep
 * while no step runs.
 */
#ifndef DUCKHOST_LANES_H
#define DUCKHOST_LANES_H

#include <duckhost.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DUCKHOST_LANES_MAX 8u
#define DUCKHOST_LANE_LAYERS_MAX 256u
#define DUCKHOST_LANE_CALLS_MAX 256u /* of one lane in one step: as many are remembered */

/* Words of duckhost_lane.flags (host_runtime/ops/mailbox_words.py). The card writes the layer, then
 * the number of a call; the answer is complete when the same number stands in ANSWERED. */
enum duckhost_lane_word {
    DUCKHOST_LANE_POSTED = 0,
    DUCKHOST_LANE_LAYER = 1,
    DUCKHOST_LANE_ANSWERED = 16
};

/* A mailbox: the caller's memory, valid until duckhost_lanes_close. */
struct duckhost_lane {
    int32_t *flags;         /* words of enum duckhost_lane_word */
    const uint16_t *expert; /* [top_k] */
    const float *weight;    /* [top_k] */
    const float *hidden;    /* [hidden_size] */
    float *result;          /* [hidden_size] */
};

struct duckhost_lane_shape {
    uint32_t hidden_size; /* a multiple of 128 */
    uint32_t top_k;
    uint32_t expert_count;
    uint32_t activation_dtype;                      /* enum duck_dtype, of the CALL message */
    uint32_t result_dtype;                          /* enum duck_dtype */
    uint32_t poll_policy;                           /* enum duck_poll_policy of lane threads */
    uint64_t layers[DUCKHOST_LANE_LAYERS_MAX / 64]; /* bit i: layer i has experts */
};

/* What happened in one lane between begin and end. */
struct duckhost_lane_outcome {
    uint32_t calls;
    uint32_t failed_layer; /* when error.code is not 0 */
    struct duckhost_error error;
};

/* One call, times of the host's monotonic clock in ns. */
struct duckhost_lane_call {
    uint32_t layer;
    uint32_t call;        /* number on the wire */
    uint64_t seen_ns;     /* the posted flag was seen */
    uint64_t sent_ns;     /* the transport had taken the call */
    uint64_t answered_ns; /* the answered flag was set */
    uint64_t total_ns;    /* of duckhost_timing */
    uint32_t kernel_ns;   /* of duckhost_timing */
    uint32_t session;     /* session << 32 | call was the ticket */
};

struct duckhost_lanes;

/* Starts a thread per lane. `fleet` must outlive every step, not these lanes. */
DUCKHOST_EXPORT int duckhost_lanes_open(struct duckhost_fleet *fleet,
                                        const struct duckhost_lane *lanes, uint32_t lane_count,
                                        const struct duckhost_lane_shape *shape,
                                        struct duckhost_lanes **out, struct duckhost_error *error);
/* A step begins: the threads wake and poll. */
DUCKHOST_EXPORT int duckhost_lanes_begin(struct duckhost_lanes *lanes,
                                         struct duckhost_error *error);
/* The card is done: waits until no call is under way, tells each lane's outcome. */
DUCKHOST_EXPORT int duckhost_lanes_end(struct duckhost_lanes *lanes,
                                       struct duckhost_lane_outcome *outcomes, uint32_t count,
                                       struct duckhost_error *error);
/* The calls of one lane in the last step, in order; *count is their number. */
DUCKHOST_EXPORT int duckhost_lanes_calls(struct duckhost_lanes *lanes, uint32_t lane,
                                         struct duckhost_lane_call *out, uint32_t count_max,
                                         uint32_t *count, struct duckhost_error *error);
/* Ends the threads, a step that runs too, and gives the memory back. */
DUCKHOST_EXPORT void duckhost_lanes_close(struct duckhost_lanes *lanes);

#ifdef __cplusplus
}
#endif

#endif
