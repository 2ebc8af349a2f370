/* SPDX-License-Identifier: Apache-2.0
 *
 * platform.h on bare metal, the short part: time, packets, what the machine is, log, reboot. Memory
 * is in session/memory.c, sessions in session/session.c, random bytes in platform_random.c.
 */
#include "platform.h"

#include "acpi/acpi.h"
#include "console/console.h"
#include "cpu/cpu.h"
#include "duck_main.h"
#include "memory/memory.h"
#include "net/net.h"
#include "session/session.h"
#include "time/timer.h"

#include <string.h>

#define FLUSH_US_MAX 10000u /* the answer to REBOOT leaves the NIC before the machine does */

uint64_t plat_now_ns(void) { return timer_now_ns(); }

/* ---- packets --------------------------------------------------------------------------------- */

static_assert(NET_UDP_PAYLOAD_BYTES_MAX >= DUCK_WIRE_PACKET_BYTES_MAX, "a packet fits a datagram");

uint8_t *plat_packet_buffer(void) { return net_udp_buffer(); }

void plat_packet_send(const struct plat_peer *to, size_t bytes) {
    const struct net_peer peer = {.address = to->address, .port = to->port};
    /* A full ring drops it, and net's counters say so; the protocol repairs loss. */
    if (net_udp_send(&peer, bytes)) account_sent();
}

/* ---- the machine ----------------------------------------------------------------------------- */

uint32_t plat_core_count(void) { return cpu_count(); }

/* A session has all cores for itself. */
bool plat_spare_core_run(void (*work)(void *argument), void *argument) {
    if (session.exists) return false;
    for (uint32_t cpu = 1; cpu < cpu_count(); cpu++)
        if (cpu_idle(cpu) && cpu_run(cpu, work, argument)) return true;
    return false;
}

uint32_t plat_cpu_features(void) {
    const struct cpu_features *cpu = cpu_features();
    uint32_t features = 0;
    if (cpu->avx2) features |= DUCK_CPU_AVX2;
    if (cpu->fma) features |= DUCK_CPU_FMA;
    if (cpu->f16c) features |= DUCK_CPU_F16C;
    if (cpu->aes) features |= DUCK_CPU_AESNI;
    if (cpu->pclmul) features |= DUCK_CPU_PCLMUL;
    if (cpu->vnni) features |= DUCK_CPU_AVXVNNI;
    return features;
}

void plat_describe(uint16_t interface, struct duck_info *info) {
    const struct net_description *net = net_describe();
    (void)interface; /* a duck has one NIC */
    info->platform = DUCK_PLATFORM_DUCKOS;
    memcpy(info->cpu_model, cpu_features()->model, sizeof info->cpu_model);
    info->cpu_features = plat_cpu_features();
    info->core_count = cpu_count();
    info->memory_bytes = memory_total_bytes();
    info->temperature_mc = cpu_temperature_mc();
    info->huge_pages = 1;
    info->poll_policy = cpu_waits_by_halting() ? DUCK_POLL_BLOCK : DUCK_POLL_SPIN;
    info->mtu_bytes = net->mtu_bytes;
    info->link_mbps = net->link_mbps;
    memcpy(info->mac_address, net->mac, sizeof info->mac_address);
    memcpy(info->nic_driver, net->driver, sizeof info->nic_driver);
    if (net->unproven) info->flags |= DUCK_INFO_NIC_UNPROVEN;
}

/* ---- log and reboot -------------------------------------------------------------------------- */

/* The core's own lines go to the console; the console's lines go to the core's log, so that LOG
 * tells both; each way stops where the other began. Only core 0 may touch the core's state: lines
 * of other CPUs stay on the console. */
static struct core_log *followed;
static enum { FROM_NOBODY, FROM_CORE, FROM_CONSOLE } line_comes;

void plat_log(const char *line, size_t bytes) {
    if (line_comes == FROM_CONSOLE) return;
    line_comes = FROM_CORE;
    klog_line(line, bytes);
    line_comes = FROM_NOBODY;
}

static void follow(const char *line, size_t bytes) {
    if (cpu_index() != 0 || line_comes == FROM_CORE) return;
    line_comes = FROM_CONSOLE;
    log_line(followed, line, bytes);
    line_comes = FROM_NOBODY;
}

void platform_follow_console(struct core_log *log) {
    followed = log;
    console_follow(follow);
}

void plat_reboot(void) {
    klog("rebooting");
    net_flush(FLUSH_US_MAX);
    net_stop();
    acpi_reset();
}
