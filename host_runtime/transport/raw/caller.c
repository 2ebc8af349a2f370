/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls one after the other, made by native code as the engine's are: `duckctl bench gap` stands
 * them beside the raw ping-pong, which is native too.
 */
#define _POSIX_C_SOURCE 200809L
#include "duckhost.h"

#include <duck/experts.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct duckgap_call {
    uint64_t round_trip_ns; /* from the submit to the sum */
    struct duckhost_timing timing;
};

DUCKHOST_EXPORT int duckgap_run(struct duckhost_fleet *fleet, const void *message, uint32_t bytes,
                                float *out, uint64_t count, struct duckgap_call *calls,
                                uint32_t call_count, struct duckhost_error *error);

/* `call_count` calls with this message, each answered by count float32 per duck, summed into `out`.
 * The first error ends it. */
int duckgap_run(struct duckhost_fleet *fleet, const void *message, uint32_t bytes, float *out,
                uint64_t count, struct duckgap_call *calls, uint32_t call_count,
                struct duckhost_error *error) {
    for (uint32_t i = 0; i < call_count; i++) {
        uint64_t ticket, begin = now_ns();
        int code = duckhost_submit(fleet, message, bytes, &ticket, error);
        if (code == DUCKHOST_OK)
            code = duckhost_wait_sum(fleet, ticket, DUCK_DTYPE_F32, out, count, &calls[i].timing,
                                     error);
        if (code != DUCKHOST_OK) return code;
        calls[i].round_trip_ns = now_ns() - begin;
    }
    return DUCKHOST_OK;
}
