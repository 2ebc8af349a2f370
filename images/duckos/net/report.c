/* SPDX-License-Identifier: Apache-2.0 */
#include "net/report.h"

#include "boot/options.h"
#include "net/bytes.h"
#include "net/ethernet.h"
#include "net/interface.h"
#include "net/udp.h"
#include "panic/panic.h"

static struct net_interface *through;

/* RFC 5424, 6.2.1: facility 0 (kernel), severity 2 (critical). */
static const char prefix[] = "<2>duckos: ";
#define PREFIX_BYTES (sizeof prefix - 1)

static uint32_t receiver(void) {
    uint8_t host[4];
    if (options_address("host", host)) return load_address(host);
    if (through->dhcp.binding.next_server != 0) return through->dhcp.binding.next_server;
    return through->dhcp.binding.server;
}

/* Must not wait: without a known MAC the frame is broadcast to the domain. */
static void send(const char *text, size_t bytes) {
    if (through == NULL || through->address == 0 || through->nic->broken) return;
    uint32_t to = receiver();
    if (to == 0) to = subnet_broadcast(through);
    through->sending = NULL; /* a half-written datagram is given up */
    const uint8_t *mac = ipv4_route(through, to);
    if (mac == NULL) mac = ethernet_broadcast;
    if (bytes > REPORT_BYTES_MAX) bytes = REPORT_BYTES_MAX;
    uint8_t *payload = udp_payload(through);
    copy_bytes(payload, (const uint8_t *)prefix, PREFIX_BYTES);
    copy_bytes(payload + PREFIX_BYTES, (const uint8_t *)text, bytes);
    (void)udp_send(through, mac, to, swap16(REPORT_PORT), swap16(REPORT_PORT), PREFIX_BYTES + bytes,
                   UDP_WITH_CHECKSUM);
}

void report_through(struct net_interface *interface) {
    through = interface;
    panic_sender(send);
}
