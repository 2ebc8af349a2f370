/* SPDX-License-Identifier: Apache-2.0
 *
 * duckd run: one kernel, one input, one verdict.
 */
#include "duckd.h"
#include "session_shared.h"

#include "../core/elf.h"
#include "../core/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OUTPUT_BYTES_MAX DUCK_WIRE_CALL_BYTES_MAX
#define SCRATCH_BYTES_MAX (256u << 20) /* as much of it as the memory limit leaves */
#define INPUT_OFFSET 0u
#define LOOK_NS 200000

/* ---- files ----------------------------------------------------------------------------------- */

static int open_input(const char *path, uint64_t most, uint64_t *bytes) {
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0) fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(facts.st_mode)) fail("%s: not a regular file", path);
    if ((uint64_t)facts.st_size > most)
        fail("%s: %lld bytes; at most %llu are possible", path, (long long)facts.st_size,
             (unsigned long long)most);
    *bytes = (uint64_t)facts.st_size;
    return fd;
}

static void read_whole(int fd, const char *path, uint8_t *out, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = read(fd, out + done, bytes - done);
        if (got <= 0) fail("%s: %s", path, got < 0 ? strerror(errno) : "it became shorter");
        done += (uint64_t)got;
    }
    close(fd);
}

/* Fill a region from a file; its size, or 0 without a file. */
static uint64_t load_region(uint32_t region, const char *path, uint64_t most) {
    uint64_t bytes;
    if (path == NULL) return 0;
    int fd = open_input(path, most, &bytes);
    if (bytes == 0) fail("%s: empty", path);
    uint8_t *memory = plat_region_provide(region, bytes);
    if (memory == NULL)
        fail("%s: %llu bytes do not fit into the memory limit", path, (unsigned long long)bytes);
    read_whole(fd, path, memory, bytes);
    if (region != DUCK_REGION_KERNEL) return bytes;
    struct elf_plan plan;
    enum elf_error error = elf_check(memory, bytes, &plan);
    if (error != ELF_OK) fail("%s: %s", path, elf_error_text(error));
    if (plan.note.abi_version != DUCK_KERNEL_ABI_VERSION)
        fail("%s: kernel ABI %u, this duckd has %u", path, plan.note.abi_version,
             DUCK_KERNEL_ABI_VERSION);
    if ((plan.note.cpu_features & ~plat_cpu_features()) != 0)
        fail("%s: the kernel needs CPU features 0x%x, this CPU has 0x%x", path,
             plan.note.cpu_features, plat_cpu_features());
    return bytes;
}

static int write_output(const char *path, const uint8_t *bytes, uint32_t count) {
    FILE *file = fopen(path, "we");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) {
        fprintf(stderr, "duckd: %s: %s\n", path, strerror(errno));
        return EXIT_FAILED;
    }
    return 0;
}

/* ---- the run --------------------------------------------------------------------------------- */

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {"none",       "memory", "illegal-instruction",
                                        "arithmetic", "bus",    "forbidden-call",
                                        "stack",      "exited", "killed"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

static int say_fault(const struct duck_fault *fault) {
    const char *verdict = fault->status == DUCK_ERR_MEMORY_LIMIT ? "memory-limit" : "fault";
    fprintf(stderr, "verdict=%s kind=%s address=0x%llx instruction=", verdict,
            kind_name(fault->fault_kind), (unsigned long long)fault->address);
    if (fault->instruction == UINT64_MAX)
        fputs("outside", stderr);
    else
        fprintf(stderr, "0x%llx", (unsigned long long)fault->instruction);
    if (fault->core == UINT32_MAX)
        fputs(" core=unknown", stderr);
    else
        fprintf(stderr, " core=%u", fault->core);
    fprintf(stderr, " text=\"%s\"\n", fault->text);
    return EXIT_FAILED;
}

/* The kernel's own words, with nothing in them that a terminal would obey. */
static int say_refused(int32_t status, const char *words, size_t bytes) {
    char buffer[DUCK_WIRE_TEXT_BYTES];
    struct text text = text_start(buffer, sizeof buffer);
    text_add_foreign(&text, words, bytes);
    fprintf(stderr, "verdict=refused status=%d text=\"%s\"\n", status, buffer);
    return EXIT_FAILED;
}

static int say_finished(const struct options *options, const struct duck_kernel_slot *slot,
                        const uint8_t *output, const struct session_shared *shared) {
    if (slot->status != 0 || slot->output_bytes > OUTPUT_BYTES_MAX)
        return say_refused(slot->status, slot->text, sizeof slot->text);
    fprintf(stderr, "verdict=finished time_ns=%llu cycles=%llu output_bytes=%u\n",
            (unsigned long long)(shared->returned_ns - shared->entered_ns),
            (unsigned long long)(shared->returned_tsc - shared->entered_tsc), slot->output_bytes);
    if (options->output_file == NULL) return 0;
    return write_output(options->output_file, output, slot->output_bytes);
}

static int watch(const struct options *options, const struct plat_session_memory *memory,
                 uint64_t output_offset) {
    struct timespec nap = {0, LOOK_NS};
    struct duck_fault fault;
    uint64_t deadline = plat_now_ns() + options->time_limit_ms * UINT64_C(1000000);
    while (!plat_session_ended(&fault)) {
        if (plat_now_ns() >= deadline) {
            plat_session_stop();
            fprintf(stderr, "verdict=time-limit limit_ms=%u\n", options->time_limit_ms);
            return EXIT_FAILED;
        }
        nanosleep(&nap, NULL);
    }
    const struct session_shared *shared = session_memory();
    bool returned =
        fault.fault_kind == DUCK_FAULT_EXITED && shared->returned == options->core_count;
    if (!returned) return say_fault(&fault);
    const struct duck_kernel_mailbox *mailbox = memory->mailbox;
    if (mailbox->init_status > 0)
        return say_refused(mailbox->init_status, mailbox->init_text, sizeof mailbox->init_text);
    if (memory->mailbox->call_completed != 1) {
        fprintf(stderr,
                "verdict=fault kind=exited text=\"the kernel returned without a result\"\n");
        return EXIT_FAILED;
    }
    struct duck_kernel_slot slot = memory->mailbox->slot[1 % DUCK_KERNEL_SLOTS];
    return say_finished(options, &slot, memory->calls + output_offset, shared);
}

int run_once_main(const struct options *options) {
    uint64_t input_bytes = 0;
    char text[DUCK_WIRE_TEXT_BYTES] = "";
    struct plat_session_memory memory;
    machine_init(options);
    memory_init(options->memory_limit, options->huge_pages);
    session_init(options);
    struct plat_session_request request = {
        .elf_bytes =
            load_region(DUCK_REGION_KERNEL, options->kernel_file, DUCK_KERNEL_ELF_BYTES_MAX),
        .weights_bytes = load_region(DUCK_REGION_WEIGHTS, options->weights_file,
                                     plat_region_bytes_max(DUCK_REGION_WEIGHTS)),
        .core_count = options->core_count,
        .run_mode = DUCK_KERNEL_ONE_SHOT,
    };
    int input = -1;
    if (options->input_file != NULL)
        input = open_input(options->input_file, DUCK_WIRE_CALL_BYTES_MAX, &input_bytes);
    uint64_t output_offset = (input_bytes + 4095) & ~UINT64_C(4095);
    request.calls_bytes = output_offset + OUTPUT_BYTES_MAX;
    if (request.calls_bytes > plat_session_bytes_max()) fail("the memory limit is too small");
    uint64_t rest = plat_session_bytes_max() - request.calls_bytes;
    request.scratch_bytes = rest < SCRATCH_BYTES_MAX ? rest / 4096 * 4096 : SCRATCH_BYTES_MAX;
    if (plat_session_start(&request, &memory, text) != DUCK_OK) fail("%s", text);
    if (input >= 0)
        read_whole(input, options->input_file, memory.calls + INPUT_OFFSET, input_bytes);
    memory.mailbox->slot[1 % DUCK_KERNEL_SLOTS] = (struct duck_kernel_slot){
        .call_number = 1,
        .input_bytes = (uint32_t)input_bytes,
        .input_offset = INPUT_OFFSET,
        .output_offset = output_offset,
        .output_bytes_max = OUTPUT_BYTES_MAX,
    };
    __atomic_store_n(&memory.mailbox->call_published, 1, __ATOMIC_SEQ_CST);
    plat_session_wake();
    int code = watch(options, &memory, output_offset);
    plat_session_stop();
    return code;
}
