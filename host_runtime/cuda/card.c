/* SPDX-License-Identifier: Apache-2.0
 *
 * An emulated card for benchmarks: posts calls into lanes' mailboxes as captured steps do and waits
 * for the answers, lanes in turns. Who answers is what is measured. Flags:
 * host_runtime/ops/mailbox_words.py.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { POSTED = 0, LAYER = 1, ANSWERED = 16, LOOKS_BEFORE_YIELD = 64, LANES_MAX = 8 };

/* The interface, called through ctypes (host_runtime/bench). */
int card_run(int lane_count, int32_t **flags, const int32_t *layers, int calls, int64_t wait_ns_max,
             int64_t *latency_ns);

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int wait_for_answer(_Atomic int32_t *flags, int32_t number, int64_t give_up_ns) {
    for (int looks = 0; atomic_load_explicit(&flags[ANSWERED], memory_order_acquire) != number;
         looks++) {
        if (looks < LOOKS_BEFORE_YIELD) {
            continue;
        }
        if (now_ns() > give_up_ns) {
            return 0;
        }
        sched_yield();
    }
    return 1;
}

/* Post `calls` calls per lane, number i for layers[i]; a lane's next call follows its last answer.
 * latency_ns [calls][lanes]: from the post to the answer as this thread saw it. 0 = all answered,
 * -1 = one was not within wait_ns_max, -2 = wrong arguments. */
int card_run(int lane_count, int32_t **flags, const int32_t *layers, int calls, int64_t wait_ns_max,
             int64_t *latency_ns) {
    int64_t posted_ns[LANES_MAX];
    int32_t number[LANES_MAX];
    if (lane_count < 1 || lane_count > LANES_MAX) {
        return -2;
    }
    for (int call = 0; call <= calls; call++) {
        for (int lane = 0; lane < lane_count; lane++) {
            _Atomic int32_t *words = (_Atomic int32_t *)flags[lane];
            if (call > 0) {
                if (!wait_for_answer(words, number[lane], posted_ns[lane] + wait_ns_max)) {
                    return -1;
                }
                latency_ns[(call - 1) * lane_count + lane] = now_ns() - posted_ns[lane];
            }
            if (call < calls) {
                number[lane] = atomic_load(&words[POSTED]) + 1;
                posted_ns[lane] = now_ns();
                atomic_store_explicit(&words[LAYER], layers[call], memory_order_relaxed);
                atomic_store_explicit(&words[POSTED], number[lane], memory_order_release);
            }
        }
    }
    return 0;
}
