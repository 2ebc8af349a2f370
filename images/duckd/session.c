/* SPDX-License-Identifier: Apache-2.0
 *
 * duckd's side of a compute session: making the child, watching it, ending it. See session_child.c
 * for the other side.
 */
#include "session_shared.h"

#include "duckd.h"

#include "../core/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_INTERVAL_NS 1000000u /* how often the child's life is looked at without a hint */

static struct {
    bool alive;
    bool hint; /* the pidfd became readable */
    pid_t pid;
    int pidfd, shared_fd, calls_fd, complete_fd;
    struct session_shared *shared;
    struct duck_kernel_mailbox *mailbox;
    uint8_t *calls;
    uint64_t calls_bytes;
    uint64_t checked_ns;
    uint32_t seen_completed;
} session;

/* Of the present or last session, for USAGE. */
static struct {
    uint64_t start_ns; /* the kernel may have been entered from then on; 0 = never */
    uint64_t end_ns;
    struct session_shared shared; /* as it was at the end */
} last;

static struct {
    enum duck_poll_policy poll;
    bool pin;
    int self_fd; /* duckd's own file */
} fixed = {.self_fd = -1};

void session_init(const struct options *options) {
    fixed.poll = options->poll;
    fixed.pin = options->pin;
    fixed.self_fd = memory_high_fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    if (fixed.self_fd < 0)
        fail("can't open /proc/self/exe (is /proc mounted?): %s", strerror(errno));
}

const struct session_shared *session_memory(void) { return session.shared; }

/* ---- making it ------------------------------------------------------------------------------- */

static int shared_memory(const char *name, uint64_t bytes, void **memory) {
    int fd = memory_high_fd((int)syscall(SYS_memfd_create, name, MFD_CLOEXEC));
    *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return fd;
}

static bool make_memory(uint64_t calls_bytes) {
    void *shared, *calls;
    session.shared_fd = shared_memory("duck-session", SESSION_SHARED_BYTES, &shared);
    session.calls_fd = shared_memory("duck-calls", calls_bytes, &calls);
    session.complete_fd = memory_high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    session.shared = shared == MAP_FAILED ? NULL : shared;
    session.calls = calls == MAP_FAILED ? NULL : calls;
    session.calls_bytes = calls_bytes;
    if (session.shared == NULL || session.calls == NULL || session.complete_fd < 0) return false;
    session.mailbox =
        (struct duck_kernel_mailbox *)(void *)((uint8_t *)shared + SESSION_MAILBOX_OFFSET);
    return true;
}

static void fill_setup(const struct plat_session_request *request) {
    session.shared->setup = (struct session_setup){
        .core_count = request->core_count,
        .run_mode = request->run_mode,
        .poll_policy = fixed.poll,
        .pin = fixed.pin,
        .parent_pid = getpid(),
        .elf_bytes = request->elf_bytes,
        .weights_bytes = request->weights_bytes,
        .weights_map_bytes = memory_region_map_bytes(DUCK_REGION_WEIGHTS),
        .calls_bytes = request->calls_bytes,
        .scratch_bytes = request->scratch_bytes,
    };
    session.mailbox->init_status = DUCK_KERNEL_INIT_PENDING;
}

/* In the new process: give it its descriptors (dup2 clears close-on-exec; all others close by
 * themselves) and become the session child with an empty environment. */
static _Noreturn void become_child(bool with_weights) {
    char *words[] = {(char *)(uintptr_t)"duckd-session", (char *)(uintptr_t)SESSION_CHILD_ARGUMENT,
                     NULL};
    char *nothing[] = {NULL};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++) null >= 0 ? dup2(null, fd) : close(fd);
    dup2(session.shared_fd, SESSION_FD_SHARED);
    dup2(session.calls_fd, SESSION_FD_CALLS);
    dup2(memory_region_fd(DUCK_REGION_KERNEL), SESSION_FD_ELF);
    if (with_weights) dup2(memory_region_fd(DUCK_REGION_WEIGHTS), SESSION_FD_WEIGHTS);
    dup2(session.complete_fd, SESSION_FD_COMPLETE);
    syscall(SYS_execveat, fixed.self_fd, "", words, nothing, 0x1000 /* AT_EMPTY_PATH */);
    _exit(127);
}

static void forget(void) {
    if (session.shared != NULL) {
        last.shared = *session.shared;
        last.end_ns = plat_now_ns();
    }
    if (session.shared != NULL) munmap(session.shared, SESSION_SHARED_BYTES);
    if (session.calls != NULL) munmap(session.calls, session.calls_bytes);
    if (session.shared_fd >= 0) close(session.shared_fd);
    if (session.calls_fd >= 0) close(session.calls_fd);
    if (session.complete_fd >= 0) close(session.complete_fd);
    memset(&session, 0, sizeof session);
    memory_session_give_back();
}

enum duck_status plat_session_start(const struct plat_session_request *request,
                                    struct plat_session_memory *memory,
                                    char text[DUCK_WIRE_TEXT_BYTES]) {
    if (!make_memory(request->calls_bytes)) {
        snprintf(text, DUCK_WIRE_TEXT_BYTES, "no memory for the session: %s", strerror(errno));
        forget();
        return DUCK_ERR_NO_MEMORY;
    }
    fill_setup(request);
    pid_t pid = fork();
    if (pid == 0) become_child(request->weights_bytes != 0);
    if (pid > 0) session.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid < 0 || session.pidfd < 0) {
        snprintf(text, DUCK_WIRE_TEXT_BYTES, "no process for the session: %s", strerror(errno));
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        forget();
        return DUCK_ERR_INTERNAL;
    }
    session.pid = pid;
    session.alive = true;
    last.start_ns = request->run_mode == DUCK_KERNEL_PERSISTENT ? plat_now_ns() : 0;
    memory_session_take(request->calls_bytes + request->scratch_bytes);
    memory->mailbox = session.mailbox;
    memory->calls = session.calls;
    return DUCK_OK;
}

void plat_session_stop(void) {
    if (session.shared == NULL) return;
    __atomic_store_n(&session.mailbox->stop, 1, __ATOMIC_SEQ_CST);
    if (session.alive) {
        kill(session.pid, SIGKILL);
        waitpid(session.pid, NULL, 0);
    }
    close(session.pidfd);
    forget();
}

/* ---- how it ended ---------------------------------------------------------------------------- */

static void describe(struct duck_fault *verdict) {
    static const char *const kinds[] = {
        [DUCK_FAULT_NONE] = "the session could not start",
        [DUCK_FAULT_MEMORY] = "memory access outside of what the kernel may touch",
        [DUCK_FAULT_ILLEGAL_INSTRUCTION] = "illegal instruction",
        [DUCK_FAULT_ARITHMETIC] = "division error or floating-point trap",
        [DUCK_FAULT_BUS] = "memory that could not be provided",
        [DUCK_FAULT_FORBIDDEN_CALL] = "system call (number = address)",
        [DUCK_FAULT_STACK] = "stack overflow",
        [DUCK_FAULT_EXITED] = "the kernel ended by itself",
        [DUCK_FAULT_KILLED] = "the session was killed from outside",
    };
    if (verdict->text[0] != 0) return;
    snprintf(verdict->text, sizeof verdict->text, "%s", kinds[verdict->fault_kind]);
}

static void end_without_verdict(const siginfo_t *end, struct duck_fault *verdict) {
    bool by_signal = end->si_code != CLD_EXITED;
    *verdict = (struct duck_fault){
        .status = DUCK_ERR_KERNEL_FAULT,
        .fault_kind = by_signal ? DUCK_FAULT_KILLED : DUCK_FAULT_EXITED,
        .core = UINT32_MAX,
        .address = (uint64_t)(uint32_t)end->si_status,
        .instruction = UINT64_MAX,
    };
    if (by_signal)
        snprintf(verdict->text, sizeof verdict->text, "the session was killed by signal %d",
                 end->si_status);
    else
        snprintf(verdict->text, sizeof verdict->text, "the kernel ended by itself (code %d)",
                 end->si_status);
}

/* The child's verdict, made safe: the kernel could have written anything there. */
static bool read_verdict(struct duck_fault *verdict) {
    if (__atomic_load_n(&session.shared->verdict_written, __ATOMIC_ACQUIRE) != 1) return false;
    struct duck_fault told;
    memcpy(&told, &session.shared->verdict, sizeof told);
    *verdict = told;
    struct text text = text_start(verdict->text, sizeof verdict->text);
    text_add_foreign(&text, told.text, sizeof told.text);
    if (verdict->status == DUCK_OK || verdict->status > DUCK_ERR_INTERNAL) return false;
    return verdict->fault_kind <= DUCK_FAULT_KILLED;
}

bool plat_session_ended(struct duck_fault *verdict) {
    uint64_t now = plat_now_ns();
    if (!session.alive) return false;
    if (!session.hint && now - session.checked_ns < CHECK_INTERVAL_NS) return false;
    session.hint = false;
    session.checked_ns = now;
    siginfo_t end = {0};
    if (waitid(P_PID, (id_t)session.pid, &end, WEXITED | WNOHANG) != 0 || end.si_pid == 0)
        return false;
    session.alive = false;
    bool has_verdict = end.si_code == CLD_EXITED && end.si_status == SESSION_EXIT_VERDICT;
    if (!has_verdict || !read_verdict(verdict)) end_without_verdict(&end, verdict);
    describe(verdict);
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

void plat_session_wake(void) {
    if (last.start_ns == 0) last.start_ns = plat_now_ns();
    if (session.shared == NULL || fixed.poll != DUCK_POLL_BLOCK) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&session.shared->sleepers, __ATOMIC_RELAXED) != 0)
        syscall(SYS_futex, &session.mailbox->call_published, FUTEX_WAKE, INT_MAX, NULL);
}

void plat_session_call_times(uint32_t call_number, uint64_t *start_ns, uint64_t *end_ns) {
    struct session_call_time time;
    memcpy(&time, &session.shared->time[call_number % DUCK_KERNEL_SLOTS], sizeof time);
    if (time.number != call_number) return;
    *start_ns = time.start_ns;
    *end_ns = time.end_ns;
}

/* The child measures, within what duckd has seen itself: the kernel could have written anything
 * there. */
void plat_session_usage(struct duck_usage *usage) {
    const struct session_shared *shared = session.shared != NULL ? session.shared : &last.shared;
    struct session_shared copy;
    memcpy(&copy, shared, sizeof copy);
    uint64_t end_ns = session.shared != NULL ? plat_now_ns() : last.end_ns;
    usage->run_mode = copy.setup.run_mode;
    usage->memory_peak_bytes = copy.memory_used_bytes;
    if (last.start_ns == 0) return;
    usage->wall_ns = end_ns - last.start_ns;
    bool is_possible = copy.entered_ns >= last.start_ns && copy.returned_ns >= copy.entered_ns &&
                       copy.returned_ns <= end_ns;
    if (!is_possible) return;
    usage->wall_ns = copy.returned_ns - copy.entered_ns;
    usage->cycles = copy.returned_tsc - copy.entered_tsc;
}

/* The host's packets and the kernel share no clock edge that a process could see. */
void plat_stats(struct duck_stats *stats) { (void)stats; }

/* Other cores are the session's; the system shares them out. */
bool plat_spare_core_run(void (*work)(void *argument), void *argument) {
    (void)work;
    (void)argument;
    return false;
}

/* ---- waiting for it -------------------------------------------------------------------------- */

bool session_has_news(void) {
    if (session.shared == NULL) return false;
    uint32_t completed = __atomic_load_n(&session.mailbox->call_completed, __ATOMIC_SEQ_CST);
    bool news = completed != session.seen_completed;
    session.seen_completed = completed;
    return news;
}

bool session_going_to_sleep(void) {
    if (session.shared == NULL) return true;
    __atomic_store_n(&session.shared->parent_sleeps, 1, __ATOMIC_SEQ_CST);
    if (!session_has_news()) return true;
    session_awake();
    return false;
}

void session_awake(void) {
    if (session.shared != NULL)
        __atomic_store_n(&session.shared->parent_sleeps, 0, __ATOMIC_SEQ_CST);
}

int session_poll_set(struct pollfd *set) {
    if (session.shared == NULL || !session.alive) return 0;
    set[0] = (struct pollfd){.fd = session.complete_fd, .events = POLLIN};
    set[1] = (struct pollfd){.fd = session.pidfd, .events = POLLIN};
    return 2;
}

void session_polled(const struct pollfd *set, int count) {
    uint64_t value;
    if (count != 2) return;
    if (set[0].revents != 0) {
        ssize_t bytes = read(session.complete_fd, &value, sizeof value);
        (void)bytes;
    }
    if (set[1].revents != 0) session.hint = true;
}
