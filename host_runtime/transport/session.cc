// SPDX-License-Identifier: Apache-2.0
//
// Sessions: HELLO and INFO, proof by PING and PONG, heartbeats.
#include "domain.h"

#include <cstring>

namespace duckhost {
namespace {

constexpr uint64_t kHelloRetry = 20 * kMillisecond;
constexpr uint64_t kHelloRetryMax = 250 * kMillisecond;
constexpr uint64_t kSoon = 1 * kMillisecond; // again, when the port's queue was full

} // namespace

// ---- HELLO --------------------------------------------------------------------------------------

void Domain::start_hello(Link &link, HelloOp *op) {
    fail_hello(link, DUCKHOST_ERR_STATE, "another HELLO replaced this one");
    link.hello = HelloState();
    HelloState &hello = link.hello;
    hello.op = op;
    bool has_random = random_bytes(hello.host_nonce, sizeof hello.host_nonce);
    while (has_random && (hello.session == 0 || hello.session == domain_session_.load()))
        has_random = random_bytes(&hello.session, sizeof hello.session);
    if (!has_random)
        return fail_hello(link, DUCKHOST_ERR_SYSTEM, "the system gives no random bytes");
    hello.domain_session = domain_session_.load();

    uint8_t payload[sizeof(duck_info)] = {}; // as long as the answer
    duck_hello body{};
    body.session = hello.session;
    body.domain_session = hello.domain_session;
    std::memcpy(body.host_nonce, hello.host_nonce, sizeof body.host_nonce);
    std::memcpy(body.domain_nonce, domain_nonce_, sizeof body.domain_nonce);
    own_build(body.build);
    std::memcpy(payload, &body, sizeof body);
    Message message;
    message.type = DUCK_MSG_HELLO;
    message.sequence = 1;
    message.data = payload;
    message.bytes = sizeof payload;
    build_fragment(hello.packet, message, 0, hello.session, DUCK_KEY_FLEET);
    duck_seal_fleet(fleet_key_, hello.packet, sizeof hello.packet);
    hello.backoff_ns = kHelloRetry;
    send_hello(link);
}

void Domain::send_hello(Link &link) {
    HelloState &hello = link.hello;
    hello.next_ns = now_ + kSoon;
    if (hello.is_proving) {
        send_ping(link);
    } else {
        uint8_t *packet = port_->transmit_buffer();
        if (packet == nullptr) return counters_.transmit_full.add();
        std::memcpy(packet, hello.packet, sizeof hello.packet);
        port_->transmit(sizeof hello.packet, &link.peer, 1);
        link.status.packets_sent.add();
        link.status.bytes_sent.add(sizeof hello.packet);
    }
    hello.next_ns = now_ + hello.backoff_ns;
    hello.backoff_ns *= 2;
    if (hello.backoff_ns > kHelloRetryMax) hello.backoff_ns = kHelloRetryMax;
}

uint64_t Domain::hello_timer(Link &link) {
    HelloState &hello = link.hello;
    if (hello.op == nullptr) return kNever;
    if (now_ >= hello.op->deadline_ns) {
        duckhost_error &error = hello.op->error;
        fail(&error, DUCKHOST_ERR_UNREACHABLE, static_cast<int>(link.index),
             "%s (%s) does not answer: %s within %.1f s", link.name, link.address_text,
             hello.is_proving ? "it sent INFO, but no PONG in the new session"
                              : "no INFO after HELLO",
             hello.op->timeout_ms * 1e-3);
        hint_silent(link, &error);
        finish_hello(link);
        return kNever;
    }
    if (now_ >= hello.next_ns) send_hello(link);
    return hello.next_ns < hello.op->deadline_ns ? hello.next_ns : hello.op->deadline_ns;
}

void Domain::take_info(Link &link, const duck_packet_header &header, const ReceivedPacket &packet) {
    HelloState &hello = link.hello;
    if (header.type != DUCK_MSG_INFO) return link.status.dropped_type.add();
    if (hello.op == nullptr || hello.is_proving || header.session != hello.session)
        return link.status.dropped_session.add();
    if (header.payload_bytes != sizeof(duck_info)) return link.status.dropped_size.add();
    if (duck_open_fleet(fleet_key_, packet.data, packet.bytes) != DUCK_CHECK_OK)
        return link.status.dropped_mac.add();
    duck_info info;
    std::memcpy(&info, packet.data + sizeof header, sizeof info);
    if (info.session != hello.session ||
        std::memcmp(info.host_nonce, hello.host_nonce, sizeof info.host_nonce) != 0)
        return link.status.dropped_replay.add();
    hello.op->info = info;
    if (info.protocol_version != DUCK_WIRE_VERSION) {
        char build[2 * DUCK_WIRE_BUILD_BYTES + 1];
        build_text(info.build, build);
        fail(&hello.op->error, DUCKHOST_ERR_VERSION, static_cast<int>(link.index),
             "%s (%s) speaks protocol version %u, this host speaks %u (its build: %s)", link.name,
             link.address_text, info.protocol_version, DUCK_WIRE_VERSION, build);
        set_hint(&hello.op->error, "boot the duck from this installation's image");
        return finish_hello(link);
    }
    attach(link, info);
    hello.is_proving = true;
    hello.backoff_ns = kHelloRetry;
    send_hello(link);
}

void Domain::finish_hello(Link &link) {
    HelloOp *op = link.hello.op;
    link.hello.op = nullptr;
    if (op != nullptr) op->finish();
}

void Domain::fail_hello(Link &link, duckhost_code code, const char *text) {
    if (link.hello.op == nullptr) return;
    fail(&link.hello.op->error, code, static_cast<int>(link.index), "%s (%s): %s", link.name,
         link.address_text, text);
    finish_hello(link);
}

// ---- attached -----------------------------------------------------------------------------------

void Domain::attach(Link &link, const duck_info &info) {
    detach(link, DUCKHOST_ERR_STATE, "began a new session");
    duck_session_keys keys;
    duck_session_keys_derive(fleet_key_, link.hello.host_nonce, info.duck_nonce, &keys);
    duck_seal_key_set(&link.to_duck, keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    duck_seal_key_set(&link.to_host, keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    std::memset(&keys, 0, sizeof keys);
    duck_replay_reset(&link.window);
    link.session = link.hello.session;
    link.boot_id = info.boot_id;
    link.request_sequence = 0;
    link.ping_sequence = 0;
    link.bulk.reset();
    link.ping_next_ns = now_;
    link.status.attached.set(1);
    link.status.state.set(info.state);
    link.status.boot_id.set(info.boot_id);
    link.status.boot_changed.set(0);
    link.status.domain_session.set(link.hello.domain_session);
    link.status.heard_ns.set(now_);
}

void Domain::detach(Link &link, duckhost_code code, const char *reason) {
    if (!link.is_attached()) return;
    duckhost_error error;
    fail(&error, code, static_cast<int>(link.index), "%s (%s) %s during a call", link.name,
         link.address_text, reason);
    link.calls.fail_all(*this, link, error);
    if ((board_.ducks() >> link.index & 1) != 0) {
        fail(&error, code, static_cast<int>(link.index), "%s (%s) %s", link.name, link.address_text,
             reason);
        board_.end_session(error);
    }
    fail_requests(link, code, reason);
    link.bulk.fail_all(link, code, reason);
    link.session = 0;
    link.ping_next_ns = kNever;
    link.to_duck = {};
    link.to_host = {};
    link.status.attached.set(0);
}

// ---- heartbeat ----------------------------------------------------------------------------------

void Domain::send_ping(Link &link) {
    duck_ping ping{};
    ping.host_time_ns = now_ns();
    send_whole(link, DUCK_MSG_PING, ++link.ping_sequence, &ping, sizeof ping);
}

uint64_t Domain::ping_timer(Link &link) {
    if (!link.is_attached()) return kNever;
    if (now_ >= link.ping_next_ns) {
        send_ping(link);
        link.ping_next_ns = now_ + options_.ping_ms * kMillisecond;
    }
    return link.ping_next_ns;
}

void Domain::take_pong(Link &link, const duck_packet_header &header, const uint8_t *payload) {
    duck_pong pong;
    if (header.payload_bytes != sizeof pong) return link.status.dropped_size.add();
    std::memcpy(&pong, payload, sizeof pong);
    const uint64_t now = now_ns();
    if (pong.host_time_ns > now) return link.status.dropped_size.add();
    link.status.round_trip_ns.set(now - pong.host_time_ns);
    link.status.state.set(pong.state);
    link.status.last_call.set(pong.last_call);
    link.status.boot_id.set(pong.boot_id);
    if (pong.boot_id != link.boot_id) link.status.boot_changed.set(1);
    if (link.hello.op != nullptr && link.hello.is_proving) {
        link.hello.op->round_trip_ns = now - pong.host_time_ns;
        finish_hello(link);
    }
}

} // namespace duckhost
