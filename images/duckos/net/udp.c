/* SPDX-License-Identifier: Apache-2.0 */
#include "net/udp.h"

#include "net/arp.h"
#include "net/bytes.h"
#include "net/checksum.h"
#include "net/dhcp.h"
#include "net/interface.h"

enum { SOURCE = 0, DESTINATION = 2, LENGTH = 4, CHECKSUM = 6 };

static uint16_t load_port(const uint8_t *at) { /* network byte order, as it stands */
    uint16_t port;
    __builtin_memcpy(&port, at, sizeof port);
    return port;
}

static bool checksum_is_right(const struct ipv4_received *received, uint16_t length) {
    if (load16(received->payload + CHECKSUM) == 0) return true; /* the sender made none */
    uint64_t sum =
        checksum_pseudo_header(received->source, received->destination, IPV4_UDP, length);
    return checksum_fold(checksum_add(sum, received->payload, length)) == 0;
}

static void deliver(struct net_interface *interface, const struct ipv4_received *received,
                    size_t bytes) {
    if (interface->address == 0) {
        interface->count.udp_closed_port++;
        return;
    }
    struct net_peer from = {.address = received->source,
                            .port = load_port(received->payload + SOURCE)};
    arp_heard(interface, received->source, received->from_mac);
    interface->count.delivered_datagrams++;
    if (interface->handler != NULL)
        interface->handler(&from, received->payload + UDP_HEADER_BYTES, bytes);
}

void udp_receive(struct net_interface *interface, const struct ipv4_received *received) {
    if (received->bytes < UDP_HEADER_BYTES ||
        load16(received->payload + LENGTH) < UDP_HEADER_BYTES ||
        load16(received->payload + LENGTH) > received->bytes) {
        interface->count.udp_malformed++;
        return;
    }
    uint16_t length = load16(received->payload + LENGTH);
    if (!checksum_is_right(received, length)) {
        interface->count.udp_checksum++;
        return;
    }
    size_t bytes = length - UDP_HEADER_BYTES;
    uint16_t port = load_port(received->payload + DESTINATION);
    if (port == interface->udp_port)
        deliver(interface, received, bytes);
    else if (port == swap16(DHCP_CLIENT_PORT) &&
             load_port(received->payload + SOURCE) == swap16(DHCP_SERVER_PORT))
        dhcp_receive(interface, received->payload + UDP_HEADER_BYTES, bytes);
    else
        interface->count.udp_closed_port++;
}

uint8_t *udp_payload(struct net_interface *interface) {
    return ipv4_payload(interface) + UDP_HEADER_BYTES;
}

bool udp_send(struct net_interface *interface, const uint8_t to_mac[6], uint32_t destination,
              uint16_t source_port, uint16_t destination_port, size_t bytes,
              enum udp_checksum checksum) {
    size_t length = UDP_HEADER_BYTES + bytes;
    if (bytes > NET_UDP_PAYLOAD_BYTES_MAX) {
        interface->count.send_oversized++;
        return false;
    }
    uint8_t *header = ipv4_payload(interface);
    __builtin_memcpy(header + SOURCE, &source_port, sizeof source_port);
    __builtin_memcpy(header + DESTINATION, &destination_port, sizeof destination_port);
    store16(header + LENGTH, (uint16_t)length);
    store16(header + CHECKSUM, 0);
    if (checksum == UDP_WITH_CHECKSUM) {
        uint64_t sum =
            checksum_pseudo_header(interface->address, destination, IPV4_UDP, (uint16_t)length);
        uint16_t folded = checksum_fold(checksum_add(sum, header, length));
        checksum_store(header + CHECKSUM, folded != 0 ? folded : 0xffffu);
    }
    return ipv4_send(interface, to_mac, destination, IPV4_UDP, length);
}
