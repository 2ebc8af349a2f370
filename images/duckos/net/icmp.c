/* SPDX-License-Identifier: Apache-2.0 */
#include "net/icmp.h"

#include "net/arp.h"
#include "net/bytes.h"
#include "net/checksum.h"
#include "net/interface.h"

enum { TYPE = 0, CODE = 1, CHECKSUM = 2, HEADER_BYTES = 8 };
enum { ECHO_REPLY = 0, ECHO_REQUEST = 8 };

static bool may_reply(struct net_interface *interface) {
    uint64_t second = interface->now_ns / 1000000000u;
    if (second != interface->icmp_second) {
        interface->icmp_second = second;
        interface->icmp_replies = 0;
    }
    return interface->icmp_replies++ < ICMP_REPLIES_PER_SECOND_MAX;
}

static void reply(struct net_interface *interface, const struct ipv4_received *received) {
    arp_heard(interface, received->source, received->from_mac);
    const uint8_t *to = ipv4_route(interface, received->source);
    if (to == NULL) {
        interface->count.send_unresolved++;
        return;
    }
    if (received->bytes + IPV4_HEADER_BYTES > interface->mtu_bytes) {
        interface->count.send_oversized++;
        return;
    }
    uint8_t *answer = ipv4_payload(interface);
    copy_bytes(answer, received->payload, received->bytes);
    answer[TYPE] = ECHO_REPLY;
    store16(answer + CHECKSUM, 0);
    checksum_store(answer + CHECKSUM, checksum_fold(checksum_add(0, answer, received->bytes)));
    if (ipv4_send(interface, to, received->source, IPV4_ICMP, received->bytes))
        interface->count.echo_replies_sent++;
}

void icmp_receive(struct net_interface *interface, const struct ipv4_received *received) {
    if (received->bytes < HEADER_BYTES) {
        interface->count.icmp_malformed++;
        return;
    }
    if (checksum_fold(checksum_add(0, received->payload, received->bytes)) != 0) {
        interface->count.icmp_checksum++;
        return;
    }
    bool is_echo = received->payload[TYPE] == ECHO_REQUEST && received->payload[CODE] == 0;
    if (!is_echo || received->is_broadcast || interface->address == 0) {
        interface->count.icmp_ignored++;
        return;
    }
    if (!may_reply(interface)) {
        interface->count.icmp_limited++;
        return;
    }
    reply(interface, received);
}
