/* SPDX-License-Identifier: Apache-2.0
 *
 * Where other cores begin (SDM volume 3, 9.4): real mode, at the start of a page below 1 MiB, to
 * which smp.c copies this. CS = page / 16. Straight to long mode, then to start_core at its linked
 * address.
 */
        .section .rodata.trampoline, "a"
        .globl trampoline, trampoline_end, trampoline_root
        .code16
trampoline:
        cli
        cld
        movw %cs, %ax
        movw %ax, %ds
        movzwl %ax, %ebx
        shll $4, %ebx                           /* EBX = linear address of the page */
        leal (start_gdt - trampoline)(%ebx), %eax
        movl %eax, start_gdt_pointer - trampoline + 2
        leal (start_64 - trampoline)(%ebx), %eax
        movl %eax, start_far - trampoline
        lgdtl start_gdt_pointer - trampoline
        movl $0xa0, %eax                        /* PAE, PGE */
        movl %eax, %cr4
        movl trampoline_root - trampoline, %eax
        movl %eax, %cr3
        movl $0xc0000080, %ecx
        rdmsr
        orl $0x900, %eax                        /* LME, NXE */
        wrmsr
        movl $0x80010033, %eax                  /* PG WP NE ET MP PE */
        movl %eax, %cr0
        ljmpl *(start_far - trampoline)

        .balign 8
start_gdt:
        .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
start_gdt_pointer:
        .word 23
        .long 0
start_far:
        .long 0
        .word 8
        .balign 8
trampoline_root:
        .long 0

        .code64
start_64:
        movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movabsq $start_core, %rax
        jmp *%rax
trampoline_end:

        .text
/* One core at a time takes the stack that smp.c put there; one that comes too late finds none. */
start_core:
        xorl %eax, %eax
        xchgq %rax, start_stack(%rip)
        testq %rax, %rax
        jz 1f
        movq %rax, %rsp
        xorl %ebp, %ebp
        pushq %rbp
        jmp cpu_started
1:      cli
        hlt
        jmp 1b
