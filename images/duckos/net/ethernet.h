/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernet II frames (IEEE 802.3, 3.2.6), untagged.
 */
#ifndef DUCKOS_NET_ETHERNET_H
#define DUCKOS_NET_ETHERNET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_interface;

#define ETHERNET_HEADER_BYTES 14u
#define ETHERNET_TYPE_IPV4 0x0800u
#define ETHERNET_TYPE_ARP 0x0806u

extern const uint8_t ethernet_broadcast[6];

void ethernet_receive(struct net_interface *interface, uint8_t *frame, size_t size);

/* Room for a frame's payload (NIC_MTU_JUMBO bytes): the same until ethernet_send. Never NULL. */
uint8_t *ethernet_payload(struct net_interface *interface);

/* Send what was written there. False: dropped and counted. */
bool ethernet_send(struct net_interface *interface, const uint8_t to[6], uint16_t type,
                   size_t payload_bytes);

#endif
