// SPDX-License-Identifier: Apache-2.0
//
// Opening a fleet, and requests to single ducks. Compute sessions and calls: compute.cc.
#include "transport.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <sched.h>

namespace duckhost {
namespace {

constexpr uint32_t kMtuMin = 1280; // every single-packet message fits
constexpr uint32_t kMtuMax = 9000;
constexpr uint32_t kHelloTimeoutMs = 2000;
constexpr uint32_t kCallsMax = UINT32_MAX - 1; // of one compute session

bool is_text(const char *text, size_t bytes) {
    return text[0] != 0 && std::memchr(text, 0, bytes) != nullptr;
}

bool parse_address(const char (&text)[DUCKHOST_ADDRESS_BYTES], uint32_t *out) {
    return std::memchr(text, 0, sizeof text) != nullptr && inet_pton(AF_INET, text, out) == 1;
}

void default_to(uint32_t *value, uint32_t fallback) {
    if (*value == 0) *value = fallback;
}

int complete_options(duckhost_options *options, duckhost_error *error) {
    default_to(&options->silence_ms, 3000);
    default_to(&options->call_ms, 30000);
    default_to(&options->request_retry_us, 20000);
    default_to(&options->query_us, 2000);
    default_to(&options->retry_us_max, 100000);
    default_to(&options->nack_us, 300);
    default_to(&options->ping_ms, 200);
    default_to(&options->bulk_chunk_bytes, 65536);
    default_to(&options->bulk_chunks_max, DUCK_WIRE_WRITES_IN_FLIGHT_MAX);
    default_to(&options->socket_buffer_bytes, 4u << 20);
    default_to(&options->rekey_ms, 3600u * 1000u);
    default_to(&options->rekey_packets, 1u << 31);
    default_to(&options->session_calls_max, kCallsMax);
    if (options->poll_policy > DUCK_POLL_BLOCK)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "poll_policy %u is unknown: expected 0 to 2",
                    options->poll_policy);
    if (options->bulk_chunk_bytes % 64 != 0 ||
        options->bulk_chunk_bytes > DUCK_WIRE_WRITE_CHUNK_BYTES)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "bulk_chunk_bytes is %u: expected a multiple of 64, at most %u",
                    options->bulk_chunk_bytes, DUCK_WIRE_WRITE_CHUNK_BYTES);
    if (options->bulk_chunks_max > DUCK_WIRE_WRITES_IN_FLIGHT_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "bulk_chunks_max is %u: expected at most %u",
                    options->bulk_chunks_max, DUCK_WIRE_WRITES_IN_FLIGHT_MAX);
    if (options->session_calls_max > kCallsMax)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "session_calls_max is %u: expected at most %u", options->session_calls_max,
                    kCallsMax);
    if (options->ping_ms >= options->silence_ms)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "ping_ms (%u) must be shorter than silence_ms (%u): a living duck is heard "
                    "through its heartbeat",
                    options->ping_ms, options->silence_ms);
    return DUCKHOST_OK;
}

} // namespace

// ---- open ---------------------------------------------------------------------------------------

int Transport::open(const duckhost_domain *domains, uint32_t domain_count,
                    const duckhost_duck *ducks, uint32_t duck_count, const uint8_t *fleet_private,
                    const duckhost_options &options, duckhost_error *error) {
    if (domain_count == 0 || domain_count > DUCKHOST_DOMAINS_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "%u domains: expected 1 to %u", domain_count,
                    DUCKHOST_DOMAINS_MAX);
    if (duck_count == 0 || duck_count > DUCKHOST_DUCKS_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "%u ducks: expected 1 to %u", duck_count,
                    DUCKHOST_DUCKS_MAX);
    std::memcpy(fleet_key_.private_key, fleet_private, sizeof fleet_key_.private_key);
    if (!duck_fleet_public(fleet_key_.private_key, fleet_key_.public_key))
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "the fleet's key is not a P-256 private key");
    options_ = options;
    if (int code = complete_options(&options_, error)) return code;
    for (uint32_t i = 0; i < domain_count; i++)
        if (int code = add_domain(domains[i], error)) return code;
    for (uint32_t i = 0; i < duck_count; i++)
        if (int code = add_duck(ducks[i], i, error)) return code;
    for (uint32_t i = 0; i < domain_count; i++)
        if (int code = start_domain(i, domains[i], error)) return code;
    return succeed(error);
}

Transport::~Transport() {
    stop();
    explicit_bzero(&fleet_key_, sizeof fleet_key_);
}

void Transport::stop() {
    duckhost_error error;
    fail(&error, DUCKHOST_ERR_CLOSED, -1, "the transport is closed");
    board_.end_session(error);
    {
        std::lock_guard<std::mutex> guard(submit_mutex_);
        is_open_ = false; // a call published before this is among those aborted below
    }
    for (const auto &domain : domains_) domain->stop();
    board_.abort_all(error);
}

int Transport::add_domain(const duckhost_domain &config, duckhost_error *error) {
    if (!is_text(config.name, sizeof config.name))
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "domain %zu has no name", domains_.size());
    if (config.mtu < kMtuMin || config.mtu > kMtuMax)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "domain %s: MTU %u, expected %u to %u",
                    config.name, config.mtu, kMtuMin, kMtuMax);
    domains_.push_back(std::make_unique<Domain>(config, options_, fleet_key_, board_));
    return DUCKHOST_OK;
}

int Transport::add_duck(const duckhost_duck &config, uint32_t index, duckhost_error *error) {
    Peer peer;
    if (!is_text(config.name, sizeof config.name))
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index), "duck %u has no name",
                    index);
    if (!parse_address(config.address, &peer.address))
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index),
                    "%s: its address is not an IPv4 address", config.name);
    if (config.port == 0 || config.port > UINT16_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index),
                    "%s: port %u, expected 1 to 65535", config.name, config.port);
    if (config.domain >= domains_.size())
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index),
                    "%s: domain %u, there are %zu", config.name, config.domain, domains_.size());
    peer.port = htons(static_cast<uint16_t>(config.port));
    for (const Place &other : ducks_) {
        if (std::strcmp(other.state->name, config.name) == 0)
            return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index),
                        "two ducks are named %s", config.name);
        if (other.state->peer == peer)
            return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(index),
                        "%s and %s have the same address %s", other.state->name, config.name,
                        other.state->address_text);
    }
    Domain &domain = *domains_[config.domain];
    const auto place = static_cast<uint32_t>(domain.duck_count());
    ducks_.push_back({&domain, place, &domain.add_duck(config, index, peer)});
    return DUCKHOST_OK;
}

int Transport::start_domain(size_t index, const duckhost_domain &config, duckhost_error *error) {
    Domain &domain = *domains_[index];
    uint32_t bind_address = 0;
    Peer broadcast;
    if (config.device[0] != 0 && std::memchr(config.device, 0, sizeof config.device) == nullptr)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "domain %s: its device's name is too long",
                    config.name);
    if (config.device[0] != 0 && config.bind_address[0] == 0)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "domain %s: a device needs bind_address, the host's address there",
                    config.name);
    cpu_set_t allowed;
    if (config.cpu != 0 &&
        (config.cpu > CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
         !CPU_ISSET(config.cpu - 1, &allowed)))
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "domain %s: its thread may not run on CPU %u",
                    config.name, config.cpu - 1);
    if (config.bind_address[0] != 0 && !parse_address(config.bind_address, &bind_address))
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "domain %s: bind_address is not an IPv4 address", config.name);
    if (config.call_address[0] != 0) {
        if (!parse_address(config.call_address, &broadcast.address))
            return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                        "domain %s: call_address is not an IPv4 address", config.name);
        for (size_t i = 0; i < domain.duck_count(); i++) {
            const Link &link = domain.link(i);
            if (i > 0 && link.peer.port != broadcast.port)
                return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(link.index),
                            "domain %s broadcasts its calls, so all of its ducks need the same "
                            "port; %s is %s",
                            config.name, link.name, link.address_text);
            broadcast.port = link.peer.port;
        }
        domain.set_call_peer(broadcast);
    }
    // Threads that wait for calls look after the domains too where that hands less over (one
    // domain), or where there are too few CPUs for a thread each.
    const bool is_crowded = has_few_cpus();
    domain.set_shared(config.cpu == 0 && (is_crowded || domains_.size() == 1), is_crowded);
    return domain.start(bind_address, error);
}

bool Transport::has_few_cpus() const {
    cpu_set_t allowed;
    if (domains_.size() == 1) return false;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    return domains_.size() + 1 > static_cast<size_t>(CPU_COUNT(&allowed));
}

// ---- single ducks -------------------------------------------------------------------------------

int Transport::check_duck(uint32_t duck, duckhost_error *error) const {
    if (duck < ducks_.size()) return DUCKHOST_OK;
    return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "duck %u, there are %zu", duck, ducks_.size());
}

int Transport::hello(uint32_t duck, uint32_t timeout_ms, duck_info *info, uint8_t *identity,
                     uint64_t *round_trip_ns, duckhost_error *error) {
    if (int code = check_duck(duck, error)) return code;
    HelloOp op(ducks_[duck].link);
    op.timeout_ms = timeout_ms != 0 ? timeout_ms : kHelloTimeoutMs;
    op.deadline_ns = now_ns() + op.timeout_ms * kMillisecond;
    ducks_[duck].domain->post(&op);
    const int code = op.wait();
    if (info != nullptr) *info = op.info;
    if (identity != nullptr) std::memcpy(identity, op.identity, sizeof op.identity);
    if (round_trip_ns != nullptr) *round_trip_ns = op.round_trip_ns;
    if (error != nullptr) *error = op.error;
    return code;
}

int Transport::detach(uint32_t duck, duckhost_error *error) {
    if (int code = check_duck(duck, error)) return code;
    Op op(Op::Kind::detach, ducks_[duck].link);
    ducks_[duck].domain->post(&op);
    const int code = op.wait();
    if (error != nullptr) *error = op.error;
    return code;
}

int check_done(const Link &link, const RequestOp &op, duckhost_error *error) {
    if (op.reply_type != DUCK_MSG_DONE) return DUCKHOST_OK;
    duck_done done;
    std::memcpy(&done, op.reply, sizeof done); // take_reply checked the size
    if (done.status == DUCK_OK) return DUCKHOST_OK;
    char text[DUCK_WIRE_TEXT_BYTES + 1];
    copy_text(text, sizeof text, done.text, sizeof done.text);
    fail(error, DUCKHOST_ERR_REFUSED, static_cast<int>(link.index), "%s (%s) refused %s: %s (%s)",
         link.name, link.address_text, message_type_text(op.type), status_text(done.status), text);
    if (error != nullptr) {
        error->status = done.status;
        error->detail = done.detail;
        error->value = done.value;
    }
    return DUCKHOST_ERR_REFUSED;
}

int Transport::request(uint32_t duck, uint32_t type, const void *payload, uint32_t payload_bytes,
                       uint32_t timeout_ms, void *reply, uint32_t reply_bytes_max,
                       uint32_t *reply_type, uint32_t *reply_bytes, duckhost_error *error) {
    if (int code = check_duck(duck, error)) return code;
    const bool is_known = type == DUCK_MSG_LOG || type == DUCK_MSG_STATS ||
                          type == DUCK_MSG_USAGE || type == DUCK_MSG_REBOOT ||
                          type == DUCK_MSG_RESERVE || type == DUCK_MSG_COMMIT ||
                          type == DUCK_MSG_READ || type == DUCK_MSG_OPEN || type == DUCK_MSG_CLOSE;
    if (!is_known)
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(duck),
                    "message type %u is not a request", type);
    if (payload_bytes > stride_for_mtu(kMtuMin, 0) || timeout_ms == 0)
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(duck),
                    "a request of %u bytes with a time limit of %u ms: expected at most %u bytes "
                    "and a limit",
                    payload_bytes, timeout_ms, stride_for_mtu(kMtuMin, 0));
    RequestOp op(ducks_[duck].link);
    op.type = static_cast<uint8_t>(type);
    op.payload = static_cast<const uint8_t *>(payload);
    op.payload_bytes = payload_bytes;
    op.start_ns = now_ns();
    op.deadline_ns = op.start_ns + timeout_ms * kMillisecond;
    op.silence_ns = std::min(options_.silence_ms, timeout_ms) * kMillisecond;
    op.reply = static_cast<uint8_t *>(reply);
    op.reply_bytes_max = reply_bytes_max;
    ducks_[duck].domain->post(&op);
    op.wait();
    if (reply_type != nullptr) *reply_type = op.reply_type;
    if (reply_bytes != nullptr) *reply_bytes = op.reply_bytes;
    if (error != nullptr) *error = op.error;
    if (op.error.code != DUCKHOST_OK) return op.error.code;
    return check_done(*ducks_[duck].state, op, error);
}

int Transport::write(uint32_t duck, uint32_t region, uint64_t offset, const void *data,
                     uint64_t bytes, duckhost_progress *progress, duckhost_error *error) {
    if (int code = check_duck(duck, error)) return code;
    if (region >= DUCK_REGION_COUNT)
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(duck), "region %u, there are %d",
                    region, static_cast<int>(DUCK_REGION_COUNT));
    duckhost_progress own{};
    WriteOp op(ducks_[duck].link);
    op.region = region;
    op.offset = offset;
    op.bytes = bytes;
    op.data = static_cast<const uint8_t *>(data);
    op.progress = progress != nullptr ? progress : &own;
    ducks_[duck].domain->post(&op);
    const int code = op.wait();
    if (error != nullptr) *error = op.error;
    return code;
}

// ---- what is going on ---------------------------------------------------------------------------

int Transport::duck_status(uint32_t duck, duckhost_duck_status *out) const {
    if (duck >= ducks_.size()) return DUCKHOST_ERR_ARGUMENT;
    const LinkStatus &status = ducks_[duck].state->status;
    *out = {};
    out->attached = static_cast<uint32_t>(status.attached.get());
    out->state = static_cast<uint32_t>(status.state.get());
    out->last_call = static_cast<uint32_t>(status.last_call.get());
    out->boot_changed = static_cast<uint32_t>(status.boot_changed.get());
    out->boot_id = status.boot_id.get();
    const uint64_t heard_ns = status.heard_ns.get(), now = now_ns();
    out->heard_age_ns = heard_ns == 0 ? UINT64_MAX : now > heard_ns ? now - heard_ns : 0;
    out->round_trip_ns = status.round_trip_ns.get();
    out->calls = status.calls.get();
    out->kernel_ns = status.kernel_ns.get();
    out->queue_ns = status.queue_ns.get();
    out->call_ns = status.call_ns.get();
    out->packets_sent = status.packets_sent.get();
    out->packets_received = status.packets_received.get();
    out->bytes_sent = status.bytes_sent.get();
    out->bytes_received = status.bytes_received.get();
    out->fragments_resent = status.fragments_resent.get();
    out->nacks_sent = status.nacks_sent.get();
    out->nacks_received = status.nacks_received.get();
    out->queries_sent = status.queries_sent.get();
    out->requests_resent = status.requests_resent.get();
    out->dropped_type = status.dropped_type.get();
    out->dropped_size = status.dropped_size.get();
    out->dropped_mac = status.dropped_mac.get();
    out->dropped_replay = status.dropped_replay.get();
    out->dropped_session = status.dropped_session.get();
    out->bulk_bytes = status.bulk_bytes.get();
    out->unreachable_notes = status.unreachable_notes.get();
    out->handshake_ns = status.handshake_ns.get();
    out->rekeys = status.rekeys.get();
    return DUCKHOST_OK;
}

int Transport::domain_stats(uint32_t domain, duckhost_domain_stats *out) const {
    if (domain >= domains_.size()) return DUCKHOST_ERR_ARGUMENT;
    const Domain &from = *domains_[domain];
    const DomainCounters &counters = from.domain_counters();
    const PortCounters &port = from.port().counters();
    const FaultCounters &faults = from.port().fault_counters();
    *out = {};
    out->packets_sent = port.packets_sent.get();
    out->packets_received = port.packets_received.get();
    out->bytes_sent = port.bytes_sent.get();
    out->bytes_received = port.bytes_received.get();
    out->send_errors = port.send_errors.get();
    out->dropped_short = counters.dropped_short.get();
    out->dropped_magic = counters.dropped_magic.get();
    out->dropped_version = counters.dropped_version.get();
    out->dropped_size = counters.dropped_size.get();
    out->dropped_source = counters.dropped_source.get();
    out->transmit_full = counters.transmit_full.get();
    out->turns = counters.turns.get();
    out->rekeys = counters.rekeys.get();
    out->missed = port.missed.get();
    out->damaged = port.damaged.get();
    out->faults = {faults.dropped.get(),   faults.duplicated.get(), faults.reordered.get(),
                   faults.corrupted.get(), faults.delayed.get(),    faults.cut.get()};
    return DUCKHOST_OK;
}

int Transport::set_faults(const duckhost_faults &faults, duckhost_error *error) {
    const double chances[] = {faults.drop, faults.duplicate, faults.reorder, faults.corrupt};
    for (double chance : chances)
        if (!(chance >= 0 && chance <= 1))
            return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "fault probability %g: expected 0 to 1",
                        chance);
    for (size_t i = 0; i < domains_.size(); i++) {
        FaultsOp op;
        op.faults = faults;
        op.seed = faults.seed * DUCKHOST_DOMAINS_MAX + i;
        for (const Place &place : ducks_)
            if (place.domain == domains_[i].get() &&
                (faults.cut_ducks >> place.state->index & 1) != 0)
                op.cut_mask |= UINT64_C(1) << place.link;
        domains_[i]->post(&op);
        if (op.wait() != DUCKHOST_OK) {
            if (error != nullptr) *error = op.error;
            return op.error.code;
        }
    }
    return succeed(error);
}

} // namespace duckhost
