/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulated ducks for benchmarks: a thread that polls the lanes' mailbox flags and answers each call
 * after a stated time. The ducks are one resource: calls of all lanes queue for it; the wire adds
 * latency, which calls do not queue for. Flags: host_runtime/ops/gpu/mailbox.py.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { LANES_MAX = 8, POSTED = 0, LAYER = 1, ANSWERED = 16, EVENTS_MAX = 1 << 16 };

struct echo_event {
    int64_t seen_ns, start_ns, end_ns, answered_ns; /* CLOCK_REALTIME */
    int32_t lane, layer;
};

/* The interface, called through ctypes (host_runtime/bench). */
struct echo;
struct echo *echo_start(int lane_count, int32_t **flags);
void echo_set(struct echo *echo, int64_t duck_ns, int64_t wire_ns);
int64_t echo_events(struct echo *echo, struct echo_event *out, int64_t most);
void echo_stop(struct echo *echo);

struct echo_lane {
    _Atomic int32_t *flags;
    int32_t answered, waiting;
    struct echo_event event;
};

struct echo {
    pthread_t thread;
    _Atomic int stop;
    _Atomic int64_t duck_ns, wire_ns, event_count;
    int lane_count;
    int64_t busy_until_ns;
    struct echo_lane lanes[LANES_MAX];
    struct echo_event events[EVENTS_MAX];
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Times are read after the call was seen: those that were set before it was posted. */
static void take(struct echo *echo, struct echo_lane *lane, int64_t now) {
    int64_t duck_ns = atomic_load(&echo->duck_ns);
    int64_t start = now + atomic_load(&echo->wire_ns) / 2;
    if (start < echo->busy_until_ns) {
        start = echo->busy_until_ns;
    }
    echo->busy_until_ns = start + duck_ns;
    lane->event.seen_ns = now;
    lane->event.start_ns = start;
    lane->event.end_ns = start + duck_ns;
    lane->event.layer = atomic_load_explicit(&lane->flags[LAYER], memory_order_relaxed);
    lane->waiting = 1;
}

static void answer(struct echo *echo, struct echo_lane *lane, int64_t now) {
    lane->waiting = 0;
    atomic_store_explicit(&lane->flags[ANSWERED], lane->answered, memory_order_release);
    lane->event.answered_ns = now;
    int64_t count = atomic_load(&echo->event_count);
    if (count < EVENTS_MAX) {
        echo->events[count] = lane->event;
        atomic_store(&echo->event_count, count + 1);
    }
}

static void *serve(void *argument) {
    struct echo *echo = argument;
    while (!atomic_load_explicit(&echo->stop, memory_order_relaxed)) {
        for (int i = 0; i < echo->lane_count; i++) {
            struct echo_lane *lane = &echo->lanes[i];
            int32_t posted = atomic_load_explicit(&lane->flags[POSTED], memory_order_acquire);
            if (!lane->waiting && posted != lane->answered) {
                lane->answered = posted;
                take(echo, lane, now_ns());
            }
            if (lane->waiting) {
                int64_t now = now_ns();
                if (now >= lane->event.end_ns + atomic_load(&echo->wire_ns) / 2) {
                    answer(echo, lane, now);
                }
            }
        }
    }
    return NULL;
}

/* Start answering `lane_count` mailboxes; NULL if that is not possible. */
struct echo *echo_start(int lane_count, int32_t **flags) {
    if (lane_count < 1 || lane_count > LANES_MAX) {
        return NULL;
    }
    struct echo *echo = calloc(1, sizeof *echo);
    if (echo == NULL) {
        return NULL;
    }
    echo->lane_count = lane_count;
    for (int i = 0; i < lane_count; i++) {
        echo->lanes[i].flags = (_Atomic int32_t *)flags[i];
        echo->lanes[i].answered = atomic_load(&echo->lanes[i].flags[ANSWERED]);
        echo->lanes[i].event.lane = i;
    }
    if (pthread_create(&echo->thread, NULL, serve, echo) != 0) {
        free(echo);
        return NULL;
    }
    return echo;
}

/* Time of each call on the ducks and on the wire, from now on; forgets recorded calls. */
void echo_set(struct echo *echo, int64_t duck_ns, int64_t wire_ns) {
    atomic_store(&echo->duck_ns, duck_ns);
    atomic_store(&echo->wire_ns, wire_ns);
    atomic_store(&echo->event_count, 0);
}

/* Copy up to `most` recorded calls; returns how many there are. */
int64_t echo_events(struct echo *echo, struct echo_event *out, int64_t most) {
    int64_t count = atomic_load(&echo->event_count);
    for (int64_t i = 0; i < count && i < most; i++) {
        out[i] = echo->events[i];
    }
    return count;
}

void echo_stop(struct echo *echo) {
    atomic_store(&echo->stop, 1);
    pthread_join(echo->thread, NULL);
    free(echo);
}
