// SPDX-License-Identifier: Apache-2.0
//
// Sessions: the handshake (wire.h tells its formulas), heartbeats.
#include "domain.h"

#include <cstring>
#include <strings.h>

namespace duckhost {
namespace {

constexpr uint64_t kHelloRetry = 20 * kMillisecond;
constexpr uint64_t kStepLimit = 600 * kMillisecond; // no INFO or PONG for so long: HELLO again
constexpr uint64_t kHelloRetryMax = 250 * kMillisecond;
constexpr uint64_t kSoon = 1 * kMillisecond; // again, when the port's queue was full

} // namespace

// ---- HELLO --------------------------------------------------------------------------------------

void Domain::start_hello(Link &link, HelloOp *op) {
    fail_hello(link, DUCKHOST_ERR_STATE, "another HELLO replaced this one");
    link.hello = HelloState();
    link.hello.op = op;
    link.hello.first_ns = now_;
    if (!begin_hello(link))
        return fail_hello(link, DUCKHOST_ERR_SYSTEM, "the system gives no random bytes");
    send_hello(link);
}

// From the start, also when a duck gave a cookie or INFO and then no more: it was restarted.
bool Domain::begin_hello(Link &link) {
    HelloState &hello = link.hello;
    hello.step = HelloState::Step::hello;
    hello.session = 0;
    bool has_random = random_bytes(hello.host_nonce, sizeof hello.host_nonce);
    while (has_random && hello.session == 0)
        has_random = random_bytes(&hello.session, sizeof hello.session);
    duck_hello body{};
    body.session = hello.session;
    body.protocol_version = DUCK_WIRE_VERSION;
    std::memcpy(body.host_nonce, hello.host_nonce, sizeof body.host_nonce);
    own_build(body.build);
    Message message;
    message.type = DUCK_MSG_HELLO;
    message.sequence = 1;
    message.data = reinterpret_cast<const uint8_t *>(&body);
    message.bytes = sizeof body;
    hello.packet_bytes = build_fragment(hello.packet, message, 0, hello.session, DUCK_KEY_CLEAR);
    hello.backoff_ns = kHelloRetry;
    return has_random;
}

void Domain::send_hello(Link &link) {
    HelloState &hello = link.hello;
    hello.next_ns = now_ + kSoon;
    if (hello.step == HelloState::Step::ping) {
        send_ping(link);
    } else {
        uint8_t *packet = port_->transmit_buffer();
        if (packet == nullptr) return counters_.transmit_full.add();
        std::memcpy(packet, hello.packet, hello.packet_bytes);
        port_->transmit(hello.packet_bytes, &link.peer, 1);
        link.status.packets_sent.add();
        link.status.bytes_sent.add(hello.packet_bytes);
    }
    hello.next_ns = now_ + hello.backoff_ns;
    hello.backoff_ns *= 2;
    if (hello.backoff_ns > kHelloRetryMax) hello.backoff_ns = kHelloRetryMax;
}

static const char *missing(const HelloState &hello) {
    switch (hello.step) {
    case HelloState::Step::hello: return "no COOKIE after HELLO";
    case HelloState::Step::proof: return "it sent COOKIE, but no INFO after this host's proof";
    default: return "it sent INFO, but no PONG in the new session";
    }
}

uint64_t Domain::hello_timer(Link &link) {
    HelloState &hello = link.hello;
    if (hello.op == nullptr) return kNever;
    if (now_ >= hello.op->deadline_ns) {
        duckhost_error &error = hello.op->error;
        fail(&error, DUCKHOST_ERR_UNREACHABLE, static_cast<int>(link.index),
             "%s (%s) does not answer: %s within %.1f s", link.name, link.address_text,
             missing(hello), hello.op->timeout_ms * 1e-3);
        if (hello.step == HelloState::Step::proof)
            set_hint(&error, "a duck is there and does not believe this host: give it the public "
                             "key that belongs to this fleet's private key");
        else
            hint_silent(link, &error);
        finish_hello(link);
        return kNever;
    }
    if (now_ >= hello.next_ns) {
        const bool is_stuck =
            hello.step != HelloState::Step::hello && elapsed_ns(now_, hello.step_ns) >= kStepLimit;
        if (is_stuck && !begin_hello(link)) {
            fail_hello(link, DUCKHOST_ERR_SYSTEM, "the system gives no random bytes");
            return kNever;
        }
        send_hello(link);
    }
    return hello.next_ns < hello.op->deadline_ns ? hello.next_ns : hello.op->deadline_ns;
}

// ---- COOKIE and PROOF ---------------------------------------------------------------------------

void Domain::take_clear(Link &link, const duck_packet_header &header,
                        const ReceivedPacket &packet) {
    HelloState &hello = link.hello;
    duck_cookie cookie;
    if (header.type != DUCK_MSG_COOKIE) return link.status.dropped_type.add();
    if (hello.op == nullptr || hello.step != HelloState::Step::hello ||
        header.session != hello.session)
        return link.status.dropped_session.add();
    if (header.payload_bytes != sizeof cookie) return link.status.dropped_size.add();
    std::memcpy(&cookie, packet.data + sizeof header, sizeof cookie);
    if (cookie.session != hello.session ||
        std::memcmp(cookie.host_nonce, hello.host_nonce, sizeof cookie.host_nonce) != 0)
        return link.status.dropped_replay.add();
    take_cookie(link, cookie);
}

void Domain::take_cookie(Link &link, const duck_cookie &cookie) {
    HelloState &hello = link.hello;
    if (cookie.protocol_version != DUCK_WIRE_VERSION) {
        char build[2 * DUCK_WIRE_BUILD_BYTES + 1];
        build_text(cookie.build, build);
        hello.op->info.protocol_version = cookie.protocol_version;
        std::memcpy(hello.op->info.build, cookie.build, sizeof cookie.build);
        std::memcpy(hello.op->info.name, cookie.name, sizeof cookie.name);
        fail(&hello.op->error, DUCKHOST_ERR_VERSION, static_cast<int>(link.index),
             "%s (%s) speaks protocol version %u, this host speaks %u (its build: %s)", link.name,
             link.address_text, cookie.protocol_version, DUCK_WIRE_VERSION, build);
        set_hint(&hello.op->error, "boot the duck from this installation's image");
        return finish_hello(link);
    }
    hello.cookie = cookie;
    if (!make_proof(link)) return link.status.dropped_mac.add();
    hello.step = HelloState::Step::proof;
    hello.step_ns = now_;
    hello.backoff_ns = kHelloRetry;
    send_hello(link);
}

// Agrees on keys and signs; about two milliseconds of this thread's time per handshake.
bool Domain::make_proof(Link &link) {
    HelloState &hello = link.hello;
    const duck_cookie &cookie = hello.cookie;
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES], digest[DUCK_WIRE_DIGEST_BYTES];
    uint8_t by_ephemeral[DUCK_WIRE_KEY_BYTES], by_identity[DUCK_WIRE_KEY_BYTES];
    if (!random_bytes(ephemeral, sizeof ephemeral)) return false;
    duck_proof proof{};
    proof.session = hello.session;
    std::memcpy(proof.host_nonce, hello.host_nonce, sizeof proof.host_nonce);
    std::memcpy(proof.duck_nonce, cookie.duck_nonce, sizeof proof.duck_nonce);
    duck_agree_public(ephemeral, proof.ephemeral);
    duck_transcript transcript{};
    transcript.session = hello.session;
    transcript.boot_id = cookie.boot_id;
    std::memcpy(transcript.host_nonce, hello.host_nonce, sizeof transcript.host_nonce);
    std::memcpy(transcript.duck_nonce, cookie.duck_nonce, sizeof transcript.duck_nonce);
    std::memcpy(transcript.host_ephemeral, proof.ephemeral, sizeof transcript.host_ephemeral);
    std::memcpy(transcript.duck_ephemeral, cookie.ephemeral, sizeof transcript.duck_ephemeral);
    std::memcpy(transcript.duck_identity, cookie.identity, sizeof transcript.duck_identity);
    duck_transcript_digest(&transcript, fleet_key_.public_key, digest);
    const bool is_good = duck_agree(ephemeral, cookie.ephemeral, by_ephemeral) &&
                         duck_agree(ephemeral, cookie.identity, by_identity) &&
                         duck_fleet_sign(fleet_key_.private_key, digest, proof.signature);
    if (is_good) duck_session_keys_derive(digest, by_ephemeral, by_identity, &hello.keys);
    explicit_bzero(ephemeral, sizeof ephemeral);
    explicit_bzero(by_ephemeral, sizeof by_ephemeral);
    explicit_bzero(by_identity, sizeof by_identity);
    if (!is_good) return false;
    duck_seal_key_set(&hello.to_host, hello.keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    duck_replay_reset(&hello.window);
    Message message;
    message.type = DUCK_MSG_PROOF;
    message.sequence = 1;
    message.data = reinterpret_cast<const uint8_t *>(&proof);
    message.bytes = sizeof proof;
    hello.packet_bytes = build_fragment(hello.packet, message, 0, hello.session, DUCK_KEY_CLEAR);
    return true;
}

// ---- INFO ---------------------------------------------------------------------------------------

// Only the holder of the identity that COOKIE told can seal it.
void Domain::take_info(Link &link, const duck_packet_header &header, const ReceivedPacket &packet) {
    HelloState &hello = link.hello;
    duck_info info;
    if (hello.op == nullptr || hello.step != HelloState::Step::proof ||
        header.session != hello.session)
        return link.status.dropped_session.add();
    if (header.payload_bytes != sizeof info) return link.status.dropped_size.add();
    if (header.epoch != 0 || duck_open_sealed(&hello.to_host, &hello.window, packet.data,
                                              packet.bytes) != DUCK_CHECK_OK) {
        link.sent_wrong_seals = true;
        return link.status.dropped_mac.add();
    }
    std::memcpy(&info, packet.data + sizeof header, sizeof info);
    if (info.session != hello.session || info.boot_id != hello.cookie.boot_id)
        return link.status.dropped_replay.add();
    hello.op->info = info;
    std::memcpy(hello.op->identity, hello.cookie.identity, sizeof hello.op->identity);
    link.was_refused = link.sent_wrong_seals = false;
    link.status.handshake_ns.set(elapsed_ns(now_ns(), hello.first_ns));
    attach(link, info);
    hello.has_attached = true;
    hello.step = HelloState::Step::ping;
    hello.step_ns = now_;
    hello.backoff_ns = kHelloRetry;
    send_hello(link);
}

// The asker of a handshake that failed judges no identity: a session that it began is not used.
void Domain::finish_hello(Link &link) {
    HelloOp *op = link.hello.op;
    link.hello.op = nullptr;
    explicit_bzero(&link.hello.keys, sizeof link.hello.keys);
    if (op == nullptr) return;
    if (op->error.code != DUCKHOST_OK && link.hello.has_attached)
        detach(link, DUCKHOST_ERR_STATE, "was detached: its HELLO failed");
    op->finish();
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
    link.keys = link.hello.keys;
    set_keys(link, 0);
    link.window[0] = link.hello.window; // INFO's counter is used up
    link.session = link.hello.session;
    if (link.boot_id != info.boot_id) link.clock = {}; // its clock began anew
    link.boot_id = info.boot_id;
    link.request_sequence = 0;
    link.ping_sequence = 0;
    link.bulk.reset();
    link.ping_next_ns = now_;
    link.status.attached.set(1);
    link.status.state.set(info.state);
    link.status.boot_id.set(info.boot_id);
    link.status.boot_changed.set(0);
    link.status.domain_session.set(0);
    link.status.heard_ns.set(now_);
}

void Domain::detach(Link &link, duckhost_code code, const char *reason) {
    if (!link.is_attached()) return;
    duckhost_error error;
    fail(&error, code, static_cast<int>(link.index), "%s (%s) %s during a call", link.name,
         link.address_text, reason);
    link.calls.fail_all(*this, link, error);
    fail(&error, code, static_cast<int>(link.index), "%s (%s) %s", link.name, link.address_text,
         reason);
    if ((board_.ducks() >> link.index & 1) != 0) board_.end_session(error);
    fail_requests(link, code, reason);
    fail_domain_key(link, error);
    link.bulk.fail_all(link, code, reason);
    link.session = 0;
    link.ping_next_ns = kNever;
    link.to_duck = {};
    for (duck_seal_key &key : link.to_host) key = {};
    explicit_bzero(&link.keys, sizeof link.keys);
    explicit_bzero(&link.rekey.private_key, sizeof link.rekey.private_key);
    link.rekey.is_running = false;
    link.status.attached.set(0);
    link.status.domain_session.set(0);
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
    link.clock = better_clock(link.clock, pong.host_time_ns, pong.duck_time_ns, now);
    link.status.state.set(pong.state);
    link.status.last_call.set(pong.last_call);
    link.status.boot_id.set(pong.boot_id);
    if (pong.boot_id != link.boot_id) link.status.boot_changed.set(1);
    if (link.hello.op != nullptr && link.hello.step == HelloState::Step::ping) {
        link.hello.op->round_trip_ns = now - pong.host_time_ns;
        finish_hello(link);
    }
}

} // namespace duckhost
