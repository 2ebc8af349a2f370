/* SPDX-License-Identifier: Apache-2.0
 *
 * DHCP client (RFC 2131, figure 5): gets an address by our MAC, keeps it, and gives it up when it
 * must.
 *
 * Several servers may offer. The first offer with boot information (our vendor options, a boot file
 * or a next server) is taken at once; others wait DHCP_COLLECT_NS for a better one.
 */
#ifndef DUCKOS_NET_DHCP_H
#define DUCKOS_NET_DHCP_H

#include "net/dhcp_message.h"

struct net_interface;

#define DHCP_SERVER_PORT 67u
#define DHCP_CLIENT_PORT 68u
#define DHCP_COLLECT_NS 300000000ull
#define DHCP_RETRY_FIRST_S 4u /* doubles: 4, 8, 16, 32 (RFC 2131, 4.1), each +-1 s at random */
#define DHCP_RETRY_LAST_S 32u
#define DHCP_REQUEST_TRIES 4u  /* then the server is given up and all are asked again */
#define DHCP_RENEW_RETRY_S 60u /* 4.4.5: at least a minute between two tries to renew, but ... */
#define DHCP_RENEW_SHARE 16u   /* ... no more than this part of a short lease */
#define DHCP_NAK_PAUSE_NS 2000000000ull /* or a refusing server would be asked without end */
#define DHCP_VENDOR_SETTING 1u          /* sub-option of 43: text key=value */

enum dhcp_state {
    DHCP_OFF,
    DHCP_SELECTING,  /* asked all, collecting offers */
    DHCP_REQUESTING, /* took one offer, waiting for the acknowledgement */
    DHCP_BOUND,
    DHCP_RENEWING,  /* asking the server */
    DHCP_REBINDING, /* asking anyone */
};

struct dhcp {
    enum dhcp_state state;
    uint32_t transaction;
    uint64_t next_ns;  /* when dhcp_tick wants to run */
    uint64_t began_ns; /* of the asking */
    uint32_t retry_s;
    uint32_t tries;
    bool has_offer;
    struct dhcp_answer offer;             /* the best so far */
    struct dhcp_answer binding;           /* what we live on */
    uint64_t renew_ns, rebind_ns, end_ns; /* UINT64_MAX: never */
};

void dhcp_start(struct net_interface *interface);
void dhcp_tick(struct net_interface *interface); /* whenever now_ns >= next_ns, or more often */
void dhcp_receive(struct net_interface *interface, const uint8_t *message, size_t bytes);

/* The link was gone: ask whether the address is still ours here. */
void dhcp_confirm(struct net_interface *interface);

/* Implemented by net.c: an address was taken or renewed; or it is lost. */
void net_address_taken(struct net_interface *interface, const struct dhcp_answer *binding);
void net_address_lost(struct net_interface *interface, const char *why);

#endif
