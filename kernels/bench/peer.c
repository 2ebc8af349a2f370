/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "peer.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define THREADS_MAX 64u
#define ROWS_MAX 4096u
#define HIDDEN_MAX 32768u
#define Q8_BLOCK_BYTES 34u   /* half scale, 32 x int8 */
#define Q4_BLOCKS_BYTES 144u /* 8 rows: 8 half scales, 8 x 16 bytes */

typedef void (*dot_function)(int n, float *s, size_t bs, const void *x, size_t bx, const void *y,
                             size_t by, int nrc);
typedef void (*gemv_function)(int n, float *s, size_t bs, const void *x, const void *y, int nr,
                              int nc);
typedef void (*quantise_function)(const float *x, void *y, int64_t k);
typedef void (*init_function)(void);

struct duck_peer {
    dot_function dot_q8_0;
    gemv_function gemv_q4_0;
    quantise_function quantise_q8_0;
};

struct thread {
    const struct duck_peer *peer;
    const struct duck_peer_work *work;
    uint32_t index;
    uint32_t *ready;
    uint64_t begin_ns, end_ns;
    long preemptions;
    pthread_t handle;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A function of the library; POSIX lets object pointers carry it. */
static int find(void *library, const char *name, void *function, char text[128]) {
    void *found = dlsym(library, name);
    if (found == NULL) snprintf(text, 128, "the library has no function %s", name);
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

struct duck_peer *duck_peer_open(const char *path, char text[128]) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct duck_peer *peer = calloc(1, sizeof(*peer));
    init_function init;
    if (library == NULL || peer == NULL) {
        snprintf(text, 128, "%s", library == NULL ? dlerror() : "out of memory");
        free(peer);
        return NULL;
    }
    if (!find(library, "ggml_cpu_init", &init, text) ||
        !find(library, "ggml_vec_dot_q8_0_q8_0", &peer->dot_q8_0, text) ||
        !find(library, "ggml_gemv_q4_0_8x8_q8_0", &peer->gemv_q4_0, text) ||
        !find(library, "quantize_row_q8_0", &peer->quantise_q8_0, text)) {
        free(peer);
        return NULL;
    }
    init();
    text[0] = '\0';
    return peer;
}

static uint64_t matrix_bytes(uint32_t kind, uint32_t rows, uint32_t columns) {
    uint64_t blocks = (uint64_t)rows * columns / 32;
    return kind == DUCK_PEER_Q8_0 ? blocks * Q8_BLOCK_BYTES : blocks / 8 * Q4_BLOCKS_BYTES;
}

uint64_t duck_peer_expert_bytes(uint32_t kind, uint32_t hidden, uint32_t rows) {
    return 3 * matrix_bytes(kind, rows, hidden);
}

void duck_peer_fill(uint32_t kind, uint8_t *weights, uint64_t bytes) {
    uint64_t block = kind == DUCK_PEER_Q8_0 ? Q8_BLOCK_BYTES : Q4_BLOCKS_BYTES;
    uint64_t scales = kind == DUCK_PEER_Q8_0 ? 2 : 16;
    uint64_t state = 88172645463325252u;
    for (uint64_t i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint64_t at = i % block;
        /* 0x1400 is 2^-10 in half precision */
        weights[i] = at >= scales ? (uint8_t)(state >> 56) : at % 2 == 0 ? 0x00 : 0x14;
    }
}

static void multiply(const struct duck_peer *peer, const struct duck_peer_work *work,
                     const uint8_t *weights, uint32_t rows, uint32_t columns, const void *x,
                     float *out) {
    if (work->kind == DUCK_PEER_Q4_0_REPACKED) {
        peer->gemv_q4_0((int)columns, out, rows, weights, x, 1, (int)rows);
        return;
    }
    for (uint32_t r = 0; r < rows; r++) {
        peer->dot_q8_0((int)columns, out + r, 0,
                       weights + (uint64_t)r * (columns / 32) * Q8_BLOCK_BYTES, 0, x, 0, 1);
    }
}

static void run_expert(const struct duck_peer *peer, const struct duck_peer_work *work,
                       const uint8_t *weights, const void *x, float *y) {
    float gate[ROWS_MAX];
    float up[ROWS_MAX];
    uint8_t h[ROWS_MAX / 32 * Q8_BLOCK_BYTES];
    float down[HIDDEN_MAX];
    uint64_t bytes = matrix_bytes(work->kind, work->rows, work->hidden);
    multiply(peer, work, weights, work->rows, work->hidden, x, gate);
    multiply(peer, work, weights + bytes, work->rows, work->hidden, x, up);
    for (uint32_t r = 0; r < work->rows; r++) {
        gate[r] = gate[r] / (1.0f + expf(-gate[r])) * up[r];
    }
    peer->quantise_q8_0(gate, h, work->rows);
    multiply(peer, work, weights + 2 * bytes, work->hidden, work->rows, h, down);
    for (uint32_t i = 0; i < work->hidden; i++) y[i] += down[i];
}

static void *thread_main(void *argument) {
    struct thread *t = argument;
    const struct duck_peer_work *work = t->work;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(t->index, &cpus);
    pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    static _Thread_local float values[HIDDEN_MAX];
    static _Thread_local float y[HIDDEN_MAX];
    static _Thread_local uint8_t x[HIDDEN_MAX / 32 * Q8_BLOCK_BYTES];
    for (uint32_t i = 0; i < work->hidden; i++) {
        values[i] = (float)(int)(i * 37 % 101) / 50.0f - 1.0f;
        y[i] = 0.0f;
    }
    t->peer->quantise_q8_0(values, x, work->hidden);
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    __atomic_add_fetch(t->ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(t->ready, __ATOMIC_ACQUIRE) < work->threads) {
        __builtin_ia32_pause();
    }
    t->begin_ns = now_ns();
    for (uint32_t e = t->index; e < work->experts; e += work->threads) {
        run_expert(t->peer, work, work->weights + (work->first_expert + e) * work->record_bytes, x,
                   y);
    }
    t->end_ns = now_ns();
    getrusage(RUSAGE_THREAD, &after);
    t->preemptions = after.ru_nivcsw - before.ru_nivcsw;
    return NULL;
}

uint64_t duck_peer_run(const struct duck_peer *peer, const struct duck_peer_work *work) {
    struct thread thread[THREADS_MAX];
    uint32_t ready = 0;
    uint32_t started = 0;
    if (work->threads == 0 || work->threads > THREADS_MAX || work->rows > ROWS_MAX ||
        work->hidden > HIDDEN_MAX) {
        return 0;
    }
    for (; started < work->threads; started++) {
        thread[started] = (struct thread){peer, work, started, &ready, 0, 0, 0, 0};
        if (pthread_create(&thread[started].handle, NULL, thread_main, &thread[started]) != 0) {
            abort(); /* the others wait for it */
        }
    }
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
    long preemptions = 0;
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(thread[i].handle, NULL);
        begin = thread[i].begin_ns < begin ? thread[i].begin_ns : begin;
        end = thread[i].end_ns > end ? thread[i].end_ns : end;
        preemptions += thread[i].preemptions;
    }
    return preemptions == 0 ? end - begin : 0;
}
