/* SPDX-License-Identifier: Apache-2.0 */
#include "panic/panic.h"

#include "acpi/acpi.h"
#include "boot/options.h"
#include "console/console.h"
#include "console/format.h"
#include "cpu/cpu.h"
#include "cpu/trap.h"
#include "memory/image.h"
#include "memory/memory.h"
#include "panic/symbols.h"
#include "time/timer.h"

#include <stdarg.h>
#include <string.h>

static void (*sender)(const char *text, size_t bytes);
static uint32_t panic_core = UINT32_MAX;

void panic_sender(void (*send)(const char *text, size_t bytes)) { sender = send; }

/* One panic is reported. Another core's waits for the reboot; one in the report itself ends it. */
static void enter(void) {
    uint32_t nobody = UINT32_MAX, self = cpu_index();
    interrupts_off();
    if (!__atomic_compare_exchange_n(&panic_core, &nobody, self, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        if (nobody == self) acpi_reset();
        for (;;) __asm__ volatile("cli; hlt");
    }
    cpu_halt_others();
    console_break_lock();
}

static void say_place(uint64_t address) {
    uint64_t inside = 0;
    const char *name = symbol_of(address, &inside);
    if (name == NULL)
        klog("panic: at %lx", address);
    else
        klog("panic: at %lx %s+%lu", address, name, inside);
}

/* Frames of -fno-omit-frame-pointer: [rbp] = caller's rbp, [rbp + 8] = return address. */
static void trace(uint64_t rip, uint64_t rbp) {
    say_place(rip);
    for (uint32_t i = 0; i < PANIC_TRACE_DEPTH && rbp != 0 && rbp % 8 == 0; i++) {
        uint64_t physical;
        uint32_t flags;
        struct paging_space *space = paging_kernel_space();
        if (!paging_look(space, rbp, &physical, &flags) ||
            !paging_look(space, rbp + 15, &physical, &flags))
            break;
        const uint64_t *frame = (const uint64_t *)rbp;
        uint64_t inside;
        if (symbol_of(frame[1], &inside) == NULL) break;
        say_place(frame[1]);
        if (frame[0] <= rbp) break;
        rbp = frame[0];
    }
}

static uint64_t seconds_to_reboot(void) {
    return options_number("panic_seconds", PANIC_REBOOT_NS / 1000000000ull);
}

static _Noreturn void leave(void) {
    static char text[PANIC_TAIL_BYTES];
    uint64_t seconds = seconds_to_reboot();
    klog("panic: reboot in %zu s", (size_t)seconds);
    size_t bytes = console_tail(text, sizeof text);
    if (sender != NULL) sender(text, bytes);
    timer_wait_ns(seconds * 1000000000ull);
    acpi_reset();
}

_Noreturn void panic(const char *format, ...) {
    enter();
    char text[CONSOLE_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    klog("PANIC on core %u: %s", cpu_index(), text);
    trace((uint64_t)__builtin_return_address(0), (uint64_t)__builtin_frame_address(0));
    leave();
}

_Noreturn void panic_trap(const struct trap_frame *f) {
    enter();
    uint64_t cr2;
    __asm__ volatile("movq %%cr2, %0" : "=r"(cr2));
    klog("PANIC on core %u: %s (vector %lu, error %lx) at %lx, address %lx", cpu_index(),
         trap_name(f->vector), f->vector, f->error, f->rip, cr2);
    klog("panic: rax %lx rbx %lx rcx %lx rdx %lx rsi %lx rdi %lx", f->rax, f->rbx, f->rcx, f->rdx,
         f->rsi, f->rdi);
    klog("panic: rbp %lx rsp %lx r8 %lx r9 %lx r10 %lx r11 %lx", f->rbp, f->rsp, f->r8, f->r9,
         f->r10, f->r11);
    klog("panic: r12 %lx r13 %lx r14 %lx r15 %lx cs %lx flags %lx", f->r12, f->r13, f->r14, f->r15,
         f->cs, f->rflags);
    trace(f->rip, f->rbp);
    leave();
}
