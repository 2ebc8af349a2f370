/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "harness.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#define PAGE 4096u
#define SPINS_PER_WAIT 256u
#define CALL_ALIGN 64u

typedef void (*kernel_entry)(uint32_t core, const struct duck_kernel_context *context);

struct image {
    uint8_t *base;
    uint64_t bytes;
    kernel_entry entry;
};

struct core_start {
    struct duck_harness *harness;
    uint32_t index;
    int thread_id;
    pthread_t thread;
};

struct duck_harness {
    struct image image;
    struct duck_harness_options options;
    struct duck_kernel_context context;
    struct duck_kernel_mailbox *mailbox;
    uint8_t *input, *output; /* guarded */
    uint64_t completed_ns;
    uint32_t started;
    struct core_start core[DUCK_KERNEL_CORES_MAX];
};

static uint64_t up_to(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

/* ---- memory ---------------------------------------------------------------------------------- */

void *duck_harness_guarded(uint64_t bytes, uint64_t tail) {
    uint64_t inside = up_to(bytes + tail, PAGE);
    uint8_t *base = mmap(NULL, inside + 2 * PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    madvise(base, inside + 2 * PAGE, MADV_HUGEPAGE);
    mprotect(base, PAGE, PROT_NONE);
    mprotect(base + PAGE + inside, PAGE, PROT_NONE);
    return base + PAGE + inside - bytes - tail;
}

void duck_harness_release(void *memory, uint64_t bytes, uint64_t tail) {
    uint64_t inside = up_to(bytes + tail, PAGE);
    if (memory != NULL) munmap((uint8_t *)memory + bytes + tail - inside - PAGE, inside + 2 * PAGE);
}

/* ---- the ELF --------------------------------------------------------------------------------- */

static bool read_file(const char *path, uint8_t **data, uint64_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0) return false;
    bool fine = fstat(fd, &about) == 0 && about.st_size > 0;
    *bytes = fine ? (uint64_t)about.st_size : 0;
    *data = fine ? malloc(*bytes) : NULL;
    fine = *data != NULL && read(fd, *data, *bytes) == (ssize_t)*bytes;
    close(fd);
    return fine;
}

static void relocate(struct image *image, const Elf64_Dyn *dynamic) {
    uint64_t table = 0;
    uint64_t bytes = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_RELA) table = dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_RELASZ) bytes = dynamic->d_un.d_val;
    }
    const Elf64_Rela *rela = (const Elf64_Rela *)(image->base + table);
    for (uint64_t i = 0; i < bytes / sizeof(*rela); i++) {
        uint64_t value = (uint64_t)(uintptr_t)image->base + (uint64_t)rela[i].r_addend;
        memcpy(image->base + rela[i].r_offset, &value, sizeof(value));
    }
}

static void protect(const struct image *image, const Elf64_Phdr *segment) {
    int flags = ((segment->p_flags & PF_R) != 0 ? PROT_READ : 0) |
                ((segment->p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                ((segment->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
    uint64_t first = segment->p_vaddr / PAGE * PAGE;
    mprotect(image->base + first, up_to(segment->p_vaddr + segment->p_memsz, PAGE) - first, flags);
}

/* The harness trusts the file: it is one that the build just made. The duck checks everything. */
static bool load_elf(const char *path, struct image *image) {
    uint8_t *file;
    uint64_t bytes;
    if (!read_file(path, &file, &bytes)) return false;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Phdr *segment = (const Elf64_Phdr *)(file + header->e_phoff);
    image->bytes = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        uint64_t end = up_to(segment[i].p_vaddr + segment[i].p_memsz, PAGE);
        if (segment[i].p_type == PT_LOAD && end > image->bytes) image->bytes = end;
    }
    image->base =
        mmap(NULL, image->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image->base == MAP_FAILED) {
        free(file);
        return false;
    }
    for (int i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type != PT_LOAD) continue;
        memcpy(image->base + segment[i].p_vaddr, file + segment[i].p_offset, segment[i].p_filesz);
    }
    for (int i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type != PT_DYNAMIC) continue;
        relocate(image, (const Elf64_Dyn *)(image->base + segment[i].p_vaddr));
    }
    for (int i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type == PT_LOAD) protect(image, &segment[i]);
    }
    uintptr_t entry = (uintptr_t)(image->base + header->e_entry);
    memcpy(&image->entry, &entry, sizeof(entry));
    free(file);
    return true;
}

/* ---- what a duck does for a kernel ----------------------------------------------------------- */

static long futex(const uint32_t *word, int operation, uint32_t value,
                  const struct timespec *limit) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, limit, NULL, 0);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void harness_wait(const struct duck_kernel_context *context, const uint32_t *word,
                         uint32_t seen) {
    const struct duck_harness *harness = context->runtime;
    if (harness->options.spin != 0) {
        for (uint32_t i = 0; i < SPINS_PER_WAIT && __atomic_load_n(word, __ATOMIC_ACQUIRE) == seen;
             i++) {
            _mm_pause();
        }
        return;
    }
    struct timespec limit = {.tv_nsec = 10000000}; /* a stop is noticed at least this often */
    futex(word, FUTEX_WAIT, seen, &limit);
}

static void harness_wake(const struct duck_kernel_context *context, const uint32_t *word) {
    const struct duck_harness *harness = context->runtime;
    if (harness->options.spin == 0) futex(word, FUTEX_WAKE, INT32_MAX, NULL);
}

static void harness_complete(const struct duck_kernel_context *context, uint32_t call_number) {
    struct duck_harness *harness = context->runtime;
    harness->completed_ns = now_ns();
    __atomic_store_n(&harness->mailbox->call_completed, call_number, __ATOMIC_RELEASE);
    futex(&harness->mailbox->call_completed, FUTEX_WAKE, 1, NULL);
}

static void *core_main(void *argument) {
    struct core_start *start = argument;
    struct duck_harness *harness = start->harness;
    __atomic_store_n(&start->thread_id, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    if (harness->options.pin != 0) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(start->index, &cpus);
        pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    }
    _mm_setcsr(harness->options.mxcsr != 0 ? harness->options.mxcsr : 0x1F80u);
    harness->image.entry(start->index, &harness->context);
    return NULL;
}

/* ---- interface ------------------------------------------------------------------------------- */

static bool take_memory(struct duck_harness *h) {
    const struct duck_harness_options *o = &h->options;
    h->mailbox = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    h->context.scratch = duck_harness_guarded(up_to(o->scratch_bytes, PAGE), 0);
    h->input = duck_harness_guarded(up_to(o->input_bytes_max, CALL_ALIGN), 0);
    h->output = duck_harness_guarded(up_to(o->output_bytes_max, CALL_ALIGN), 0);
    return h->mailbox != MAP_FAILED && h->context.scratch != NULL && h->input != NULL &&
           h->output != NULL;
}

static void fill_context(struct duck_harness *h, const uint8_t *weights, uint64_t weights_bytes) {
    struct duck_kernel_context *c = &h->context;
    uint8_t *low = h->input < h->output ? h->input : h->output;
    c->abi_version = DUCK_KERNEL_ABI_VERSION;
    c->core_count = h->options.core_count;
    c->run_mode = h->options.one_shot != 0 ? DUCK_KERNEL_ONE_SHOT : DUCK_KERNEL_PERSISTENT;
    c->mailbox = h->mailbox;
    c->weights = weights;
    c->weights_bytes = weights_bytes;
    c->calls = low;
    c->calls_bytes = UINT64_MAX / 2; /* the guards say more exactly where the buffers end */
    c->scratch_bytes = h->options.scratch_bytes;
    c->wait = harness_wait;
    c->wake = harness_wake;
    c->complete = harness_complete;
    c->runtime = h;
    h->mailbox->init_status = DUCK_KERNEL_INIT_PENDING;
}

static void free_harness(struct duck_harness *h) {
    const struct duck_harness_options *o = &h->options;
    duck_harness_release(h->context.scratch, up_to(o->scratch_bytes, PAGE), 0);
    duck_harness_release(h->input, up_to(o->input_bytes_max, CALL_ALIGN), 0);
    duck_harness_release(h->output, up_to(o->output_bytes_max, CALL_ALIGN), 0);
    if (h->mailbox != NULL && h->mailbox != MAP_FAILED) munmap(h->mailbox, PAGE);
    if (h->image.base != NULL && h->image.base != MAP_FAILED) {
        munmap(h->image.base, h->image.bytes);
    }
    free(h);
}

static bool start_cores(struct duck_harness *h) {
    for (uint32_t i = 0; i < h->options.core_count; i++) {
        h->core[i] = (struct core_start){.harness = h, .index = i};
        if (pthread_create(&h->core[i].thread, NULL, core_main, &h->core[i]) != 0) return false;
        h->started++;
    }
    return true;
}

struct duck_harness *duck_harness_open(const char *elf_path,
                                       const struct duck_harness_options *options,
                                       const uint8_t *weights, uint64_t weights_bytes,
                                       char text[124]) {
    struct duck_harness *h = calloc(1, sizeof(*h));
    strcpy(text, "out of memory");
    if (h == NULL) return NULL;
    h->options = *options;
    if (options->core_count == 0 || options->core_count > DUCK_KERNEL_CORES_MAX) {
        strcpy(text, "core_count is not between 1 and 64");
        free_harness(h);
        return NULL;
    }
    if (!load_elf(elf_path, &h->image)) {
        strcpy(text, "the kernel file cannot be read");
        free_harness(h);
        return NULL;
    }
    if (!take_memory(h)) {
        free_harness(h);
        return NULL;
    }
    fill_context(h, weights, weights_bytes);
    if (!start_cores(h)) {
        strcpy(text, "a thread cannot be started");
        duck_harness_close(h);
        return NULL;
    }
    int32_t status;
    while ((status = __atomic_load_n(&h->mailbox->init_status, __ATOMIC_ACQUIRE)) ==
           DUCK_KERNEL_INIT_PENDING) {
        sched_yield();
    }
    memcpy(text, h->mailbox->init_text, sizeof(h->mailbox->init_text));
    if (status == 0) return h;
    duck_harness_close(h);
    return NULL;
}

int32_t duck_harness_call(struct duck_harness *h, const uint8_t *input, uint32_t input_bytes,
                          uint8_t *output, uint32_t output_bytes_max, uint32_t *output_bytes,
                          char text[92], uint64_t *kernel_ns) {
    uint32_t number = h->mailbox->call_published + 1;
    uint8_t *in =
        h->input + up_to(h->options.input_bytes_max, CALL_ALIGN) - up_to(input_bytes, CALL_ALIGN);
    uint8_t *out = h->output + up_to(h->options.output_bytes_max, CALL_ALIGN) -
                   up_to(output_bytes_max, CALL_ALIGN);
    struct duck_kernel_slot *slot = &h->mailbox->slot[number % DUCK_KERNEL_SLOTS];
    memcpy(in, input, input_bytes);
    memset(out, 0xFF, output_bytes_max);
    *slot = (struct duck_kernel_slot){
        .call_number = number,
        .input_bytes = input_bytes,
        .input_offset = (uint64_t)(in - h->context.calls),
        .output_offset = (uint64_t)(out - h->context.calls),
        .output_bytes_max = output_bytes_max,
    };
    uint64_t begin_ns = now_ns();
    __atomic_store_n(&h->mailbox->call_published, number, __ATOMIC_RELEASE);
    harness_wake(&h->context, &h->mailbox->call_published);
    uint32_t completed;
    while ((completed = __atomic_load_n(&h->mailbox->call_completed, __ATOMIC_ACQUIRE)) != number) {
        struct timespec limit = {.tv_nsec = 10000000};
        futex(&h->mailbox->call_completed, FUTEX_WAIT, completed, &limit);
    }
    if (kernel_ns != NULL) *kernel_ns = h->completed_ns - begin_ns;
    *output_bytes = slot->output_bytes;
    memcpy(text, slot->text, sizeof(slot->text));
    memcpy(output, out, output_bytes_max);
    return slot->status;
}

/* Involuntary context switches of one thread, from its status file. */
static uint64_t preemptions_of(int thread_id) {
    char path[64];
    char line[128];
    unsigned long long count = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/status", thread_id);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "nonvoluntary_ctxt_switches: %llu", &count) == 1) break;
    }
    fclose(file);
    return count;
}

uint64_t duck_harness_preemptions(const struct duck_harness *h) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < h->started; i++) {
        sum += preemptions_of(__atomic_load_n(&h->core[i].thread_id, __ATOMIC_ACQUIRE));
    }
    return sum;
}

double duck_harness_cycles_per_second(void) {
    double best = 0.0;
    for (int trial = 0; trial < 20; trial++) {
        uint64_t begin = now_ns();
        uint64_t x = 1;
        for (int i = 0; i < 10000; i++) {
            __asm__ volatile("add %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\t"
                             "add %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0"
                             : "+r"(x));
        }
        double rate = 80000.0 * 1e9 / (double)(now_ns() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

void duck_harness_close(struct duck_harness *h) {
    __atomic_store_n(&h->mailbox->stop, 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < h->started; i++) pthread_join(h->core[i].thread, NULL);
    free_harness(h);
}
