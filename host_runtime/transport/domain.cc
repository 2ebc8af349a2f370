// SPDX-License-Identifier: Apache-2.0
#include "domain.h"

#include "dpdk/dpdk_port.h"

#include <cerrno>
#include <cstring>
#include <sys/random.h>

namespace duckhost {
namespace {

constexpr uint32_t kReceiveRounds = 8; // batches taken per turn before timers run
constexpr uint32_t kLinkWaitMs = 5000; // at most, for a slow link-up

} // namespace

bool random_bytes(void *out, size_t bytes) {
    auto *next = static_cast<uint8_t *>(out);
    while (bytes > 0) {
        ssize_t got = getrandom(next, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        next += got;
        bytes -= static_cast<size_t>(got);
    }
    return true;
}

// ---- set-up and the other threads' side ---------------------------------------------------------

Domain::Domain(const duckhost_domain &config, const duckhost_options &options,
               const FleetKey &fleet_key, CallBoard &board)
    : config_(config), options_(options), fleet_key_(fleet_key), board_(board) {}

Domain::~Domain() { stop(); }

Link &Domain::add_duck(const duckhost_duck &config, uint32_t index, Peer peer) {
    auto link = std::make_unique<Link>();
    std::snprintf(link->name, sizeof link->name, "%s", config.name);
    std::snprintf(link->address_text, sizeof link->address_text, "%s:%u", config.address,
                  config.port);
    link->index = index;
    link->peer = peer;
    peers_.push_back(peer);
    links_.push_back(std::move(link));
    return *links_.back();
}

int Domain::start(uint32_t bind_address, duckhost_error *error) {
    std::unique_ptr<Port> inner;
    if (config_.device[0] != 0)
        inner = open_dpdk_port(
            {config_.device, bind_address, call_peer_.address, config_.mtu, kLinkWaitMs}, error);
    else
        inner = open_udp_port(
            {bind_address, call_peer_.address != 0, options_.socket_buffer_bytes, !is_crowded_},
            error);
    if (inner == nullptr) return DUCKHOST_ERR_SYSTEM;
    if (int code = use(std::move(inner), error)) return code;
    thread_ = std::thread([this] { run(); });
    return DUCKHOST_OK;
}

int Domain::use(std::unique_ptr<Port> inner, duckhost_error *error) {
    port_ = std::make_unique<FaultPort>(std::move(inner), peers_);
    is_shared_ = is_shared_ && port_->is_shareable();
    if (!refresh_domain_key())
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "the system gives no random bytes: %s",
                    std::strerror(errno));
    return DUCKHOST_OK;
}

void Domain::post(Op *op) {
    {
        std::lock_guard<std::mutex> guard(queue_mutex_);
        if (!is_closed_) {
            queue_.push(op);
            op = nullptr;
        }
    }
    if (op != nullptr) {
        fail(&op->error, DUCKHOST_ERR_CLOSED, -1, "the transport is closed");
        op->finish();
        return;
    }
    has_commands_.store(true);
    port_->wake();
}

// ---- commands -----------------------------------------------------------------------------------

bool Domain::take_commands() {
    if (!has_commands_.load()) return false;
    OpList taken;
    {
        std::lock_guard<std::mutex> guard(queue_mutex_);
        taken = queue_;
        queue_ = OpList();
        has_commands_.store(false);
    }
    now_ = now_ns(); // not earlier than the times that the ops carry
    while (Op *op = taken.pop()) execute(op);
    return true;
}

// Ops of the whole domain name no link: a domain may be without ducks.
void Domain::execute(Op *op) {
    auto link = [&]() -> Link & { return *links_[op->link]; };
    switch (op->kind) {
    case Op::Kind::hello: start_hello(link(), static_cast<HelloOp *>(op)); return;
    case Op::Kind::request: start_request(link(), static_cast<RequestOp *>(op)); return;
    case Op::Kind::write: link().bulk.start(*this, link(), static_cast<WriteOp *>(op)); return;
    case Op::Kind::detach: detach(link(), DUCKHOST_ERR_STATE, "was detached"); break;
    case Op::Kind::faults: set_faults(*static_cast<FaultsOp *>(op)); break;
    case Op::Kind::forget_calls: forget_calls(*static_cast<ForgetCallsOp *>(op)); break;
    case Op::Kind::domain_key: wait_domain_key(link(), static_cast<DomainKeyOp *>(op)); return;
    case Op::Kind::make_domain_key:
        if (!refresh_domain_key())
            fail(&op->error, DUCKHOST_ERR_SYSTEM, -1, "the system gives no random bytes");
        break;
    }
    op->finish();
}

void Domain::set_faults(const FaultsOp &op) { port_->set(op.faults, op.seed, op.cut_mask); }

void Domain::forget_calls(const ForgetCallsOp &op) {
    duckhost_error error;
    fail(&error, DUCKHOST_ERR_STATE, -1, "the compute session was closed during the call");
    calls_.forget();
    for (const auto &link : links_) {
        link->calls.fail_all(*this, *link, error);
        link->calls.prepare(op.result_bytes_max, call_stride());
    }
}

// ---- sending ------------------------------------------------------------------------------------

bool Domain::send(Link &link, const Message &message, uint32_t index) {
    uint8_t *packet = port_->transmit_buffer();
    if (packet == nullptr) {
        counters_.transmit_full.add();
        return false;
    }
    const uint32_t bytes =
        build_fragment(packet, message, index, link.session, DUCK_KEY_SESSION, link.epoch);
    duck_seal(&link.to_duck, packet, bytes);
    port_->transmit(bytes, &link.peer, 1);
    link.status.packets_sent.add();
    link.status.bytes_sent.add(bytes);
    return true;
}

bool Domain::send_whole(Link &link, uint8_t type, uint32_t sequence, const void *data,
                        uint32_t bytes) {
    Message message;
    message.type = type;
    message.sequence = sequence;
    message.data = static_cast<const uint8_t *>(data);
    message.bytes = bytes;
    message.stride = call_stride();
    return send(link, message, 0);
}

bool Domain::send_to_all(const Message &message, uint32_t index, uint64_t members) {
    uint8_t *packet = port_->transmit_buffer();
    if (packet == nullptr) {
        counters_.transmit_full.add();
        return false;
    }
    const uint32_t bytes =
        build_fragment(packet, message, index, domain_session_.load(), DUCK_KEY_DOMAIN);
    duck_seal(&domain_key_[key_in_use_].seal, packet, bytes);
    domain_key_used_.store(true, std::memory_order_relaxed);
    Peer to[DUCKHOST_DUCKS_MAX];
    size_t count = 0;
    for (const auto &link : links_) {
        if ((members >> link->index & 1) == 0) continue;
        to[count++] = link->peer;
        link->status.packets_sent.add();
        link->status.bytes_sent.add(bytes);
    }
    if (call_peer_.address != 0)
        port_->transmit(bytes, &call_peer_, 1);
    else
        port_->transmit(bytes, to, count);
    return true;
}

// ---- receiving ----------------------------------------------------------------------------------

size_t Domain::receive() {
    ReceivedPacket batch[kReceiveBatch];
    size_t total = 0;
    for (uint32_t round = 0; round < kReceiveRounds; round++) {
        const size_t count = port_->receive(batch, kReceiveBatch);
        for (size_t i = 0; i < count; i++) take(batch[i]);
        total += count;
        if (count < kReceiveBatch) break;
    }
    return total;
}

void Domain::take(const ReceivedPacket &packet) {
    duck_packet_header header;
    const duck_check check = duck_packet_check(packet.data, packet.bytes, &header);
    if (check == DUCK_CHECK_SHORT) return counters_.dropped_short.add();
    if (check == DUCK_CHECK_MAGIC) return counters_.dropped_magic.add();
    if (check == DUCK_CHECK_VERSION) return counters_.dropped_version.add();
    Link *link = nullptr;
    for (const auto &candidate : links_)
        if (candidate->peer == packet.peer) link = candidate.get();
    if (link == nullptr) return counters_.dropped_source.add();
    if (check != DUCK_CHECK_OK) {
        counters_.dropped_size.add();
        return link->status.dropped_size.add();
    }
    if (header.key == DUCK_KEY_CLEAR)
        take_clear(*link, header, packet);
    else
        take_session(*link, header, packet);
}

// Under the newest key or the one before it.
duck_check Domain::open_packet(Link &link, const duck_packet_header &header,
                               const ReceivedPacket &packet) {
    const uint32_t epoch = link.whole_epoch(header.epoch);
    if (epoch > link.epoch || link.epoch - epoch > 1) return DUCK_CHECK_MAC;
    return duck_open_sealed(&link.to_host[epoch % 2], &link.window[epoch % 2], packet.data,
                            packet.bytes);
}

void Domain::take_session(Link &link, const duck_packet_header &header,
                          const ReceivedPacket &packet) {
    if (header.key != DUCK_KEY_SESSION) return link.status.dropped_type.add();
    if (header.type == DUCK_MSG_INFO) return take_info(link, header, packet);
    if (!link.is_attached() || header.session != link.session)
        return link.status.dropped_session.add();
    const duck_check check = open_packet(link, header, packet);
    if (check == DUCK_CHECK_REPLAY) return link.status.dropped_replay.add();
    if (check != DUCK_CHECK_OK) {
        link.sent_wrong_seals = true;
        return link.status.dropped_mac.add();
    }
    link.was_refused = link.sent_wrong_seals = false;
    link.status.heard_ns.set(now_);
    link.status.packets_received.add();
    link.status.bytes_received.add(packet.bytes);
    dispatch(link, header, packet.data + sizeof header);
}

// A struct payload in one packet, copied out (packets are not aligned). Texts at its end may be cut
// short: what is missing is zero. False: wrong size.
template <typename T>
static bool read_payload(Link &link, const duck_packet_header &header, const uint8_t *payload,
                         T *out) {
    if (header.payload_bytes != header.message_bytes || header.payload_bytes > sizeof *out ||
        header.payload_bytes < offsetof(T, text)) {
        link.status.dropped_size.add();
        return false;
    }
    *out = {};
    std::memcpy(out, payload, header.payload_bytes);
    return true;
}

// NACK and WRITE_ACK carry only their used ranges.
static bool read_nack(Link &link, const duck_packet_header &header, const uint8_t *payload,
                      duck_nack *out) {
    constexpr uint32_t fixed_bytes = offsetof(duck_nack, range);
    *out = {};
    bool is_fine = header.message_bytes == header.payload_bytes &&
                   header.payload_bytes >= fixed_bytes && header.payload_bytes <= sizeof *out;
    if (is_fine) {
        std::memcpy(out, payload, header.payload_bytes);
        is_fine = out->range_count <= DUCK_WIRE_NACK_RANGES_MAX &&
                  header.payload_bytes == fixed_bytes + out->range_count * sizeof(duck_nack_range);
    }
    if (!is_fine) link.status.dropped_size.add();
    return is_fine;
}

// What a duck says about calls: their numbers begin anew with each compute session.
static bool is_about_calls(uint8_t type) {
    return type == DUCK_MSG_RESULT || type == DUCK_MSG_FAULT || type == DUCK_MSG_NACK ||
           type == DUCK_MSG_BUSY;
}

void Domain::dispatch(Link &link, const duck_packet_header &header, const uint8_t *payload) {
    if (is_about_calls(header.type) &&
        link.calls.is_stale(link.whole_epoch(header.epoch), header.counter))
        return link.status.dropped_session.add();
    duck_nack nack;
    duck_fault fault;
    duck_done done;
    switch (header.type) {
    case DUCK_MSG_RESULT: return link.calls.take_result(*this, link, header, payload);
    case DUCK_MSG_PONG: return take_pong(link, header, payload);
    case DUCK_MSG_REKEY: return take_rekey(link, header, payload);
    case DUCK_MSG_NACK:
        if (read_nack(link, header, payload, &nack))
            link.calls.take_nack(*this, link, header.sequence, nack);
        return;
    case DUCK_MSG_BUSY: return link.calls.take_busy(*this, header.sequence);
    case DUCK_MSG_FAULT:
        if (read_payload(link, header, payload, &fault)) link.calls.take_fault(*this, link, fault);
        return;
    case DUCK_MSG_WRITE_ACK:
        if (read_nack(link, header, payload, &nack))
            link.bulk.take_ack(*this, link, header.sequence, nack);
        return;
    case DUCK_MSG_DONE:
        if ((header.sequence & kWriteSequenceBit) != 0) {
            if (read_payload(link, header, payload, &done))
                link.bulk.take_refusal(*this, link, header.sequence & ~kWriteSequenceBit, done);
            return;
        }
        return take_reply(link, header, payload);
    case DUCK_MSG_LOG:
    case DUCK_MSG_STATS:
    case DUCK_MSG_USAGE:
    case DUCK_MSG_READ_DATA: return take_reply(link, header, payload);
    default: link.status.dropped_type.add();
    }
}

} // namespace duckhost
