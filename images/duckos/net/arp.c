/* SPDX-License-Identifier: Apache-2.0 */
#include "net/arp.h"

#include "net/bytes.h"
#include "net/ethernet.h"
#include "net/interface.h"

/* RFC 826: the packet for Ethernet and IPv4. */
enum {
    HARDWARE = 0,
    PROTOCOL = 2,
    HARDWARE_BYTES = 4,
    PROTOCOL_BYTES = 5,
    OPERATION = 6,
    SENDER_MAC = 8,
    SENDER_ADDRESS = 14,
    TARGET_MAC = 18,
    TARGET_ADDRESS = 24,
    PACKET_BYTES = 28,
};
enum { HARDWARE_ETHERNET = 1, REQUEST = 1, REPLY = 2 };

static struct arp_neighbour *slot_of(struct net_interface *interface, uint32_t address) {
    return &interface->arp.neighbour[address >> 24 & (ARP_NEIGHBOUR_COUNT - 1u)];
}

static bool is_neighbour(const struct net_interface *interface, uint32_t address) {
    return is_on_link(interface, address) && is_host_address(address) &&
           address != interface->address && address != subnet_broadcast(interface) &&
           (address & ~interface->netmask) != 0;
}

void arp_heard(struct net_interface *interface, uint32_t address, const uint8_t mac[6]) {
    if (!is_neighbour(interface, address)) return;
    struct arp_neighbour *slot = slot_of(interface, address);
    bool same = slot->known && slot->address == address && same_bytes(slot->mac, mac, 6);
    if (!same) {
        /* Somebody else is in the slot: a different host, or a different MAC for this one. */
        bool held = slot->known && interface->now_ns - slot->heard_ns < ARP_HOLD_NS;
        if (held) return;
        *slot = (struct arp_neighbour){.address = address, .known = true};
        copy_bytes(slot->mac, mac, 6);
    }
    slot->heard_ns = interface->now_ns;
}

static void send(struct net_interface *interface, uint16_t operation, const uint8_t to_mac[6],
                 const uint8_t target_mac[6], uint32_t target_address) {
    uint8_t *packet = ethernet_payload(interface);
    store16(packet + HARDWARE, HARDWARE_ETHERNET);
    store16(packet + PROTOCOL, ETHERNET_TYPE_IPV4);
    packet[HARDWARE_BYTES] = 6;
    packet[PROTOCOL_BYTES] = 4;
    store16(packet + OPERATION, operation);
    copy_bytes(packet + SENDER_MAC, interface->mac, 6);
    store_address(packet + SENDER_ADDRESS, interface->address);
    copy_bytes(packet + TARGET_MAC, target_mac, 6);
    store_address(packet + TARGET_ADDRESS, target_address);
    if (!ethernet_send(interface, to_mac, ETHERNET_TYPE_ARP, PACKET_BYTES)) return;
    if (operation == REQUEST)
        interface->count.arp_requests_sent++;
    else
        interface->count.arp_replies_sent++;
}

void arp_ask(struct net_interface *interface, uint32_t address) {
    static const uint8_t nobody[6];
    send(interface, REQUEST, ethernet_broadcast, nobody, address);
}

void arp_announce(struct net_interface *interface) { arp_ask(interface, interface->address); }

static bool is_well_formed(const uint8_t from[6], const uint8_t *packet, size_t bytes) {
    return bytes >= PACKET_BYTES && load16(packet + HARDWARE) == HARDWARE_ETHERNET &&
           load16(packet + PROTOCOL) == ETHERNET_TYPE_IPV4 && packet[HARDWARE_BYTES] == 6 &&
           packet[PROTOCOL_BYTES] == 4 && same_bytes(packet + SENDER_MAC, from, 6);
}

void arp_receive(struct net_interface *interface, const uint8_t from[6], const uint8_t *packet,
                 size_t bytes) {
    if (!is_well_formed(from, packet, bytes)) {
        interface->count.arp_malformed++;
        return;
    }
    uint16_t operation = load16(packet + OPERATION);
    uint32_t sender = load_address(packet + SENDER_ADDRESS);
    uint32_t target = load_address(packet + TARGET_ADDRESS);
    if (interface->address == 0) {
        interface->count.arp_ignored++;
        return;
    }
    if (sender == interface->address) interface->count.arp_conflicts++;
    bool for_us = target == interface->address;
    struct arp_neighbour *slot = slot_of(interface, sender);
    bool asked = slot->address == sender; /* only who we know or asked for may answer */
    if (operation == REQUEST && for_us && sender != interface->address) {
        arp_heard(interface, sender, from);
        send(interface, REPLY, from, from, sender);
    } else if (operation == REPLY && for_us && asked) {
        arp_heard(interface, sender, from);
    } else {
        interface->count.arp_ignored++;
    }
}

static void ask_for(struct net_interface *interface, struct arp_neighbour *slot) {
    slot->asked_ns = interface->now_ns;
    arp_ask(interface, slot->address);
}

const uint8_t *arp_find(struct net_interface *interface, uint32_t address) {
    if (!is_neighbour(interface, address)) return NULL;
    struct arp_neighbour *slot = slot_of(interface, address);
    uint64_t now = interface->now_ns;
    if (slot->address != address) {
        if (slot->known && now - slot->heard_ns < ARP_HOLD_NS) return NULL; /* taken */
        *slot = (struct arp_neighbour){.address = address};
    }
    bool fresh = slot->known && now - slot->heard_ns < ARP_FRESH_NS;
    if (!fresh && (slot->asked_ns == 0 || now - slot->asked_ns >= ARP_ASK_NS)) {
        if (!slot->known)
            ask_for(interface, slot);
        else if (interface->arp.stale == 0) /* the next one has its turn when it is sent to again */
            interface->arp.stale = address;
    }
    return slot->known ? slot->mac : NULL;
}

void arp_ask_stale(struct net_interface *interface) {
    uint32_t address = interface->arp.stale;
    if (address == 0) return;
    interface->arp.stale = 0;
    struct arp_neighbour *slot = slot_of(interface, address);
    if (slot->address == address) ask_for(interface, slot); /* else somebody has taken its place */
}

void arp_forget(struct net_interface *interface) { interface->arp = (struct arp_cache){0}; }
