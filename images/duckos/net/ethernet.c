/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ethernet.h"

#include "net/bytes.h"
#include "net/interface.h"
#include "net/ipv4.h"

const uint8_t ethernet_broadcast[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

enum { TO = 0, FROM = 6, TYPE = 12 };

void ethernet_receive(struct net_interface *interface, uint8_t *frame, size_t size) {
    interface->count.received_frames++;
    interface->count.received_bytes += size;
    if (size < ETHERNET_HEADER_BYTES) {
        interface->count.nic_runts++;
        return;
    }
    /* The NIC filters by address; a switch that floods, or a virtual NIC that doesn't, is no reason
     * to believe what was not meant for us. A group address as the sender is a forgery. */
    bool to_us =
        same_bytes(frame + TO, interface->mac, 6) || same_bytes(frame + TO, ethernet_broadcast, 6);
    bool from_us = same_bytes(frame + FROM, interface->mac, 6);
    if (!to_us || from_us || !nic_mac_is_valid(frame + FROM)) {
        interface->count.ethernet_foreign++;
        return;
    }
    uint8_t *payload = frame + ETHERNET_HEADER_BYTES;
    size_t bytes = size - ETHERNET_HEADER_BYTES;
    switch (load16(frame + TYPE)) {
    case ETHERNET_TYPE_IPV4: ipv4_receive(interface, frame + FROM, payload, bytes); break;
    case ETHERNET_TYPE_ARP: arp_receive(interface, frame + FROM, payload, bytes); break;
    default: interface->count.ethernet_unknown_type++; break;
    }
}

uint8_t *ethernet_payload(struct net_interface *interface) {
    if (interface->sending == NULL)
        interface->sending = interface->nic->send_buffer(interface->nic);
    if (interface->sending == NULL) return interface->spare + ETHERNET_HEADER_BYTES;
    return interface->sending + ETHERNET_HEADER_BYTES;
}

bool ethernet_send(struct net_interface *interface, const uint8_t to[6], uint16_t type,
                   size_t payload_bytes) {
    uint8_t *frame = interface->sending;
    if (frame == NULL) { /* it was written to the spare buffer, or never asked for */
        interface->count.send_ring_full++;
        return false;
    }
    if (payload_bytes > NIC_MTU_JUMBO || payload_bytes > interface->nic->mtu_bytes_max) {
        interface->count.send_oversized++;
        return false;
    }
    size_t size = ETHERNET_HEADER_BYTES + payload_bytes;
    copy_bytes(frame + TO, to, 6);
    copy_bytes(frame + FROM, interface->mac, 6);
    store16(frame + TYPE, type);
    while (size < NIC_FRAME_BYTES_MIN) frame[size++] = 0; /* no old bytes in the padding */
    interface->sending = NULL;
    interface->count.sent_frames++;
    interface->count.sent_bytes += size;
    interface->nic->send(interface->nic, size);
    return true;
}
