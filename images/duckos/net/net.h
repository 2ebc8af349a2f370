/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck's network: one NIC, one address from DHCP (or a fixed one), UDP in and out. Everything
 * is polled from one core; nothing blocks, nothing is allocated after net_init, no interrupt is
 * used. Memory of a received payload belongs to the NIC's ring and is lent for the handler's time.
 */
#ifndef DUCKOS_NET_H
#define DUCKOS_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_UDP_PAYLOAD_BYTES_MAX 8972u /* of a 9000-byte IP packet */
#define NET_BURST_FRAMES_MAX 32u        /* frames that one net_poll handles at most */
#define NET_NAME_BYTES 64u

enum net_state {
    NET_NO_NIC,    /* no NIC that a driver knows, or none that would start: see the log */
    NET_LINK_DOWN, /* waiting for a cable, a switch or a spanning tree */
    NET_ASKING,    /* asking for an address */
    NET_READY      /* has an address; datagrams flow */
};

/* Who sent a datagram, or gets one. */
struct net_peer {
    uint32_t address; /* IPv4, network byte order */
    uint16_t port;    /* network byte order */
};

/* A fixed address instead of DHCP, from the boot options; zero = ask DHCP. All in network byte
 * order except the MTU. */
struct net_fixed {
    uint32_t address;
    uint32_t netmask;
    uint32_t router;
    uint32_t mtu_bytes;
};

struct net_description {
    char driver[16]; /* "virtio-net", "e1000e", "igb", "igc", "r8169", "" without a NIC */
    char model[16];  /* "82574L", "I226-V", ... */
    /* True: this driver has run neither on its hardware nor on an emulator of it; INFO says so
     * (DUCK_INFO_NIC_UNPROVEN). */
    bool unproven;
    uint8_t mac[6];
    uint32_t address; /* network byte order, zero before NET_READY; so the following ones */
    uint32_t netmask;
    uint32_t router;
    uint32_t dhcp_server;
    uint32_t next_server;
    uint32_t mtu_bytes; /* of IP packets that may be sent */
    uint32_t link_mbps; /* 0: no link */
    uint32_t lease_s;   /* UINT32_MAX: for ever */
    char host_name[NET_NAME_BYTES];
};

/* Everything that arrived, left, or was dropped, and why. */
struct net_counters {
    uint64_t received_frames, received_bytes, sent_frames, sent_bytes;
    uint64_t delivered_datagrams;
    /* on reception, in the NIC */
    uint64_t nic_descriptor_errors; /* a frame that the NIC marked as damaged */
    uint64_t nic_oversized;         /* longer than a buffer: spread over descriptors */
    uint64_t nic_runts;             /* shorter than an Ethernet header */
    uint64_t nic_missed;            /* no free descriptor, as the NIC counts them */
    uint64_t nic_bad_descriptors;   /* values that no sane NIC writes */
    uint64_t nic_resets;            /* the driver started the NIC anew */
    uint64_t link_changes;
    /* on reception, by layer */
    uint64_t ethernet_foreign, ethernet_unknown_type;
    uint64_t arp_malformed, arp_ignored, arp_conflicts;
    uint64_t ipv4_malformed, ipv4_checksum, ipv4_fragments, ipv4_foreign, ipv4_unknown_protocol;
    uint64_t icmp_malformed, icmp_checksum, icmp_ignored, icmp_limited;
    uint64_t udp_malformed, udp_checksum, udp_closed_port;
    uint64_t dhcp_malformed, dhcp_ignored, dhcp_naks;
    /* on sending */
    uint64_t send_ring_full, send_unresolved, send_oversized, send_not_ready;
    /* answered or done */
    uint64_t arp_requests_sent, arp_replies_sent, echo_replies_sent, dhcp_sent;
    uint64_t addresses_taken, addresses_lost;
};

/* `payload` may be read and written until the handler returns. The handler may call net_udp_buffer
 * and net_udp_send. */
typedef void net_udp_handler(const struct net_peer *from, uint8_t *payload, size_t bytes);

/* Find the NICs, reset them and start the drivers. Takes all memory that the network will ever use.
 * `udp_port` (host byte order) is the one port whose datagrams reach the handler. Several NICs: all
 * ask for an address, the first that gets one stays, the others are switched off. */
enum net_state net_init(uint16_t udp_port, const struct net_fixed *fixed);

/* One burst: received frames, protocol timers, link state. Returns the number of frames seen, so
 * that the caller knows when it may rest. `handler` NULL: datagrams are counted and dropped. */
unsigned net_poll(net_udp_handler *handler);

/* When net_poll wants to be called next even if nothing arrives (timer_now_ns scale). */
uint64_t net_next_timer_ns(void);

bool net_ready(void);
enum net_state net_get_state(void);
const struct net_description *net_describe(void);
const struct net_counters *net_count(void);

/* Room for the next datagram's payload, in the NIC's own send buffer; never NULL (a spare buffer
 * stands in while the ring is full, and what is sent from it is dropped and counted). It stays
 * valid until net_udp_send or the next net_poll; the network itself sends from the same buffers.
 * NET_UDP_PAYLOAD_BYTES_MAX bytes may be written. */
uint8_t *net_udp_buffer(void);

/* Send what was written there, from the port of net_init. False: dropped, see the counters. */
bool net_udp_send(const struct net_peer *to, size_t bytes);

/* Wait (at most `wait_us_max`) until everything queued has left the NIC: before a reboot. */
void net_flush(uint32_t wait_us_max);

/* Stop for good, so that a magic packet (Wake-on-LAN) switches the machine on again: before
 * power-off. False, and said in the log: this NIC can't, or its driver does not know how. */
bool net_arm_wake(void);

/* Stop the NIC's DMA for good: before a reset or when handing the machine over. */
void net_stop(void);

#endif
