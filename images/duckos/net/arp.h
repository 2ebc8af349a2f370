/* SPDX-License-Identifier: Apache-2.0
 *
 * Address resolution (RFC 826), and the neighbours it finds. A neighbour's slot is the last byte of
 * its address: in a /24 no two hosts share one.
 *
 * Anyone can claim any address, so a claim moves a neighbour to another MAC only when the old one
 * has been silent for ARP_HOLD_NS; whoever talks to us all the time can't be pushed out. (What
 * travels is authenticated anyway: a forged claim can cost packets, never trust.)
 */
#ifndef DUCKOS_NET_ARP_H
#define DUCKOS_NET_ARP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_interface;

#define ARP_NEIGHBOUR_COUNT 256u
#define ARP_HOLD_NS 5000000000ull   /* a neighbour not heard for so long may be replaced */
#define ARP_FRESH_NS 60000000000ull /* older: asked again, while the old MAC is still used */
#define ARP_ASK_NS 1000000000ull    /* at most one question per neighbour in this time */

struct arp_neighbour {
    uint32_t address; /* network byte order; 0 = empty */
    uint8_t mac[6];
    bool known; /* mac is valid; otherwise only asked for */
    uint64_t heard_ns, asked_ns;
};
struct arp_cache {
    struct arp_neighbour neighbour[ARP_NEIGHBOUR_COUNT];
    uint32_t stale; /* a known neighbour that arp_ask_stale asks for; 0 = none */
};

void arp_receive(struct net_interface *interface, const uint8_t from[6], const uint8_t *packet,
                 size_t bytes);

/* A checked packet came from here: remember the way back. */
void arp_heard(struct net_interface *interface, uint32_t address, const uint8_t mac[6]);

/* The MAC for an address on our link. NULL: not known, and a question has been sent (at most one a
 * second) from the buffer that ethernet_payload lent, so what was written there is lost. A MAC: the
 * lent buffer is untouched; if it is an old one, arp_ask_stale asks. */
const uint8_t *arp_find(struct net_interface *interface, uint32_t address);
/* Only while no buffer is lent. */
void arp_ask_stale(struct net_interface *interface);

void arp_ask(struct net_interface *interface, uint32_t address);
void arp_announce(
    struct net_interface *interface); /* tell the link about our address (RFC 5227, 2.3) */
void arp_forget(struct net_interface *interface);

#endif
