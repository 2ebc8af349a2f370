/* SPDX-License-Identifier: Apache-2.0
 *
 * IPv4 (RFC 791, RFC 1122). Fragments are dropped: the protocol sizes its packets by the MTU, and
 * reassembly would be memory that anyone can fill.
 */
#ifndef DUCKOS_NET_IPV4_H
#define DUCKOS_NET_IPV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_interface;

#define IPV4_HEADER_BYTES 20u /* of what we send: no options */
#define IPV4_ICMP 1u
#define IPV4_UDP 17u

/* A datagram on its way up: `bytes` lie at `payload`. */
struct ipv4_received {
    uint32_t source, destination; /* network byte order */
    bool is_broadcast;
    uint8_t *payload;
    size_t bytes;
    const uint8_t *from_mac;
};

void ipv4_receive(struct net_interface *interface, const uint8_t from[6], uint8_t *packet,
                  size_t bytes);

/* Room for the payload of the next datagram; the same until it is sent. */
uint8_t *ipv4_payload(struct net_interface *interface);

/* The MAC that leads to `destination`: a broadcast, a neighbour, or the router. NULL: not known
 * yet, a question was sent, and the payload is lost (see arp_find). */
const uint8_t *ipv4_route(struct net_interface *interface, uint32_t destination);

bool ipv4_send(struct net_interface *interface, const uint8_t to_mac[6], uint32_t destination,
               uint8_t protocol, size_t payload_bytes);

#endif
