/* SPDX-License-Identifier: Apache-2.0
 *
 * The end: say what broke, with registers, back-trace and the log's tail, and reboot.
 */
#ifndef DUCKOS_PANIC_H
#define DUCKOS_PANIC_H

#include <stddef.h>
#include <stdint.h>

struct trap_frame;

/* A broken invariant: panic("what: values"). Stops the other cores, logs, sends, reboots. */
_Noreturn void panic(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for an exception inside the OS. */
_Noreturn void panic_trap(const struct trap_frame *frame);

/* Who sends a panic's text away: the network fills this in when it can send. Called at most once,
 * with interrupts off and every other core stopped; must not wait, allocate or panic. */
void panic_sender(void (*send)(const char *text, size_t bytes));

#endif
