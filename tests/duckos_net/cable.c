/* SPDX-License-Identifier: Apache-2.0 */
#include "cable.h"

#include "net/ethernet.h"
#include "net/random.h"

struct cable cable;
const uint8_t cable_mac[6] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};

static uint8_t *send_buffer(struct nic *nic) {
    if (cable.full) nic->count.ring_full++;
    return cable.full ? NULL : cable.buffer;
}

static void send(struct nic *nic, size_t bytes) {
    (void)nic;
    CHECK(bytes >= 60 && bytes <= NIC_FRAME_BYTES_MAX);
    struct lan_frame *sent = &cable.sent[cable.sent_count++ % CABLE_SENT_MAX];
    if (cable.sent_count - cable.sent_taken > CABLE_SENT_MAX) cable.sent_taken++;
    memcpy(sent->bytes, cable.buffer, bytes);
    sent->size = bytes;
    memset(cable.buffer, 0xa5, sizeof cable.buffer);
}

static void take_datagram(const struct net_peer *from, uint8_t *payload, size_t bytes) {
    cable.datagrams++;
    cable.from = *from;
    cable.payload_bytes = bytes;
    memcpy(cable.payload, payload, bytes);
    memset(payload, 0x77, bytes); /* allowed */
}

void cable_reset(void) {
    static uint8_t spare[NIC_BUFFER_BYTES];
    machine_reset();
    net_random_seed(7);
    memset(&cable, 0, sizeof cable);
    memset(cable.buffer, 0xa5, sizeof cable.buffer); /* old bytes must not leave in padding */
    cable.nic =
        (struct nic){.mtu_bytes_max = 9000, .link = true, .send_buffer = send_buffer, .send = send};
    struct net_interface *interface = &cable.interface;
    interface->nic = &cable.nic;
    memcpy(interface->mac, cable_mac, 6);
    interface->udp_port = swap16(7211);
    interface->mtu_bytes = 1500;
    interface->handler = take_datagram;
    interface->now_ns = 1000000000u;
    interface->spare = spare;
}

void cable_reset_addressed(void) {
    cable_reset();
    cable.interface.address = LAN_ADDRESS(101);
    cable.interface.netmask = LAN_NETMASK;
    cable.interface.router = LAN_ADDRESS(1);
    cable.interface.mtu_bytes = 9000;
}

void cable_receive(const uint8_t *frame, size_t size) {
    uint8_t *exact = malloc(size != 0 ? size : 1);
    memcpy(exact, frame, size);
    cable.interface.sending = NULL;
    ethernet_receive(&cable.interface, exact, size);
    free(exact);
}

struct lan_frame *cable_sent(void) {
    if (cable.sent_taken == cable.sent_count) return NULL;
    return &cable.sent[cable.sent_taken++ % CABLE_SENT_MAX];
}

/* What net.c does with addresses, without NICs. */
void net_address_taken(struct net_interface *interface, const struct dhcp_answer *binding) {
    cable.taken++;
    cable.binding = *binding;
    interface->address = binding->address;
    interface->netmask = binding->netmask;
}

void net_address_lost(struct net_interface *interface, const char *why) {
    (void)why;
    if (interface->address == 0) return;
    cable.lost++;
    interface->address = interface->netmask = 0;
}
