// SPDX-License-Identifier: Apache-2.0
//
// Keys after the handshake: fresh session keys before the old ones are too old or have sealed too
// much, and the domain's key, which each duck is given inside its session. Nothing waits for
// either: packets under the old and the new key are good at the same time.
#include "domain.h"

#include <cstring>
#include <strings.h>

namespace duckhost {
namespace {

constexpr uint64_t kRekeyRetry = 20 * kMillisecond;
constexpr uint64_t kRekeyRetryMax = 250 * kMillisecond;
constexpr uint64_t kSoon = 1 * kMillisecond;         // again, when the port's queue was full
constexpr uint64_t kGiveAgain = 1000 * kMillisecond; // a domain key, after a failure
constexpr uint64_t kGiveLimit = 3000 * kMillisecond; // one attempt

} // namespace

// ---- session keys -------------------------------------------------------------------------------

uint64_t Domain::rekey_timer(Link &link) {
    if (!link.is_attached()) return kNever;
    RekeyState &rekey = link.rekey;
    if (!rekey.is_running) {
        if (now_ < rekey.due_ns && link.to_duck.counter < options_.rekey_packets)
            return rekey.due_ns;
        start_rekey(link);
    }
    if (!rekey.is_running || now_ < rekey.next_ns) return rekey.next_ns;
    const bool is_sent =
        send_whole(link, DUCK_MSG_REKEY, rekey.request.epoch, &rekey.request, sizeof rekey.request);
    rekey.next_ns = now_ + (is_sent ? rekey.backoff_ns : kSoon);
    if (is_sent) rekey.backoff_ns = std::min(2 * rekey.backoff_ns, kRekeyRetryMax);
    return rekey.next_ns;
}

void Domain::start_rekey(Link &link) {
    RekeyState &rekey = link.rekey;
    rekey.next_ns = now_;
    rekey.backoff_ns = kRekeyRetry;
    rekey.request = {};
    rekey.request.epoch = link.epoch + 1;
    rekey.is_running = random_bytes(rekey.private_key, sizeof rekey.private_key);
    if (!rekey.is_running) {
        rekey.next_ns = rekey.due_ns = now_ + kGiveAgain;
        return;
    }
    duck_agree_public(rekey.private_key, rekey.request.ephemeral);
}

void Domain::take_rekey(Link &link, const duck_packet_header &header, const uint8_t *payload) {
    RekeyState &rekey = link.rekey;
    duck_rekey answer;
    uint8_t secret[DUCK_WIRE_KEY_BYTES];
    if (header.payload_bytes != sizeof answer) return link.status.dropped_size.add();
    std::memcpy(&answer, payload, sizeof answer);
    if (!rekey.is_running || answer.epoch != rekey.request.epoch) return; // came twice
    if (!duck_agree(rekey.private_key, answer.ephemeral, secret))
        return link.status.dropped_mac.add();
    duck_session_keys_next(&link.keys, secret);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(rekey.private_key, sizeof rekey.private_key);
    set_keys(link, answer.epoch);
    link.status.rekeys.add();
}

// What follows from link.keys: everything is sent under them from now on.
void Domain::set_keys(Link &link, uint32_t epoch) {
    link.epoch = epoch;
    duck_seal_key_set(&link.to_duck, link.keys.to_duck, DUCK_KEY_SESSION, DUCK_TO_DUCK);
    duck_seal_key_set(&link.to_host[epoch % 2], link.keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    duck_replay_reset(&link.window[epoch % 2]);
    link.rekey.is_running = false;
    link.rekey.due_ns = now_ + options_.rekey_ms * kMillisecond;
}

// ---- the domain's key ---------------------------------------------------------------------------

bool Domain::make_domain_key(DomainKey &key) {
    key.session = 0;
    if (!random_bytes(key.raw, sizeof key.raw)) return false;
    while (key.session == 0)
        if (!random_bytes(&key.session, sizeof key.session)) return false;
    duck_seal_key_set(&key.seal, key.raw, DUCK_KEY_DOMAIN, DUCK_TO_DUCK);
    key.born_ns = now_ns();
    return true;
}

// Before a compute session opens; no call is under way.
bool Domain::refresh_domain_key() {
    is_changing_key_ = false;
    if (!make_domain_key(domain_key_[key_in_use_])) return false;
    domain_session_.store(domain_key_[key_in_use_].session);
    domain_key_used_.store(false);
    return true;
}

void Domain::wait_domain_key(Link &link, DomainKeyOp *op) {
    duckhost_error error;
    fail(&error, DUCKHOST_ERR_STATE, static_cast<int>(link.index),
         "%s (%s): another session_open took over", link.name, link.address_text);
    fail_domain_key(link, error);
    if (!link.is_attached()) {
        fail(&op->error, DUCKHOST_ERR_STATE, static_cast<int>(link.index),
             "%s (%s) is not attached: a compute session needs a HELLO first", link.name,
             link.address_text);
        return op->finish();
    }
    link.domain_key.waiting = op;
    link.domain_key.next_ns = now_;
}

void Domain::fail_domain_key(Link &link, const duckhost_error &error) {
    DomainKeyOp *op = link.domain_key.waiting;
    if (op == nullptr) return;
    link.domain_key.waiting = nullptr;
    op->error = error;
    op->finish();
}

// Sealed for this duck alone, by its session's wrap key.
void Domain::give_domain_key(Link &link, const DomainKey &key) {
    DomainKeyState &state = link.domain_key;
    state.given = key.session;
    state.message = {};
    state.message.domain_session = key.session;
    state.message.wrap_counter = ++state.wrap_counter;
    duck_domain_key_wrap(link.keys.wrap, key.raw, &state.message);
    RequestOp &request = state.request.emplace(0);
    request.type = DUCK_MSG_DOMAIN_KEY;
    request.payload = reinterpret_cast<const uint8_t *>(&state.message);
    request.payload_bytes = sizeof state.message;
    request.start_ns = now_;
    request.deadline_ns = state.waiting != nullptr ? state.waiting->deadline_ns : now_ + kGiveLimit;
    request.silence_ns = options_.silence_ms * kMillisecond;
    request.reply = reinterpret_cast<uint8_t *>(&state.reply);
    request.reply_bytes_max = sizeof state.reply;
    start_request(link, &request);
}

// The request is over, well or badly.
void Domain::domain_key_given(Link &link) {
    DomainKeyState &state = link.domain_key;
    duckhost_error error = state.request->error;
    const bool is_done = error.code == DUCKHOST_OK;
    if (is_done && state.reply.status == DUCK_OK) link.status.domain_session.set(state.given);
    if (is_done && state.reply.status != DUCK_OK)
        fail(&error, DUCKHOST_ERR_REFUSED, static_cast<int>(link.index),
             "%s (%s) refused the domain's key: %s", link.name, link.address_text,
             status_text(state.reply.status));
    state.request.reset();
    state.next_ns = now_ + kGiveAgain;
    if (error.code != DUCKHOST_OK) fail_domain_key(link, error);
}

uint64_t Domain::domain_key_timer(Link &link) {
    DomainKeyState &state = link.domain_key;
    const bool is_member = is_changing_key_ && (board_.ducks() >> link.index & 1) != 0;
    if (state.waiting == nullptr && !is_member) return kNever;
    const DomainKey &key = domain_key_[is_member ? key_in_use_ ^ 1 : key_in_use_];
    if (link.status.domain_session.get() == key.session) {
        if (state.waiting != nullptr) {
            DomainKeyOp *op = state.waiting;
            state.waiting = nullptr;
            op->finish();
        }
        return kNever;
    }
    if (!link.is_attached() || state.request.has_value()) return kNever;
    if (now_ < state.next_ns) return state.next_ns;
    give_domain_key(link, key);
    return now_;
}

// While a compute session is open: the next key is given to all of its ducks, then used.
uint64_t Domain::domain_rekey_timer() {
    uint64_t members = 0;
    for (const auto &link : links_) members |= board_.ducks() & UINT64_C(1) << link->index;
    if (members == 0) return kNever;
    const DomainKey &key = domain_key_[key_in_use_];
    DomainKey &next = domain_key_[key_in_use_ ^ 1];
    const uint64_t due_ns = std::max(key.born_ns + options_.rekey_ms * kMillisecond, key_retry_ns_);
    if (!is_changing_key_) {
        const bool is_full = key.seal.counter >= options_.rekey_packets && now_ >= key_retry_ns_;
        if (!domain_key_used_.load() || (now_ < due_ns && !is_full))
            return domain_key_used_.load() ? due_ns : kNever;
        is_changing_key_ = make_domain_key(next);
        if (!is_changing_key_) key_retry_ns_ = now_ + kGiveAgain;
        for (const auto &link : links_) link->domain_key.next_ns = now_;
        return now_;
    }
    for (const auto &link : links_)
        if ((members >> link->index & 1) != 0 && link->status.domain_session.get() != next.session)
            return kNever;
    key_in_use_ ^= 1;
    is_changing_key_ = false;
    domain_session_.store(next.session);
    counters_.rekeys.add();
    return kNever;
}

} // namespace duckhost
