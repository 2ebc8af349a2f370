/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything the duck core asks of the machine it runs on. A platform (duckd on Linux, duckos on
 * bare metal, the fake one of the unit tests) implements these functions; none of them may block
 * for longer than a few microseconds.
 */
#ifndef DUCK_PLATFORM_H
#define DUCK_PLATFORM_H

#include <duck/kernel_abi.h>
#include <duck/wire.h>
#include <stdbool.h>

/* Where a packet came from and where its answer goes. The core compares and stores it, nothing
 * else. */
struct plat_peer {
    uint32_t address; /* IPv4, network byte order */
    uint16_t port;    /* network byte order */
    uint16_t interface;
};

uint64_t plat_now_ns(void); /* monotonic */
/* Fit for keys: nobody may guess what comes. */
void plat_random(void *out, size_t bytes);

/* Room for the next packet (DUCK_WIRE_PACKET_BYTES_MAX bytes), and sending what was written there.
 * A packet that can't be sent is dropped: the protocol repairs loss. */
uint8_t *plat_packet_buffer(void);
void plat_packet_send(const struct plat_peer *to, size_t bytes);

/* Region memory: one block per enum duck_region, followed by DUCK_KERNEL_READ_AHEAD readable zeros.
 * The kernel region is zeroed when provided; weights may hold anything until they are written. The
 * two limits tell what could be granted if the region's present block, or the present session, were
 * given back. */
uint64_t plat_region_bytes_max(uint32_t region);
uint64_t plat_session_bytes_max(void); /* call buffers and scratch together */
uint8_t *plat_region_provide(uint32_t region, uint64_t bytes); /* NULL: not enough memory */
void plat_region_release(uint32_t region);

/* A compute session: the kernel region's ELF, entered by core_count cores, with the weights region
 * mapped read-only. */
struct plat_session_request {
    uint64_t elf_bytes;
    uint64_t weights_bytes;
    uint64_t calls_bytes;
    uint64_t scratch_bytes;
    uint32_t core_count;
    uint32_t run_mode; /* enum duck_kernel_run_mode */
};
/* Shared with the kernel, which may write any byte of it at any time: read once, then check. */
struct plat_session_memory {
    struct duck_kernel_mailbox *mailbox;
    uint8_t *calls;
};
/* Begins starting; the kernel's init_status tells when it is ready. On failure `text` says why. */
enum duck_status plat_session_start(const struct plat_session_request *request,
                                    struct plat_session_memory *memory,
                                    char text[DUCK_WIRE_TEXT_BYTES]);
/* True when the session is over; `verdict` then says why (status, fault_kind, core, address,
 * instruction, text). */
bool plat_session_ended(struct duck_fault *verdict);
/* mailbox->call_published or ->stop has changed. A one-shot kernel is entered by the first wake. */
void plat_session_wake(void);
/* When the kernel began and finished a call; zero where the platform does not know. */
void plat_session_call_times(uint32_t call_number, uint64_t *start_ns, uint64_t *end_ns);
void plat_session_stop(void); /* ends it whatever the kernel does; harmless when none runs */
/* Fill what is known of the present or last session; state, fault and zeros are there already. */
void plat_session_usage(struct duck_usage *usage);
/* Fill the last five counters, where the platform has them. */
void plat_stats(struct duck_stats *stats);

/* Fill what the machine knows of struct duck_info: platform, cpu_model, cpu_features, core_count,
 * memory_bytes, mtu_bytes, link_mbps, temperature_mc, mac_address, huge_pages, poll_policy,
 * nic_driver, flags. */
void plat_describe(uint16_t interface, struct duck_info *info);
uint32_t plat_cpu_features(void);
uint32_t plat_core_count(void);

/* Run work(argument) once on a core that has nothing to do; false: there is none. */
bool plat_spare_core_run(void (*work)(void *argument), void *argument);

void plat_log(const char *line, size_t bytes); /* one line, without the newline */
void plat_reboot(void);

#endif
