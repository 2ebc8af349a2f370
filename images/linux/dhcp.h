/* SPDX-License-Identifier: Apache-2.0
 *
 * DHCP packets (RFC 2131, RFC 2132): building and reading them. No input or output here.
 */
#ifndef DUCK_DHCP_H
#define DUCK_DHCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DHCP_PACKET_BYTES_MAX 1500
#define DHCP_SERVER_PORT 67
#define DHCP_CLIENT_PORT 68

enum dhcp_kind { DHCP_DISCOVER = 1, DHCP_OFFER = 2, DHCP_REQUEST = 3, DHCP_ACK = 5, DHCP_NAK = 6 };

/* What a server said. Addresses in network byte order, 0 = not said. */
struct dhcp_answer {
    uint8_t kind; /* enum dhcp_kind */
    uint32_t address, server, mask, boot_server;
    uint32_t lease_s;
    uint16_t mtu;
    char host_name[64];
};

/* What a client asks. `address` and `server` as RFC 2131 table 5 wants them for the state. */
struct dhcp_question {
    enum dhcp_kind kind;
    uint8_t mac[6];
    uint32_t xid;
    uint16_t seconds;
    uint32_t ours;    /* the address we have and use (renewing), else 0 */
    uint32_t address; /* the address we want, else 0 */
    uint32_t server;  /* the server we chose, else 0 */
};

/* Writes a packet; returns its size. */
size_t dhcp_build(uint8_t out[DHCP_PACKET_BYTES_MAX], const struct dhcp_question *question);

/* False for anything that is no whole answer to (xid, mac). */
bool dhcp_parse(const uint8_t *packet, size_t bytes, uint32_t xid, const uint8_t mac[6],
                struct dhcp_answer *out);

#endif
