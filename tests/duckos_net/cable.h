/* SPDX-License-Identifier: Apache-2.0
 *
 * A NIC that is only memory: for tests of the protocols alone. Frames arrive by cable_receive, sent
 * ones are kept.
 */
#ifndef DUCKOS_TEST_CABLE_H
#define DUCKOS_TEST_CABLE_H

#include "lan.h"

#include "net/interface.h"

#define CABLE_SENT_MAX 64u

struct cable {
    struct nic nic;
    struct net_interface interface;
    uint8_t buffer[NIC_BUFFER_BYTES];
    bool full; /* no buffer to send from */
    uint32_t sent_count, sent_taken;
    struct lan_frame sent[CABLE_SENT_MAX];
    uint32_t taken, lost; /* addresses */
    struct dhcp_answer binding;
    uint32_t datagrams;
    struct net_peer from;
    uint8_t payload[LAN_FRAME_BYTES_MAX];
    size_t payload_bytes;
};
extern struct cable cable;
extern const uint8_t cable_mac[6];

void cable_reset(void);           /* no address yet */
void cable_reset_addressed(void); /* 198.18.0.101/24, MTU 9000, router .1 */
/* The frame arrives, in memory of exactly its size, so that reading behind its end is found. */
void cable_receive(const uint8_t *frame, size_t size);
struct lan_frame *cable_sent(void); /* the oldest that was not taken, or NULL */

#endif
