/* SPDX-License-Identifier: Apache-2.0
 *
 * A panic's text leaves the duck as syslog datagrams (RFC 5426, port 514) to the host, so that a rack
 * without screens still says why it went down.
 */
#ifndef DUCKOS_NET_REPORT_H
#define DUCKOS_NET_REPORT_H

struct net_interface;

#define REPORT_PORT 514u
#define REPORT_BYTES_MAX 1400u

/* Panics are sent through this interface from now on. */
void report_through(struct net_interface *interface);

#endif
