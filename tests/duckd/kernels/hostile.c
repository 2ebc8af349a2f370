/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that misbehaves on request: the first word of the input says how (the names are in
 * test_duckd_hostile.py).
 */
#include "echo.h"

#include "../../../images/duckd/session_shared.h"

static int prepare(context_pointer context) {
    (void)context;
#ifdef FAULT_AT_START
    *(volatile int *)8 = 1;
#endif
    return 0;
}

static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline)) static void null_write(void) {
    __asm__ volatile(".globl null_write_here\nnull_write_here: movl $1, 0x10\n" ::: "memory");
}

static int overflow(volatile int *from) {
    volatile int here[256];
    here[0] = from[0] + 1;
    if (here[0] == -1) return 0; /* never in practice, but the compiler need not know */
    return overflow(here) + here[0];
}

static void fill(uint8_t *at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) at[i] = 0xFF;
}

static void unmasked_division(void) {
    uint32_t control = 0; /* every exception raised */
    __asm__ volatile("ldmxcsr %0\n xorps %%xmm0, %%xmm0\n divss %%xmm0, %%xmm0\n" ::"m"(control)
                     : "xmm0");
}

static void alignment_check(void) {
    __asm__ volatile("pushfq\n orl $0x40000, (%%rsp)\n popfq\n movl 1(%%rsp), %%eax\n" ::
                         : "rax", "memory", "cc");
}

static void lose_thread_pointer(void) {
    __asm__ volatile("wrfsbase %0\n wrgsbase %0\n" ::"r"(0x1234567ul));
    null_write();
}

static void machine_attack(uint32_t attack) {
    switch (attack) {
    case 10: __asm__ volatile("ud2"); break;
    case 11: __asm__ volatile("xorl %%eax, %%eax\n divl %%eax" ::: "eax", "edx"); break;
    case 12: unmasked_division(); break;
    case 13: __asm__ volatile("hlt"); break;
    case 14: __asm__ volatile("cli"); break;
    case 15: __asm__ volatile("inb $0x80, %%al" ::: "al"); break;
    case 16: __asm__ volatile("int3"); break;
    case 17: alignment_check(); break;
    case 18: __asm__ volatile("movaps 1(%%rsp), %%xmm0" ::: "xmm0"); break;
    case 19: *(volatile uint8_t *)0xdead000000000000ull = 1; break;
    case 20: lose_thread_pointer(); break;
    case 21: __asm__ volatile("movq %%rax, %%cr3" ::); break;
    default: break;
    }
}

/* Where duckos lies in every session's page tables, for ring 0 only. */
static void system_attack(uint32_t attack) {
    const uintptr_t image = 0xffffffff80001000ull, arena = 0x200000;
    switch (attack) {
    case 60: ((void (*)(void))image)(); break;
    case 61: *(volatile uint8_t *)image = 1; break;
    case 62: (void)*(volatile uint8_t *)image; break;
    case 63: (void)*(volatile uint8_t *)arena; break;
    case 64: ((void (*)(void))arena)(); break;
    case 65: __asm__ volatile("lgdt (%%rsp)" ::: "memory"); break;
    case 66: __asm__ volatile("wrmsr" ::"c"(0xC0000082u), "a"(0), "d"(0)); break;
    case 67: __asm__ volatile("int $0x41"); break; /* duckos' own wake interrupt */
    default: break;
    }
}

static void call_attack(uint32_t attack, context_pointer context) {
    switch (attack) {
    case 30: system_call(39, 0, 0, 0); break;                         /* getpid */
    case 31: system_call(60, 3, 0, 0); break;                         /* exit */
    case 32: system_call(231, 3, 0, 0); break;                        /* exit_group */
    case 33: system_call(1, 1, (long)context, 8); break;              /* write to stdout */
    case 34: system_call(57, 0, 0, 0); break;                         /* fork */
    case 35: system_call(41, 2, 2, 0); break;                         /* socket */
    case 36: system_call(10, (long)context->weights, 4096, 3); break; /* mprotect */
    case 37: system_call(62, 1, 9, 0); break;                         /* kill */
    case 38: system_call(15, 0, 0, 0); break;                         /* rt_sigreturn to nonsense */
    case 39: __asm__ volatile("int $0x80" ::"a"(20)); break;          /* getpid, the old way */
    case 40: system_call(39 | 0x40000000, 0, 0, 0); break;            /* getpid, the x32 way */
    case 41: system_call(1, (1l << 32) | 7, (long)context, 8); break; /* high bits of the fd */
    default: break;
    }
}

/* A verdict of its own, before the right one: with words that a terminal would obey. */
static void forge_verdict(context_pointer context) {
    struct session_shared *shared =
        (struct session_shared *)(void *)((uint8_t *)context->mailbox - SESSION_MAILBOX_OFFSET);
    shared->verdict = (struct duck_fault){
        .status = DUCK_ERR_KERNEL_FAULT, .fault_kind = 1, .text = "\033]0;owned\a\xff\n"};
    shared->verdict_claimed = 1;
    shared->verdict_written = 1;
    null_write();
}

static void memory_attack(uint32_t attack, context_pointer context, struct duck_kernel_slot *slot,
                          uint8_t *output) {
    switch (attack) {
    case 1: null_write(); break;
    case 2: *(volatile uint8_t *)(uintptr_t)context->weights = 1; break;
    case 3:
        for (;;) __builtin_ia32_pause();
    case 4: overflow((volatile int *)(void *)output); break;
    case 5: ((void (*)(void))(uintptr_t)context->scratch)(); break; /* run data */
    case 6: *(volatile uint8_t *)(uintptr_t)&entry = 0x90; break;   /* change code */
    case 7: *(volatile uint32_t *)(uintptr_t)&context->core_count = 99; break;
    case 8: fill((uint8_t *)context->mailbox, 4096); break;
    case 9:
        fill((uint8_t *)context->mailbox - 4096, 4096);
        null_write();
        break;
    case 22: forge_verdict(context); break;
    case 50: slot->output_bytes = UINT32_MAX; break;
    case 51:
        context->complete(context, slot->call_number + 1);
        for (;;) __builtin_ia32_pause();
    case 52: fill(context->calls, context->calls_bytes); break;
    case 53: __asm__ volatile("pushq $0\n ret"); break;                      /* return to nowhere */
    case 54: fill(context->calls, context->calls_bytes + (1u << 20)); break; /* and beyond */
    case 55: context->scratch[context->scratch_bytes] = 1; break;
    case 56: fill(context->scratch, 10 * 4096); break;
    default: break;
    }
}

static void work(context_pointer context, struct duck_kernel_slot *slot, const uint8_t *input,
                 uint8_t *output) {
    uint32_t attack = *(const uint32_t *)(const void *)input;
    slot->output_bytes = 8;
    memory_attack(attack, context, slot, output);
    machine_attack(attack);
    system_attack(attack);
    call_attack(attack, context);
}
