// SPDX-License-Identifier: Apache-2.0
//
// Everything the host knows about one duck. Owned by its domain's thread; what other threads may
// read is in LinkStatus.
#pragma once

#include "bulk.h"
#include "call.h"
#include "message.h"
#include "op.h"
#include "port.h"

namespace duckhost {

constexpr size_t kRequestsMax = 4; // outstanding at one duck; more wait their turn

struct LinkStatus {
    Counter attached, state, last_call, boot_id, boot_changed;
    Counter domain_session; // that the duck was told in its HELLO
    Counter heard_ns;       // of the last authentic packet, 0 = never
    Counter round_trip_ns;
    Counter calls, kernel_ns, queue_ns, call_ns;
    Counter packets_sent, packets_received, bytes_sent, bytes_received;
    Counter fragments_resent, nacks_sent, nacks_received, queries_sent, requests_resent;
    Counter dropped_type, dropped_size, dropped_mac, dropped_replay, dropped_session;
    Counter bulk_bytes, unreachable_notes;
};

// A HELLO under way: the same packet is repeated until INFO comes, then PING until PONG comes.
struct HelloState {
    HelloOp *op = nullptr;
    bool is_proving = false;
    uint32_t session = 0, domain_session = 0;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES] = {};
    uint8_t packet[sizeof(duck_packet_header) + sizeof(duck_info)] = {};
    uint64_t next_ns = 0, backoff_ns = 0;
};

struct RequestState {
    RequestOp *op = nullptr;
    uint32_t sequence = 0;
    uint64_t next_ns = 0, backoff_ns = 0;
};

struct Link {
    char name[DUCK_WIRE_NAME_BYTES + 1] = "";
    char address_text[24] = ""; // "10.21.1.12:7211"
    uint32_t index = 0;         // in the fleet
    Peer peer;

    uint32_t session = 0; // 0 = not attached
    duck_seal_key to_duck{}, to_host{};
    duck_replay_window window{};
    uint64_t boot_id = 0;

    HelloState hello;
    uint32_t ping_sequence = 0;
    uint64_t ping_next_ns = kNever;
    uint32_t request_sequence = 0;
    RequestState request[kRequestsMax];
    OpList request_queue;
    Bulk bulk;
    LinkCalls calls;
    LinkStatus status;

    // Since it was last heard: hints for the error text when it stays silent.
    bool was_refused = false;      // ICMP "port unreachable"
    bool sent_wrong_seals = false; // something there has another key

    bool is_attached() const { return session != 0; }
};

} // namespace duckhost
