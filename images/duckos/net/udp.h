/* SPDX-License-Identifier: Apache-2.0
 *
 * UDP (RFC 768). Two ports are open: the duck's, and DHCP's while it asks.
 */
#ifndef DUCKOS_NET_UDP_H
#define DUCKOS_NET_UDP_H

#include "net/ipv4.h"

#define UDP_HEADER_BYTES 8u

enum udp_checksum {
    UDP_WITH_CHECKSUM,
    /* For what is authenticated: a checksum would cost a pass over 9 KB and prove less. RFC 768:
     * zero means that there is none. */
    UDP_WITHOUT_CHECKSUM,
};

void udp_receive(struct net_interface *interface, const struct ipv4_received *received);

uint8_t *udp_payload(struct net_interface *interface);

/* Ports in network byte order. `to_mac` as from ipv4_route. */
bool udp_send(struct net_interface *interface, const uint8_t to_mac[6], uint32_t destination,
              uint16_t source_port, uint16_t destination_port, size_t bytes,
              enum udp_checksum checksum);

#endif
