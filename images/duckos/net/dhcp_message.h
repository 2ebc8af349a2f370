/* SPDX-License-Identifier: Apache-2.0
 *
 * DHCP messages (RFC 2131, RFC 2132): bytes in, facts out, and questions into bytes. Pure: knows no
 * time and no interface.
 */
#ifndef DUCKOS_NET_DHCP_MESSAGE_H
#define DUCKOS_NET_DHCP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DHCP_MESSAGE_BYTES_MIN 300u /* RFC 1542, 2.1: shorter ones are dropped by some relays */
#define DHCP_MESSAGE_BYTES_MAX 548u /* of the questions that we write */
#define DHCP_NAME_BYTES 64u
#define DHCP_VENDOR_BYTES 255u
#define DHCP_INFINITE UINT32_MAX
#define DHCP_VENDOR_CLASS "duckos" /* option 60: servers recognise a running duck by it */

enum dhcp_type { /* RFC 2132, 9.6 */
                 DHCP_NONE = 0,
                 DHCP_DISCOVER = 1,
                 DHCP_OFFER = 2,
                 DHCP_REQUEST = 3,
                 DHCP_DECLINE = 4,
                 DHCP_ACK = 5,
                 DHCP_NAK = 6,
                 DHCP_RELEASE = 7,
};

/* What a server said. Addresses in network byte order, 0 = not said; times in seconds. */
struct dhcp_answer {
    enum dhcp_type type;
    uint32_t address, netmask, router, server, next_server;
    uint32_t lease_s, renew_s, rebind_s; /* 0 = not said */
    uint16_t mtu_bytes;                  /* 0 = not said */
    bool has_boot_file;
    char host_name[DHCP_NAME_BYTES];   /* letters, digits, '-', '.'; else empty */
    uint8_t vendor[DHCP_VENDOR_BYTES]; /* option 43, as it stands */
    uint8_t vendor_bytes;
};

enum dhcp_parsed {
    DHCP_PARSED = 0,
    DHCP_NOT_OURS = 1,  /* another client's, or no answer */
    DHCP_MALFORMED = 2, /* breaks a rule of the two RFCs */
};
enum dhcp_parsed dhcp_parse(const uint8_t *message, size_t bytes, uint32_t transaction,
                            const uint8_t mac[6], struct dhcp_answer *answer);

struct dhcp_question {
    enum dhcp_type type;
    uint32_t transaction;
    uint16_t seconds; /* since the asking began */
    const uint8_t *mac;
    uint32_t our_address; /* ciaddr: only when renewing or rebinding */
    uint32_t requested;   /* option 50, 0 = left out */
    uint32_t server;      /* option 54, 0 = left out */
};
/* Writes at most DHCP_MESSAGE_BYTES_MAX bytes and returns their count. */
size_t dhcp_build(uint8_t *out, const struct dhcp_question *question);

/* The value of sub-option `code` in vendor options; NULL = not there. `at` (0 to begin) is moved
 * behind it, so that the next call finds the next one. */
const uint8_t *dhcp_vendor_option(const struct dhcp_answer *answer, uint8_t code, size_t *at,
                                  uint8_t *bytes);

#endif
