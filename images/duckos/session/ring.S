/* SPDX-License-Identifier: Apache-2.0
 *
 * See ring.h. Interrupts are off throughout (SFMASK clears IF), so only NMI, double fault and
 * machine check can come in between, and those have stacks of their own.
 */
#include "ring.h"

    .text

/* uint32_t ring_enter(struct ring *ring, struct ring_cpu *cpu) */
    .globl ring_enter
    .type ring_enter, @function
ring_enter:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, RING_CPU_KERNEL_RSP(%rsi)
    mov %rdi, RING_CPU_RING(%rsi)
    cmpl $0, RING_FULL(%rdi)
    jne enter_full

    /* Back from the runtime's function call: callee-saved registers, stack and MXCSR as they were;
     * everything else is cleared, for the OS's values are nobody's business. */
    ldmxcsr RING_MXCSR(%rdi)
    cmpl $0, RING_HAS_AVX(%rdi)
    je clear_sse
    vzeroall
cleared:
    mov FRAME_R15(%rdi), %r15
    mov FRAME_R14(%rdi), %r14
    mov FRAME_R13(%rdi), %r13
    mov FRAME_R12(%rdi), %r12
    mov FRAME_RBP(%rdi), %rbp
    mov FRAME_RBX(%rdi), %rbx
    mov FRAME_RIP(%rdi), %rcx
    mov FRAME_RSP(%rdi), %rsp
    mov $RING_USER_FLAGS, %r11d
    xor %eax, %eax
    xor %edx, %edx
    xor %esi, %esi
    xor %edi, %edi
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    sysretq

clear_sse:
    xorps %xmm0, %xmm0
    xorps %xmm1, %xmm1
    xorps %xmm2, %xmm2
    xorps %xmm3, %xmm3
    xorps %xmm4, %xmm4
    xorps %xmm5, %xmm5
    xorps %xmm6, %xmm6
    xorps %xmm7, %xmm7
    xorps %xmm8, %xmm8
    xorps %xmm9, %xmm9
    xorps %xmm10, %xmm10
    xorps %xmm11, %xmm11
    xorps %xmm12, %xmm12
    xorps %xmm13, %xmm13
    xorps %xmm14, %xmm14
    xorps %xmm15, %xmm15
    jmp cleared

enter_full:
    mov %rdi, %rsp /* the frame is popped like a trap's */
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rbp
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rbx
    pop %rax
    add $16, %rsp /* vector, error */
    iretq

/* SYSCALL: RCX = return address, R11 = flags, RSP still ring 3's. The stub made a function call, so
 * r8 to r10 and rdx hold nothing that must be kept. */
    .globl ring_syscall_entry
    .type ring_syscall_entry, @function
ring_syscall_entry:
    swapgs
    mov %rsp, %gs:RING_CPU_USER_RSP
    mov %gs:RING_CPU_KERNEL_RSP, %rsp
    mov %gs:RING_CPU_USER_RSP, %r8
    mov %gs:RING_CPU_RING, %r10
    swapgs
    mov %r8, FRAME_RSP(%r10)
    mov %rcx, FRAME_RIP(%r10)
    mov %rax, FRAME_RAX(%r10)
    mov %rdi, FRAME_RDI(%r10)
    mov %rsi, FRAME_RSI(%r10)
    mov %rbx, FRAME_RBX(%r10)
    mov %rbp, FRAME_RBP(%r10)
    mov %r12, FRAME_R12(%r10)
    mov %r13, FRAME_R13(%r10)
    mov %r14, FRAME_R14(%r10)
    mov %r15, FRAME_R15(%r10)
    stmxcsr RING_MXCSR(%r10)
    movl $0, RING_FULL(%r10)
    mov $RING_CAME_BY_CALL, %eax
    jmp leave

/* _Noreturn void ring_leave(struct ring_cpu *cpu) */
    .globl ring_leave
    .type ring_leave, @function
ring_leave:
    mov RING_CPU_KERNEL_RSP(%rdi), %rsp
    mov $RING_CAME_BY_TRAP, %eax
leave:
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret

    .section .note.GNU-stack, "", @progbits
