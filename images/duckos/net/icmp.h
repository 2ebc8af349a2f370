/* SPDX-License-Identifier: Apache-2.0
 *
 * ICMP (RFC 792): answers echo requests, nothing else. No redirect, no unreachable is believed.
 */
#ifndef DUCKOS_NET_ICMP_H
#define DUCKOS_NET_ICMP_H

#include "net/ipv4.h"

#define ICMP_REPLIES_PER_SECOND_MAX 1000u /* a flood must not keep calls waiting */

void icmp_receive(struct net_interface *interface, const struct ipv4_received *received);

#endif
