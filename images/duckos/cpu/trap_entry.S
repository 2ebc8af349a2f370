/* SPDX-License-Identifier: Apache-2.0
 *
 * 256 entries of 16 bytes, then one common way: struct trap_frame (cpu/trap.h) on the stack that
 * the gate chose, trap_handle(frame), back.
 */
        .text
        .balign 16
        .globl trap_entries
trap_entries:
        .set vector, 0
        .rept 256
        .balign 16
        /* These push an error code themselves: 8, 10 to 14, 17, 21, 29, 30 (SDM volume 3, 6.15). */
        .set has_error, vector == 8 || vector >= 10 && vector <= 14 || vector == 17
        .set has_error, has_error || vector == 21 || vector == 29 || vector == 30
        .if !has_error
        pushq $0
        .endif
        pushq $vector
        jmp trap_common
        .set vector, vector + 1
        .endr

        .balign 16
trap_common:
        pushq %rax
        pushq %rbx
        pushq %rcx
        pushq %rdx
        pushq %rsi
        pushq %rdi
        pushq %rbp
        pushq %r8
        pushq %r9
        pushq %r10
        pushq %r11
        pushq %r12
        pushq %r13
        pushq %r14
        pushq %r15
        cld
        /* Ring 3 may have set AC, which would switch SMAP off for us. */
        pushfq
        andl $~(1 << 18), (%rsp)
        popfq
        movq %rsp, %rdi
        xorl %ebp, %ebp
        testb $3, 18 * 8(%rsp)
        jnz 1f
        movq 8 * 8(%rsp), %rbp
1:      andq $-16, %rsp
        movq %rdi, %rbx
        call trap_handle
        movq %rbx, %rsp
        popq %r15
        popq %r14
        popq %r13
        popq %r12
        popq %r11
        popq %r10
        popq %r9
        popq %r8
        popq %rbp
        popq %rdi
        popq %rsi
        popq %rdx
        popq %rcx
        popq %rbx
        popq %rax
        addq $16, %rsp
        iretq

/* bool msr_try_read(uint32_t msr, uint64_t *value)
 * bool msr_try_write(uint32_t msr, uint64_t value)
 * trap_handle goes on at msr_refused when the instruction at msr_reading or msr_writing faults. */
        .globl msr_try_read, msr_try_write, msr_reading, msr_writing, msr_refused
msr_try_read:
        movl %edi, %ecx
msr_reading:
        rdmsr
        shlq $32, %rdx
        orq %rdx, %rax
        movq %rax, (%rsi)
        movl $1, %eax
        ret
msr_try_write:
        movl %edi, %ecx
        movl %esi, %eax
        movq %rsi, %rdx
        shrq $32, %rdx
msr_writing:
        wrmsr
        movl $1, %eax
        ret
msr_refused:
        xorl %eax, %eax
        ret
