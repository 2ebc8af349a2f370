/* SPDX-License-Identifier: Apache-2.0
 *
 * The other end of the cable: frames as hosts, forgers and DHCP servers send them.
 */
#ifndef DUCKOS_TEST_LAN_H
#define DUCKOS_TEST_LAN_H

#include "machine.h"

#include "net/bytes.h"
#include "net/checksum.h"
#include "net/dhcp_message.h"

#define LAN_FRAME_BYTES_MAX 9100u
#define LAN_ADDRESS(last) make_address(198, 18, 0, last)
#define LAN_NETMASK make_address(255, 255, 255, 0)

extern const uint8_t lan_host_mac[6];
extern const uint8_t lan_everyone[6];

struct lan_frame {
    uint8_t bytes[LAN_FRAME_BYTES_MAX];
    size_t size;
};

/* Offsets in what the functions below make. */
enum { LAN_IP = 14, LAN_UDP = 34, LAN_PAYLOAD = 42 };

void lan_ethernet(struct lan_frame *frame, const uint8_t to[6], const uint8_t from[6],
                  uint16_t type, size_t payload_bytes);
void lan_ipv4(struct lan_frame *frame, uint32_t from, uint32_t to, uint8_t protocol,
              const uint8_t *payload, size_t bytes);
void lan_udp(struct lan_frame *frame, uint32_t from, uint16_t from_port, uint32_t to,
             uint16_t to_port, const uint8_t *payload, size_t bytes);
void lan_echo(struct lan_frame *frame, uint32_t from, uint32_t to, size_t bytes);
void lan_arp(struct lan_frame *frame, uint16_t operation, const uint8_t mac[6], uint32_t sender,
             uint32_t target);
void lan_ipv4_checksum(struct lan_frame *frame); /* after a header was changed */
void lan_udp_checksum(struct lan_frame *frame);

/* ---- a DHCP server --------------------------------------------------------------------------- */
struct lan_server {
    uint32_t address, server, netmask, router, next_server;
    uint32_t lease_s, renew_s, rebind_s;
    uint16_t mtu;
    const char *name, *setting, *boot_file;
    bool silent, refuses;
    uint32_t questions, discovers, requests;
    struct lan_frame last_question;
};
extern const struct lan_server lan_usual_server;

/* Whether `frame` is a DHCP question; answers it into `answer` (size 0: no answer). */
bool lan_serve(struct lan_server *server, const uint8_t *frame, size_t size,
               struct lan_frame *answer);
/* The answer of `type` to a question, whatever it asked. */
void lan_answer(const struct lan_server *server, enum dhcp_type type, uint32_t transaction,
                const uint8_t mac[6], struct lan_frame *answer);
/* The value of an option in a DHCP message, or NULL. */
const uint8_t *lan_option(const struct lan_frame *frame, uint8_t code, uint8_t *bytes);

#endif
