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
#include "trace_ring.h"

#include <optional>

namespace duckhost {

constexpr size_t kRequestsMax = 4; // outstanding at one duck; more wait their turn

struct LinkStatus {
    Counter attached, state, last_call, boot_id, boot_changed;
    Counter domain_session; // whose key the duck has confirmed
    Counter heard_ns;       // of the last authentic packet, 0 = never
    Counter round_trip_ns;
    Counter calls, kernel_ns, queue_ns, call_ns;
    Counter packets_sent, packets_received, bytes_sent, bytes_received;
    Counter fragments_resent, nacks_sent, nacks_received, queries_sent, requests_resent;
    Counter dropped_type, dropped_size, dropped_mac, dropped_replay, dropped_session;
    Counter bulk_bytes, unreachable_notes;
    Counter handshake_ns; // of the last one: first HELLO to its INFO
    Counter rekeys;
};

// A handshake under way: HELLO is repeated until COOKIE comes, then PROOF until INFO comes, then
// PING until PONG comes.
struct HelloState {
    enum class Step { hello, proof, ping };
    HelloOp *op = nullptr;
    Step step = Step::hello;
    bool has_attached = false; // its INFO came; its PONG may not
    uint32_t session = 0;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES] = {};
    duck_cookie cookie{};
    duck_session_keys keys{};
    duck_seal_key to_host{}; // opens INFO
    duck_replay_window window{};
    uint8_t packet[sizeof(duck_packet_header) + sizeof(duck_proof)] = {};
    uint32_t packet_bytes = 0;
    uint64_t first_ns = 0, step_ns = 0, next_ns = 0, backoff_ns = 0;
};

// Fresh keys for an attached duck: REKEY is repeated until the duck's half comes.
struct RekeyState {
    bool is_running = false;
    uint8_t private_key[DUCK_WIRE_KEY_BYTES] = {};
    duck_rekey request{};
    uint64_t due_ns = kNever, next_ns = 0, backoff_ns = 0;
};

// The giving of a domain key: a request whose asker is this thread itself.
struct DomainKeyState {
    DomainKeyOp *waiting = nullptr; // an API thread
    std::optional<RequestOp> request;
    uint32_t given = 0; // domain session whose key is on its way
    uint64_t wrap_counter = 0;
    duck_domain_key message{};
    duck_done reply{};
    uint64_t next_ns = kNever; // after a failure
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
    duck_session_keys keys{};
    uint32_t epoch = 0; // of `keys`: what is sent goes out under it
    duck_seal_key to_duck{};
    duck_seal_key to_host[2]{}; // place = epoch % 2: the newest two
    duck_replay_window window[2]{};
    uint64_t boot_id = 0;
    ClockSample clock; // of this boot

    HelloState hello;
    RekeyState rekey;
    DomainKeyState domain_key;
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
    // What an epoch modulo 256 stands for, in a packet under the newest keys or those before.
    uint32_t whole_epoch(uint8_t told) const { return epoch - static_cast<uint8_t>(epoch - told); }
};

} // namespace duckhost
