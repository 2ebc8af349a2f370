/* SPDX-License-Identifier: Apache-2.0
 *
 * One NIC with its addresses: what all protocol files work on. Only duckos' network includes this;
 * everyone else includes net.h.
 *
 * A received frame goes down this list of calls, each of which checks its own header and nothing
 * else:
 *   ethernet_receive -> arp_receive
 *                    -> ipv4_receive -> icmp_receive
 *                                    -> udp_receive -> dhcp_receive, or the handler of net_poll
 */
#ifndef DUCKOS_NET_INTERFACE_H
#define DUCKOS_NET_INTERFACE_H

#include "net/arp.h"
#include "net/dhcp.h"
#include "net/health.h"
#include "net/net.h"
#include "nic/nic.h"

struct net_interface {
    struct nic *nic;
    uint8_t mac[6];
    uint16_t udp_port; /* network byte order: the port of the handler */
    uint32_t address;  /* network byte order; 0 = none yet */
    uint32_t netmask;
    uint32_t router;    /* 0 = none */
    uint32_t mtu_bytes; /* what may be sent */
    net_udp_handler *handler;
    uint64_t now_ns; /* the time of this round */
    struct arp_cache arp;
    struct dhcp dhcp;
    struct health health;
    bool is_last_hope; /* no other NIC could take over */
    struct net_counters count;
    uint8_t *sending; /* the frame buffer that is lent out, or NULL */
    uint8_t *spare;   /* stands in while the NIC's ring is full */
    uint64_t icmp_second;
    uint32_t icmp_replies;
};

/* The address that every host of our subnet hears. */
static inline uint32_t subnet_broadcast(const struct net_interface *interface) {
    return interface->address | ~interface->netmask;
}
static inline bool is_on_link(const struct net_interface *interface, uint32_t address) {
    return interface->address != 0 && ((address ^ interface->address) & interface->netmask) == 0;
}
#define ADDRESS_BROADCAST 0xffffffffu

/* An address that can belong to one host: not 0/8, not loopback, not multicast or above. */
static inline bool is_host_address(uint32_t address) {
    uint8_t first = (uint8_t)address;
    return first != 0 && first != 127 && first < 224;
}

#endif
