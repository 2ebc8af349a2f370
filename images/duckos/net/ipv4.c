/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ipv4.h"

#include "net/arp.h"
#include "net/bytes.h"
#include "net/checksum.h"
#include "net/ethernet.h"
#include "net/icmp.h"
#include "net/interface.h"
#include "net/udp.h"

enum { /* RFC 791, 3.1 */
       VERSION_AND_LENGTH = 0,
       SERVICE = 1,
       TOTAL_BYTES = 2,
       IDENTIFICATION = 4,
       FRAGMENT = 6,
       TIME_TO_LIVE = 8,
       PROTOCOL = 9,
       CHECKSUM = 10,
       SOURCE = 12,
       DESTINATION = 16,
};
enum { DO_NOT_FRAGMENT = 0x4000, FRAGMENT_MASK = 0x3fff /* more fragments, offset */ };
enum { TIME_TO_LIVE_SENT = 64 };

static bool is_for_us(const struct net_interface *interface, struct ipv4_received *received) {
    uint32_t to = received->destination;
    received->is_broadcast = to == ADDRESS_BROADCAST;
    if (interface->address == 0) return true; /* DHCP answers go to the address we don't have yet */
    if (to == subnet_broadcast(interface)) received->is_broadcast = true;
    return received->is_broadcast || to == interface->address;
}

/* Header bytes, or 0 when the header can't be right. */
static size_t check_header(struct net_interface *interface, const uint8_t *packet, size_t bytes) {
    bool whole = bytes >= IPV4_HEADER_BYTES && packet[VERSION_AND_LENGTH] >> 4 == 4;
    size_t header = whole ? 4u * (packet[VERSION_AND_LENGTH] & 0xfu) : 0; /* options are skipped */
    size_t total = whole ? load16(packet + TOTAL_BYTES) : 0;
    if (header < IPV4_HEADER_BYTES || header > total || total > bytes) {
        interface->count.ipv4_malformed++;
        return 0;
    }
    if (checksum_fold(checksum_add(0, packet, header)) != 0) {
        interface->count.ipv4_checksum++;
        return 0;
    }
    return header;
}

void ipv4_receive(struct net_interface *interface, const uint8_t from[6], uint8_t *packet,
                  size_t bytes) {
    size_t header = check_header(interface, packet, bytes);
    if (header == 0) return;
    if ((load16(packet + FRAGMENT) & FRAGMENT_MASK) != 0) {
        interface->count.ipv4_fragments++;
        return;
    }
    struct ipv4_received received = {
        .source = load_address(packet + SOURCE),
        .destination = load_address(packet + DESTINATION),
        .payload = packet + header,
        .bytes = load16(packet + TOTAL_BYTES) - header, /* behind it lies padding */
        .from_mac = from,
    };
    /* RFC 1122, 3.2.1.3: a sender is one host, and not we ourselves. */
    bool forged = !is_host_address(received.source) || received.source == interface->address ||
                  (interface->address != 0 && received.source == subnet_broadcast(interface));
    if (forged || !is_for_us(interface, &received)) {
        interface->count.ipv4_foreign++;
        return;
    }
    switch (packet[PROTOCOL]) {
    case IPV4_UDP: udp_receive(interface, &received); break;
    case IPV4_ICMP: icmp_receive(interface, &received); break;
    default: interface->count.ipv4_unknown_protocol++; break;
    }
}

uint8_t *ipv4_payload(struct net_interface *interface) {
    return ethernet_payload(interface) + IPV4_HEADER_BYTES;
}

const uint8_t *ipv4_route(struct net_interface *interface, uint32_t destination) {
    if (destination == ADDRESS_BROADCAST) return ethernet_broadcast;
    if (is_on_link(interface, destination)) {
        if (destination == subnet_broadcast(interface)) return ethernet_broadcast;
        return arp_find(interface, destination);
    }
    return interface->router != 0 ? arp_find(interface, interface->router) : NULL;
}

bool ipv4_send(struct net_interface *interface, const uint8_t to_mac[6], uint32_t destination,
               uint8_t protocol, size_t payload_bytes) {
    size_t total = IPV4_HEADER_BYTES + payload_bytes;
    if (total > interface->mtu_bytes) {
        interface->count.send_oversized++;
        return false;
    }
    uint8_t *header = ethernet_payload(interface);
    header[VERSION_AND_LENGTH] = 0x45;
    header[SERVICE] = 0;
    store16(header + TOTAL_BYTES, (uint16_t)total);
    store16(header + IDENTIFICATION, 0); /* RFC 6864: means nothing in what can't be fragmented */
    store16(header + FRAGMENT, DO_NOT_FRAGMENT);
    header[TIME_TO_LIVE] = TIME_TO_LIVE_SENT;
    header[PROTOCOL] = protocol;
    store16(header + CHECKSUM, 0);
    store_address(header + SOURCE, interface->address);
    store_address(header + DESTINATION, destination);
    checksum_store(header + CHECKSUM, checksum_fold(checksum_add(0, header, IPV4_HEADER_BYTES)));
    return ethernet_send(interface, to_mac, ETHERNET_TYPE_IPV4, total);
}
