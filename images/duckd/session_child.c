/* SPDX-License-Identifier: Apache-2.0
 *
 * The process in which a kernel runs. It is a fresh execution of duckd's own file, so nothing of
 * duckd's memory (its own key!) is there, and it holds no sockets. Steps, in order: map memory,
 * load the ELF, make the threads, close every descriptor but one eventfd, forbid system calls,
 * enter the kernel.
 *
 * This file is built without stack protector and uses no errno, because the kernel may have changed
 * the thread pointer when a signal handler runs.
 */
#include "session_raw.h"
#include "session_shared.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "../core/elf.h"

#define GUARD_BYTES (64u << 10)
#define MAP_ALIGN (2u << 20)
#define STACK_PITCH (GUARD_BYTES + DUCK_KERNEL_STACK_BYTES)
#define SIGNAL_STACK_BYTES (64u << 10)
#define WAIT_SPINS 200u
#define PAUSES_ALONE 64u
#define ALONE_NS 1000u /* sched_yield() without anybody to yield to is shorter */
#define CLAIM_SPINS 100000
#define FUTEX_LIMIT_NS 100000000

static struct session_shared *shared;
static struct duck_kernel_mailbox *mailbox;
static struct session_setup setup; /* private copy */
static const struct duck_kernel_context *context;
static uint64_t elf_base, elf_span, elf_entry;
static uint8_t *stacks, *signal_stacks;
static pthread_barrier_t threads_ready;
static uint32_t go; /* 1 once system calls are forbidden */

/* ---- verdicts -------------------------------------------------------------------------------- */

/* The first one wins; the process ends either way. */
static _Noreturn void end_with(const struct duck_fault *verdict) {
    if (__atomic_exchange_n(&shared->verdict_claimed, 1, __ATOMIC_ACQ_REL) == 0) {
        shared->verdict = *verdict;
        __atomic_store_n(&shared->verdict_written, 1, __ATOMIC_RELEASE);
        leave(SESSION_EXIT_VERDICT);
    }
    /* Another thread is writing its verdict and will end the process, unless the kernel has forged
     * the claim. */
    for (int i = 0; i < CLAIM_SPINS; i++) __builtin_ia32_pause();
    leave(SESSION_EXIT_VERDICT);
}

static _Noreturn void fail_start(enum duck_status status, const char *text) {
    struct duck_fault verdict = {.status = status, .core = UINT32_MAX, .instruction = UINT64_MAX};
    strncpy(verdict.text, text, sizeof verdict.text - 1);
    end_with(&verdict);
}

/* Linux reports privileged instructions and impossible addresses alike (a general protection fault
 * without an address); the opcode tells them apart. `code` is readable: it was just executed. */
static bool is_privileged(const uint8_t *code) {
    static const uint8_t one_byte[] = {0xF4, 0xFA, 0xFB, 0xE4, 0xE5, 0xE6, 0xE7, 0xEC,
                                       0xED, 0xEE, 0xEF, 0x6C, 0x6D, 0x6E, 0x6F, 0xCD};
    static const uint8_t after_0f[] = {0x00, 0x01, 0x06, 0x08, 0x09, 0x20, 0x21,
                                       0x22, 0x23, 0x30, 0x32, 0x33, 0x35};
    const uint8_t *list = code[0] == 0x0F ? after_0f : one_byte;
    size_t count = code[0] == 0x0F ? sizeof after_0f : sizeof one_byte;
    uint8_t opcode = code[0] == 0x0F ? code[1] : code[0];
    for (size_t i = 0; i < count; i++)
        if (list[i] == opcode) return true;
    return false;
}

static uint32_t kind_of(int signal, const siginfo_t *info, uint64_t address, uint64_t instruction) {
    switch (signal) {
    case SIGBUS: return DUCK_FAULT_BUS;
    case SIGFPE: return DUCK_FAULT_ARITHMETIC;
    case SIGSYS: return DUCK_FAULT_FORBIDDEN_CALL;
    case SIGSEGV: break;
    default: return DUCK_FAULT_ILLEGAL_INSTRUCTION;
    }
    if (info->si_code == SI_KERNEL && instruction < elf_span &&
        is_privileged((const uint8_t *)(uintptr_t)(elf_base + instruction)))
        return DUCK_FAULT_ILLEGAL_INSTRUCTION;
    uint64_t offset = address - (uint64_t)(uintptr_t)stacks;
    bool in_stacks = offset < (uint64_t)setup.core_count * STACK_PITCH;
    return in_stacks && offset % STACK_PITCH < GUARD_BYTES ? DUCK_FAULT_STACK : DUCK_FAULT_MEMORY;
}

/* One-shot runs: a touch directly behind scratch wants more memory than the run was given. */
static enum duck_status status_of(uint32_t kind, uint64_t address) {
    uint64_t behind = address - (uint64_t)(uintptr_t)context->scratch - setup.scratch_bytes;
    bool beyond = kind == DUCK_FAULT_MEMORY && behind < GUARD_BYTES;
    return beyond && setup.run_mode == DUCK_KERNEL_ONE_SHOT ? DUCK_ERR_MEMORY_LIMIT
                                                            : DUCK_ERR_KERNEL_FAULT;
}

static void on_fault(int signal, siginfo_t *info, void *machine) {
    const ucontext_t *state = machine;
    /* Each core has its own signal stack, so the place of a local variable names the core. */
    uint64_t place = (uint64_t)((uint8_t *)__builtin_frame_address(0) - signal_stacks);
    uint64_t core = place / SIGNAL_STACK_BYTES;
    uint64_t offset = (uint64_t)state->uc_mcontext.gregs[REG_RIP] - elf_base;
    uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    if (signal == SIGSYS) address = (uint64_t)(uint32_t)info->si_syscall;
    if (signal == SIGFPE || signal == SIGILL || signal == SIGTRAP) address = 0;
    uint32_t kind = kind_of(signal, info, address, offset);
    struct duck_fault verdict = {
        .status = status_of(kind, address),
        .fault_kind = kind,
        .core = core < setup.core_count ? (uint32_t)core : UINT32_MAX,
        .address = address,
        .instruction = offset < elf_span ? offset : UINT64_MAX,
    };
    end_with(&verdict);
}

/* ---- the kernel's runtime -------------------------------------------------------------------- */

/* The longer nothing comes, the longer the nap: idle ducks of one machine must not starve it. */
static uint64_t nap(uint64_t waited_ns) {
    uint64_t ns = session_nap_ns(waited_ns);
    struct timespec time = {0, (long)ns};
    call4(SYS_nanosleep, (long)&time, 0, 0, 0);
    return ns;
}

static void futex_wait(const uint32_t *word, uint32_t seen) {
    struct timespec limit = {0, FUTEX_LIMIT_NS};
    __atomic_fetch_add(&shared->sleepers, 1, __ATOMIC_SEQ_CST);
    call4(SYS_futex, (long)word, FUTEX_WAIT, (long)seen, (long)&limit);
    __atomic_fetch_sub(&shared->sleepers, 1, __ATOMIC_SEQ_CST);
}

static bool must_return(const uint32_t *word, uint32_t seen) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) != seen ||
           __atomic_load_n(&mailbox->stop, __ATOMIC_ACQUIRE) != 0;
}

/* The first core that sees a new call notes when. */
static void note_start(uint32_t seen) {
    uint32_t number = seen + 1;
    struct session_call_time *time = &shared->time[number % DUCK_KERNEL_SLOTS];
    uint32_t before = __atomic_load_n(&time->number, __ATOMIC_RELAXED);
    if (before == number) return;
    if (__atomic_compare_exchange_n(&time->number, &before, number, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        time->start_ns = now_ns();
}

/* A moment between two looks; then the CPU for whoever else wants it. When somebody did, looks are
 * short: he may be the one that is waited for. */
static void pause_politely(const uint32_t *word, uint32_t seen, uint32_t *pauses) {
    for (uint32_t i = 0; i < *pauses && !must_return(word, seen); i++) __builtin_ia32_pause();
    if (must_return(word, seen)) return;
    const uint64_t begin_ns = now_ns();
    call4(SYS_sched_yield, 0, 0, 0, 0);
    *pauses = now_ns() - begin_ns < ALONE_NS ? PAUSES_ALONE : 1;
}

/* Look for a while, then sleep. */
static void wait_blocking(const uint32_t *word, uint32_t seen) {
    static uint64_t last_wait_ns = UINT64_MAX; /* for a call, by whichever core */
    const bool is_for_call = word == &mailbox->call_published;
    const uint64_t last_ns = __atomic_load_n(&last_wait_ns, __ATOMIC_RELAXED);
    const uint64_t begin_ns = is_for_call ? now_ns() : 0;
    uint32_t pauses = PAUSES_ALONE;
    while (is_for_call && !must_return(word, seen) &&
           session_may_look(last_ns, now_ns() - begin_ns))
        pause_politely(word, seen, &pauses);
    while (!must_return(word, seen)) futex_wait(word, seen);
    if (is_for_call) __atomic_store_n(&last_wait_ns, now_ns() - begin_ns, __ATOMIC_RELAXED);
}

static void runtime_wait(const struct duck_kernel_context *unused, const uint32_t *word,
                         uint32_t seen) {
    (void)unused;
    uint32_t spins = 0, pauses = PAUSES_ALONE;
    uint64_t waited_ns = 0;
    while (!must_return(word, seen)) {
        __builtin_ia32_pause();
        if (spins++ < WAIT_SPINS) continue;
        switch (setup.poll_policy) {
        case DUCK_POLL_BLOCK: wait_blocking(word, seen); break;
        case DUCK_POLL_SLEEP: waited_ns += nap(waited_ns); break;
        default: pause_politely(word, seen, &pauses);
        }
    }
    if (word == &mailbox->call_published && __atomic_load_n(word, __ATOMIC_ACQUIRE) != seen)
        note_start(seen);
}

static void runtime_wake(const struct duck_kernel_context *unused, const uint32_t *word) {
    (void)unused;
    if (setup.poll_policy != DUCK_POLL_BLOCK) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared->sleepers, __ATOMIC_RELAXED) != 0)
        call4(SYS_futex, (long)word, FUTEX_WAKE, INT32_MAX, 0);
}

static void runtime_complete(const struct duck_kernel_context *unused, uint32_t number) {
    static const uint64_t one = 1;
    (void)unused;
    shared->time[number % DUCK_KERNEL_SLOTS].end_ns = now_ns();
    __atomic_store_n(&mailbox->call_completed, number, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared->parent_sleeps, __ATOMIC_SEQ_CST) != 0)
        call4(SYS_write, SESSION_FD_COMPLETE, (long)&one, sizeof one, 0);
}

/* ---- entering -------------------------------------------------------------------------------- */

/* Call entry(core, context) on another stack, with MXCSR and x87 control word as promised and all
 * other registers zero. */
void enter_kernel(uint64_t core, const struct duck_kernel_context *with, uint64_t entry,
                  uint64_t stack_top);
__asm__(".text\n"
        ".type enter_kernel, @function\n"
        "enter_kernel:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, %rbp\n"
        "    mov %rcx, %rsp\n"
        "    push %rbp\n" /* found again below the kernel's own frames */
        "    push $0x1F80\n"
        "    ldmxcsr (%rsp)\n"
        "    fninit\n"
        "    cld\n"
        "    mov %rdx, %rax\n"
        "    xor %edx, %edx\n    xor %ecx, %ecx\n    xor %r8d, %r8d\n    xor %r9d, %r9d\n"
        "    xor %r10d, %r10d\n    xor %r11d, %r11d\n    xor %ebx, %ebx\n    xor %ebp, %ebp\n"
        "    xor %r12d, %r12d\n    xor %r13d, %r13d\n    xor %r14d, %r14d\n    xor %r15d, %r15d\n"
        "    call *%rax\n"
        "    add $8, %rsp\n"
        "    pop %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size enter_kernel, . - enter_kernel\n");

/* A one-shot kernel finds call 1 when it is entered. */
static void wait_for_input(void) {
    uint64_t waited_ns = 0;
    while (__atomic_load_n(&mailbox->call_published, __ATOMIC_ACQUIRE) == 0) {
        if (setup.poll_policy == DUCK_POLL_BLOCK)
            futex_wait(&mailbox->call_published, 0);
        else
            waited_ns += nap(waited_ns);
    }
}

/* Pages that hold something other than zeros: what a run has really used of what it was given. */
static uint64_t used_bytes(const void *memory, uint64_t bytes) {
    const uint64_t *words = memory;
    const uint64_t page_words = ELF_PAGE_BYTES / sizeof *words;
    uint64_t used = 0;
    for (uint64_t page = 0; page < bytes / ELF_PAGE_BYTES; page++) {
        uint64_t any = 0;
        for (uint64_t i = 0; i < page_words; i++) any |= words[page * page_words + i];
        if (any != 0) used += ELF_PAGE_BYTES;
    }
    return used;
}

static uint64_t memory_used(void) {
    uint64_t used = elf_span + used_bytes(context->calls, context->calls_bytes) +
                    used_bytes(context->scratch, context->scratch_bytes);
    for (uint32_t core = 0; core < setup.core_count; core++)
        used += used_bytes(stacks + (uint64_t)core * STACK_PITCH + GUARD_BYTES,
                           DUCK_KERNEL_STACK_BYTES);
    return used + setup.weights_bytes;
}

static _Noreturn void run_core(uint32_t core) {
    while (__atomic_load_n(&go, __ATOMIC_ACQUIRE) == 0)
        call4(SYS_futex, (long)&go, FUTEX_WAIT_PRIVATE, 0, 0);
    if (setup.run_mode == DUCK_KERNEL_ONE_SHOT) wait_for_input();
    if (core == 0) {
        shared->entered_ns = now_ns();
        shared->entered_tsc = __builtin_ia32_rdtsc();
    }
    uint64_t top = (uint64_t)(uintptr_t)(stacks + (uint64_t)(core + 1) * STACK_PITCH);
    enter_kernel(core, context, elf_base + elf_entry, top);
    if (__atomic_add_fetch(&shared->returned, 1, __ATOMIC_ACQ_REL) == setup.core_count) {
        shared->returned_tsc = __builtin_ia32_rdtsc();
        shared->returned_ns = now_ns();
        if (setup.run_mode == DUCK_KERNEL_ONE_SHOT) shared->memory_used_bytes = memory_used();
        leave(SESSION_EXIT_RETURNED);
    }
    for (;;) call4(SYS_futex, (long)&go, FUTEX_WAIT_PRIVATE, 1, 0);
}

static void use_signal_stack(uint32_t core) {
    stack_t stack = {.ss_sp = signal_stacks + (uint64_t)core * SIGNAL_STACK_BYTES,
                     .ss_size = SIGNAL_STACK_BYTES};
    if (sigaltstack(&stack, NULL) != 0) fail_start(DUCK_ERR_INTERNAL, "sigaltstack failed");
}

static void pin_to(uint32_t core) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    uint32_t wanted = core % (uint32_t)CPU_COUNT(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || wanted-- != 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static void *thread_main(void *argument) {
    uint32_t core = (uint32_t)(uintptr_t)argument;
    use_signal_stack(core);
    if (setup.pin) pin_to(core);
    pthread_barrier_wait(&threads_ready);
    run_core(core);
}

/* ---- preparation ----------------------------------------------------------------------------- */

/* Map a file (fd >= 0) or fresh zeros, with at least GUARD_BYTES of forbidden addresses on both
 * sides, so that a kernel that runs over an end meets a fault and not its neighbour. Starts at a
 * multiple of 2 MiB, as huge pages need. */
static void *map(uint64_t bytes, int protection, int fd, const char *what) {
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint64_t room = bytes + GUARD_BYTES + 2 * MAP_ALIGN;
    uint8_t *fence = mmap(NULL, room, PROT_NONE, anonymous, -1, 0);
    if (fence == MAP_FAILED) fail_start(DUCK_ERR_NO_MEMORY, what);
    uint64_t place = (uint64_t)(uintptr_t)fence + GUARD_BYTES;
    place = (place + MAP_ALIGN - 1) & ~(uint64_t)(MAP_ALIGN - 1);
    void *memory = mmap((void *)(uintptr_t)place, bytes, protection,
                        MAP_FIXED | (fd < 0 ? anonymous : MAP_SHARED), fd, 0);
    if (memory == MAP_FAILED) fail_start(DUCK_ERR_NO_MEMORY, what);
    return memory;
}

static void load_kernel(void) {
    struct elf_plan plan;
    const uint8_t *file = map(setup.elf_bytes, PROT_READ, SESSION_FD_ELF, "mapping the ELF failed");
    if (elf_check(file, setup.elf_bytes, &plan) != ELF_OK)
        fail_start(DUCK_ERR_BAD_ELF, "the ELF changed while the session started");
    uint8_t *base = map(plan.span, PROT_READ | PROT_WRITE, -1, "no memory for the kernel");
    elf_load(file, &plan, base, (uint64_t)(uintptr_t)base);
    uint64_t done = 0;
    for (uint32_t i = 0; i < plan.segment_count; i++) {
        const struct elf_segment *segment = &plan.segment[i];
        uint64_t begin = segment->address & ~(uint64_t)(ELF_PAGE_BYTES - 1);
        uint64_t end = segment->address + segment->memory_bytes;
        end = (end + ELF_PAGE_BYTES - 1) & ~(uint64_t)(ELF_PAGE_BYTES - 1);
        int protection = PROT_READ | (segment->writable ? PROT_WRITE : 0) |
                         (segment->executable ? PROT_EXEC : 0);
        if (begin > done) mprotect(base + done, begin - done, PROT_NONE);
        if (mprotect(base + begin, end - begin, protection) != 0)
            fail_start(DUCK_ERR_INTERNAL, "protecting a segment failed");
        done = end;
    }
    elf_base = (uint64_t)(uintptr_t)base;
    elf_span = plan.span;
    elf_entry = plan.entry;
}

static void make_context(void) {
    struct duck_kernel_context *page = map(4096, PROT_READ | PROT_WRITE, -1, "no memory");
    page->abi_version = DUCK_KERNEL_ABI_VERSION;
    page->core_count = setup.core_count;
    page->run_mode = setup.run_mode;
    page->mailbox = mailbox;
    page->weights_bytes = setup.weights_bytes;
    page->weights =
        map(setup.weights_bytes != 0 ? setup.weights_map_bytes : DUCK_KERNEL_READ_AHEAD, PROT_READ,
            setup.weights_bytes != 0 ? SESSION_FD_WEIGHTS : -1, "mapping the weights failed");
    page->calls_bytes = setup.calls_bytes;
    page->calls = map(setup.calls_bytes, PROT_READ | PROT_WRITE, SESSION_FD_CALLS,
                      "mapping the call buffers failed");
    page->scratch_bytes = setup.scratch_bytes;
    page->scratch = map(setup.scratch_bytes != 0 ? setup.scratch_bytes : 4096,
                        PROT_READ | PROT_WRITE, -1, "no memory for scratch");
    page->wait = runtime_wait;
    page->wake = runtime_wake;
    page->complete = runtime_complete;
    mprotect(page, 4096, PROT_READ);
    context = page;
}

static void make_stacks(void) {
    uint64_t bytes = (uint64_t)setup.core_count * STACK_PITCH;
    stacks = map(bytes, PROT_READ | PROT_WRITE, -1, "no memory for stacks");
    for (uint32_t i = 0; i < setup.core_count; i++)
        mprotect(stacks + (uint64_t)i * STACK_PITCH, GUARD_BYTES, PROT_NONE);
    signal_stacks = map((uint64_t)setup.core_count * SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, -1,
                        "no memory for signal stacks");
}

static void catch_faults(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigset_t blocked;
    sigfillset(&action.sa_mask);
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        sigaction(signals[i], &action, NULL);
        sigdelset(&blocked, signals[i]);
    }
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}

/* What the runtime needs and nothing else. `exit` is not there on purpose: a core that leaves alone
 * would hang its session. */
static void forbid_system_calls(void) {
#define ALLOW(number)                                                                              \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_futex),
        ALLOW(SYS_nanosleep),
        ALLOW(SYS_clock_nanosleep),
        ALLOW(SYS_clock_gettime),
        ALLOW(SYS_sched_yield),
        ALLOW(SYS_restart_syscall),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_exit_group),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        ALLOW(SESSION_FD_COMPLETE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
#undef ALLOW
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
        fail_start(DUCK_ERR_INTERNAL, "seccomp is not available");
}

static void make_threads(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128u << 10);
    pthread_barrier_init(&threads_ready, NULL, setup.core_count);
    for (uint32_t core = 1; core < setup.core_count; core++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, thread_main, (void *)(uintptr_t)core) != 0)
            fail_start(DUCK_ERR_NO_MEMORY, "a thread could not be made");
    }
    use_signal_stack(0);
    if (setup.pin) pin_to(0);
    pthread_barrier_wait(&threads_ready);
}

static void limit_process(void) {
    const struct rlimit none = {0, 0};
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != setup.parent_pid) leave(SESSION_EXIT_VERDICT); /* it died before prctl */
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    /* When memory runs out, the kernel dies and not the duck. */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t written = write(fd, "1000", 4);
        (void)written;
        close(fd);
    }
    /* No debugger of the same user may look in; after this /proc/self belongs to root. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

int session_child_main(void) {
    uint8_t *page =
        mmap(NULL, SESSION_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, SESSION_FD_SHARED, 0);
    if (page == MAP_FAILED) return 1;
    shared = (struct session_shared *)page;
    mailbox = (struct duck_kernel_mailbox *)(page + SESSION_MAILBOX_OFFSET);
    setup = shared->setup;
    limit_process();
    load_kernel();
    make_context();
    make_stacks();
    catch_faults();
    make_threads();
    for (int fd = 0; fd < SESSION_FD_COMPLETE; fd++) close(fd);
    forbid_system_calls();
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    call4(SYS_futex, (long)&go, FUTEX_WAKE_PRIVATE, INT32_MAX, 0);
    run_core(0);
}
