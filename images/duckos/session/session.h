/* SPDX-License-Identifier: Apache-2.0
 *
 * The compute session of the bare-metal duck: one at a time, its memory, its address space, and the
 * cores that are in it. session.c starts and ends it, cores.c runs the cores, memory.c holds the
 * regions. Only core 0 (the main loop) calls the functions of platform.h.
 */
#ifndef DUCKOS_SESSION_H
#define DUCKOS_SESSION_H

#include "cpu/cpu.h"
#include "memory/memory.h"
#include "session/areas.h"
#include "session/layout.h"
#include "session/ring.h"
#include "session/stub.h"

#define SESSION_SLICE_NS 1000000ull         /* ring 3 on core 0, then the network gets its turn */
#define SESSION_HALT_NS 50000000ull         /* a halted core looks again even if nobody wakes it */
#define SESSION_STOP_LIMIT_NS 5000000000ull /* until every core has left ring 3 */
#define SESSION_STOP_AGAIN_NS 1000000ull    /* between two requests to leave */

enum session_core_state {
    SESSION_CORE_READY,   /* may go on in ring 3 */
    SESSION_CORE_WAITING, /* core 0 only: until *word != seen */
    SESSION_CORE_DONE     /* its entry returned, or the session ended */
};

struct session_core {
    struct ring ring;
    uint32_t index; /* in the session */
    uint32_t cpu;
    uint32_t state;    /* owner: the core itself */
    uint32_t sleeping; /* 1: waits in the OS, a wake is wanted */
    const uint32_t *word;
    uint32_t seen;
    uint64_t switches;     /* entries into ring 3 */
    uint64_t interrupts;   /* that hit it in ring 3 */
    uint64_t instructions; /* retired in ring 3, when it has left */
};

struct session {
    bool exists;
    bool entered;
    uint32_t run_mode; /* enum duck_kernel_run_mode */
    uint32_t core_count;
    uint32_t ended;    /* 1: every core leaves ring 3 */
    uint32_t returned; /* cores whose entry has returned */
    uint32_t verdict_claimed, verdict_ready;
    bool verdict_told; /* the core knows it */
    struct duck_fault verdict;
    struct duck_kernel_mailbox *mailbox;
    struct stub_shared *shared;
    uint64_t calls_bytes;
    uint64_t entered_cycles, left_cycles;
    uint32_t seen_completed; /* by cores_are_quiet */
    struct paging_space space;
    struct layout layout;
    struct session_core core[CPU_MAX];
};

extern struct session session;

/* ---- cores.c --------------------------------------------------------------------------------- */
void cores_init(void);      /* every CPU learns where SYSCALL leads; once */
bool cores_enter(void);     /* all of the session's cores; false: one is not idle */
bool cores_step(void);      /* core 0 in ring 3 for a while; false: it has no work */
bool cores_are_quiet(void); /* nothing for the main loop since the last look; interrupts off */
void cores_leave(void);     /* returns when none is in ring 3 any more */
void cores_wake(void);      /* those that wait in the OS look again */
void cores_end(const struct duck_fault *verdict); /* on any core; the first verdict wins */

/* ---- memory.c -------------------------------------------------------------------------------- */
void regions_init(uint64_t limit_bytes); /* 0 = all of the window */
struct areas *regions_areas(void);
uint8_t *regions_kernel(uint64_t *bytes); /* the ELF; NULL without one */
void regions_clear(uint8_t *memory, uint64_t bytes);
/* Bytes of the pages that hold something else than zeros. */
uint64_t regions_used_bytes(uint64_t offset, uint64_t bytes);

/* ---- pmu.c ----------------------------------------------------------------------------------- */
bool pmu_present(void); /* counts instructions; no emulator has it */
void pmu_start(void);   /* on this core: count those of ring 3 from zero */
uint64_t pmu_instructions(void);

/* ---- account.c ------------------------------------------------------------------------------- */
void account_packet(void);    /* a datagram is in memory and is about to be handled */
void account_published(void); /* the call in it was published */
void account_sent(void);      /* a datagram was queued in the NIC */
void account_session_begins(void);
void account_session_over(void); /* the session's counters are added up */

#endif
