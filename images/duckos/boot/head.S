/* SPDX-License-Identifier: Apache-2.0
 *
 * The first two pages of duckos.img: four file formats in one, and the way from real mode or
 * protected mode to long mode. File offset == address - image_start everywhere.
 *
 *   0x0000  'MZ'; entry of a BIOS network boot program (loaded to 0000:7C00)
 *   0x003c  offset of the PE header at 0x80: UEFI application, sections .text (RX) and .data (RW)
 *   0x01f1  Linux setup header (boot protocol 2.12): 7 setup sectors, so that the protected-mode
 *           part begins at 0x1000 and lies at 1 MB
 *   0x1000  32-bit entry of bzImage and multiboot; the multiboot header follows
 *   0x2000  config block (boot/config_block.h)
 *
 *   network boot program / bzImage setup -> real_mode: memory map, A20 -> protected_mode
 *   -> entry_32 (also: 32-bit Linux loaders with boot_params, multiboot) -> entry_64 -> early_entry
 *   UEFI firmware -> efi_entry -> efi_start (boot/efi.c) -> early_entry
 *
 * Sources: Linux x86 boot protocol, Multiboot 0.6.96, PE/COFF, PXE 2.1, UEFI 2.10, SDM volume 3.
 */
#include "boot/config_block.h"

#define IMAGE_AT 0x100000       /* where entry_32 lies when nobody relocated us */
#define BOOT_PARAMS 0x1000      /* our own, in low memory; layout of Linux' boot_params */
#define E820_COUNT 0x1e8
#define E820_TABLE 0x2d0
#define E820_MAX 128
#define E820_BYTES 20
#define MULTIBOOT_LOADED 0x2badb002

        .section .head, "ax"
        .code16
        .globl image_start
image_start:
        .byte 'M', 'Z'          /* dec %bp; pop %dx: harmless */
        jmp network_boot
        .org 0x3c
        .long pe_header - image_start

network_boot:                   /* PXE 2.1, 4.4.5: 0000:7C00, stack of the ROM */
        cli
        movl $0x7c00, %ebx
        ljmp $0x7c0, $(real_mode - image_start)

        .org 0x80
pe_header:
        .ascii "PE\0\0"
        .word 0x8664, 2         /* x86-64, two sections */
        .long 0, 0, 0
        .word optional_end - optional_start
        .word 0x0206            /* executable, no line numbers, no debug data */
optional_start:
        .word 0x20b             /* PE32+ */
        .byte 1, 0
        .long _text_size, _data_file_size, _data_zero_size
        .long efi_entry - image_start
        .long 0x1000
        .quad 0
        .long 0x1000, 0x200     /* alignment in memory and in the file */
        .word 0, 0, 0, 0, 0, 0
        .long 0
        .long _image_size, 0x1000
        .long 0
        .word 10                /* subsystem: EFI application */
        .word 0x0100            /* NX compatible */
        .quad 0, 0, 0, 0
        .long 0
        .long 6                 /* directories, all empty: position-independent by construction */
        .quad 0, 0, 0, 0, 0, 0
optional_end:
        .ascii ".text\0\0\0"
        .long _text_size, 0x1000, _text_size, 0x1000
        .long 0, 0
        .word 0, 0
        .long 0x60000020        /* code, readable, executable */
        .ascii ".data\0\0\0"
        .long _data_size, _data_offset, _data_file_size, _data_offset
        .long 0, 0
        .word 0, 0
        .long 0xc0000040        /* data, readable, writable */

        .org 0x1f1              /* Linux setup header */
        .byte 7                 /* setup_sects */
        .word 0
        .long _system_paragraphs
        .word 0, 0, 0
        .word 0xaa55
        .byte 0xeb, linux_setup - 1f
1:      .ascii "HdrS"           /* 0x202 */
        .word 0x020c
        .long 0
        .word 0x1000
        .word 0
        .byte 0                 /* 0x210 type_of_loader, by the loader */
        .byte 1                 /* LOADED_HIGH */
        .word 0x8000
        .long IMAGE_AT          /* code32_start */
        .long 0, 0
        .long 0
        .word 0x7000            /* heap_end_ptr */
        .byte 0, 0
        .long 0                 /* 0x228 cmd_line_ptr, by the loader */
        .long 0x7fffffff
        .long 0x200000          /* kernel_alignment */
        .byte 0                 /* not relocatable: entry_32 expects 1 MB */
        .byte 21
        .word 0                 /* xloadflags: no 64-bit entry */
        .long 1023              /* cmdline_size */
        .long 0
        .quad 0
        .long 0, 0
        .quad 0
        .quad IMAGE_AT          /* pref_address */
        .long _image_size       /* init_size */
        .long 0
linux_setup:                    /* CS = setup segment + 0x20, DS = setup segment */
        cli
        movw %ds, %ax
        movzwl %ax, %ebx
        shll $4, %ebx
        pushw %ax
        pushw $(real_mode - image_start)
        lretw

/* CS:0 is the head of the image, EBX its linear address. */
real_mode:
        xorw %ax, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movw $0x7c00, %sp
        cld
        pushl %ebx
        movw $BOOT_PARAMS, %di
        movw $2048, %cx
        rep stosw
        movl %cs:0x228, %eax    /* a network boot program has none: 0 in the file */
        movl %eax, BOOT_PARAMS + 0x228
        movb $0x0f, %ah         /* which video mode? 3 = text, as every BIOS leaves it */
        int $0x10
        andb $0x7f, %al         /* the top bit: screen not cleared */
        movb %al, BOOT_PARAMS + 0x06
        movb $1, BOOT_PARAMS + 0x0f
        movw $(BOOT_PARAMS + E820_TABLE), %di
        xorl %ebx, %ebx
e820_next:                      /* ACPI 15.1: INT 15h, E820h */
        movl $0xe820, %eax
        movl $0x534d4150, %edx  /* SMAP */
        movl $E820_BYTES, %ecx
        int $0x15
        jc e820_done
        cmpl $0x534d4150, %eax
        jne e820_done
        incb BOOT_PARAMS + E820_COUNT
        addw $E820_BYTES, %di
        cmpb $E820_MAX, BOOT_PARAMS + E820_COUNT
        je e820_done
        testl %ebx, %ebx
        jnz e820_next
e820_done:
        movw $0x2401, %ax       /* A20 by the BIOS, then by the fast gate */
        int $0x15
        cli
        inb $0x92, %al
        orb $2, %al
        andb $0xfe, %al
        outb %al, $0x92
        popl %ebx
        leal (gdt_16 - image_start)(%ebx), %eax
        movl %eax, %cs:(gdt_16_pointer - image_start + 2)
        leal (protected_mode - image_start)(%ebx), %eax
        movl %eax, %cs:(protected_mode_far - image_start)
        lgdtl %cs:(gdt_16_pointer - image_start)
        movl %cr0, %eax
        orb $1, %al
        movl %eax, %cr0
        ljmpl *%cs:(protected_mode_far - image_start)

        .balign 8
gdt_16: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_16_pointer:
        .word 23
        .long 0
protected_mode_far:
        .long 0
        .word 8

        .code32
protected_mode:
        movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        cmpl $0x7c00, %ebx
        jne 1f
        leal 0x1000(%ebx), %esi /* a network boot program brings the whole file: copy it to 1 MB */
        movl $IMAGE_AT, %edi
        movl $_system_words, %ecx
        cld
        rep movsl
1:      movl $BOOT_PARAMS, %esi
        xorl %eax, %eax
        movl $IMAGE_AT, %ecx
        jmp *%ecx

        .org 0x1000
/* EAX = MULTIBOOT_LOADED and EBX -> multiboot information, or ESI -> boot_params. */
        .globl entry_32
entry_32:
        jmp 1f
        .balign 8
multiboot_header:               /* flags: memory map wanted, the addresses below are right */
        .long 0x1badb002, 0x00010002, -(0x1badb002 + 0x00010002)
        .long multiboot_header - image_start + IMAGE_AT - 0x1000
        .long IMAGE_AT, _multiboot_load_end, _multiboot_memory_end, IMAGE_AT
1:      cli
        cld
        movl $(IMAGE_AT - 0x1000), %ebp         /* where image_start would be */
        xorl %edi, %edi                         /* HANDOVER_LINUX */
        cmpl $MULTIBOOT_LOADED, %eax
        jne 2f
        incl %edi                               /* HANDOVER_MULTIBOOT */
        movl %ebx, %esi
2:      movl %edi, (boot_kind - image_start)(%ebp)
        movl %esi, (boot_pointer - image_start)(%ebp)
        leal (boot_stack_top - image_start)(%ebp), %esp

        /* Four GiB, identity, pages of 2 MiB: enough until early_entry builds the real tables. */
        leal (boot_tables - image_start)(%ebp), %ebx
        movl %ebx, %edi
        movl $(6 * 4096 / 4), %ecx
        xorl %eax, %eax
        rep stosl
        leal 0x1003(%ebx), %eax
        movl %eax, (%ebx)
        leal 0x2003(%ebx), %eax
        leal 0x1000(%ebx), %edi
        movl $4, %ecx
3:      movl %eax, (%edi)
        addl $8, %edi
        addl $0x1000, %eax
        loop 3b
        leal 0x2000(%ebx), %edi
        movl $0x83, %eax
        movl $2048, %ecx
4:      movl %eax, (%edi)
        addl $0x200000, %eax
        addl $8, %edi
        loop 4b

        leal (gdt_32 - image_start)(%ebp), %eax
        movl %eax, (gdt_32_pointer - image_start + 2)(%ebp)
        lgdtl (gdt_32_pointer - image_start)(%ebp)
        movl %cr4, %eax
        orl $0x20, %eax                         /* PAE */
        movl %eax, %cr4
        movl %ebx, %cr3
        movl $0xc0000080, %ecx
        rdmsr
        orl $0x100, %eax                        /* LME */
        wrmsr
        movl $0x80000033, %eax                  /* PG NE ET MP PE */
        movl %eax, %cr0
        leal (entry_64 - image_start)(%ebp), %eax
        pushl $0x18
        pushl %eax
        lretl

        .code64
entry_64:
        movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        xorl %eax, %eax
        movw %ax, %fs
        movw %ax, %gs
        leaq boot_stack_top(%rip), %rsp
        call zero_bss
        movl boot_kind(%rip), %edi
        movl boot_pointer(%rip), %esi
        leaq image_start(%rip), %rdx
        xorl %ebp, %ebp
        call early_entry
        ud2

zero_bss:
        leaq _bss_start(%rip), %rdi
        leaq _bss_end(%rip), %rcx
        subq %rdi, %rcx
        xorl %eax, %eax
        rep stosb
        ret

/* UEFI 2.10, 4.1: RCX = image handle, RDX = system table, at any address, identity-mapped. */
        .globl efi_entry
efi_entry:
        pushq %rdi
        pushq %rsi
        subq $40, %rsp
        movq %rcx, %r8
        movq %rdx, %r9
        call zero_bss
        movq %r8, %rdi
        movq %r9, %rsi
        call efi_start          /* returns only when boot services could not be left */
        addq $40, %rsp
        popq %rsi
        popq %rdi
        ret

/* After ExitBootServices: a stack of our own, then the way that all others go. */
        .globl efi_leave
efi_leave:
        cli
        cld
        leaq boot_stack_top(%rip), %rsp
        movl $2, %edi           /* HANDOVER_EFI */
        xorl %esi, %esi
        leaq image_start(%rip), %rdx
        xorl %ebp, %ebp
        call early_entry
        ud2

/* early_jump(root, stack, main): the new page tables, the stack and main at its linked address.
 * This page is mapped at its physical address as well until main has removed that. */
        .globl early_jump
early_jump:
        movq %rdi, %cr3
        movq %rsi, %rsp
        xorl %ebp, %ebp
        pushq %rbp              /* the end of every back-trace */
        jmp *%rdx

        .balign 8
gdt_32: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x00af9a000000ffff

        .org CONFIG_BLOCK_OFFSET
        .globl config_block
config_block:
        .ascii "DUCKCFG1"
        .org CONFIG_BLOCK_OFFSET + CONFIG_BLOCK_BYTES

        .section .data.head, "aw"
        .balign 8
gdt_32_pointer:
        .word 31
        .quad 0
        .balign 4
boot_kind:
        .long 0
boot_pointer:
        .long 0

/* Not part of bss: in use while bss is zeroed. */
        .section .boot_space, "aw", @nobits
        .balign 4096
        .globl boot_tables
boot_tables:
        .skip 8 * 4096          /* BIOS uses six of them; boot/early.c all */
        .globl boot_stack_top
        .skip 32 << 10
boot_stack_top:
