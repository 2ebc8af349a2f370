// SPDX-License-Identifier: Apache-2.0
//
// A domain of attached ducks without threads or sockets, for programs that play the ducks: they
// hold each duck's keys, put one packet at a time into the domain's port and let it take a turn.
#pragma once

#include "domain.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace duckhost {

inline void require(bool is_fine, const char *what) {
    if (is_fine) return;
    std::fprintf(stderr, "not true: %s\n", what);
    std::abort();
}

// What ducks send lies in a queue; what is sent to them is looked at and dropped.
class ScriptPort final : public Port {
  public:
    ~ScriptPort() override { std::free(current_); }
    uint8_t *transmit_buffer() override {
        std::free(out_);
        return out_ = static_cast<uint8_t *>(std::malloc(kPacketRoom));
    }
    void transmit(uint32_t bytes, const Peer *, size_t) override {
        duck_packet_header header;
        require(duck_packet_check(out_, bytes, &header) == DUCK_CHECK_OK, "packets sent are right");
        std::free(out_);
        out_ = nullptr;
    }
    void flush() override {}
    size_t receive(ReceivedPacket *out, size_t count_max) override {
        std::free(current_);
        current_ = nullptr;
        if (count_max == 0 || !has_packet_) return 0;
        has_packet_ = false;
        current_ = static_cast<uint8_t *>(std::malloc(std::max<size_t>(packet_.size(), 1)));
        std::copy(packet_.begin(), packet_.end(), current_);
        *out = {current_, static_cast<uint32_t>(packet_.size()), from_};
        return 1;
    }
    unsigned wait(uint64_t, unsigned) override { return 0; }
    void wake() override {}
    bool refused(Peer *) override { return false; }
    bool is_shareable() const override { return true; }
    const PortCounters &counters() const override { return counters_; }

    void put(std::vector<uint8_t> packet, Peer from) {
        packet_ = std::move(packet);
        from_ = from;
        has_packet_ = true;
    }

  private:
    uint8_t *out_ = nullptr, *current_ = nullptr;
    std::vector<uint8_t> packet_;
    Peer from_;
    bool has_packet_ = false;
    PortCounters counters_;
};

inline const FleetKey &fleet_key() {
    static FleetKey key;
    if (key.private_key[0] == 0) {
        key.private_key[0] = 1;
        require(duck_fleet_public(key.private_key, key.public_key), "a fleet's key");
    }
    return key;
}

inline duckhost_options script_options() {
    duckhost_options set{};
    set.silence_ms = set.call_ms = 3000;
    set.request_retry_us = set.query_us = 2000;
    set.retry_us_max = 100000;
    set.nack_us = 300;
    set.ping_ms = 1000;
    set.bulk_chunk_bytes = 65536;
    set.bulk_chunks_max = 8;
    set.rekey_ms = 3600000;
    set.rekey_packets = UINT32_C(1) << 31;
    return set;
}

class ScriptDomain {
  public:
    static constexpr uint8_t kDucksMax = 2;

    // Ready for a compute session of all its ducks.
    ScriptDomain(uint8_t ducks, uint32_t call_bytes_max, uint32_t result_bytes_max)
        : ducks_(ducks), call_bytes_max_(call_bytes_max), result_bytes_max_(result_bytes_max),
          domain_(config(), script_options(), fleet_key(), board_) {
        for (uint8_t i = 0; i < ducks; i++) {
            duckhost_duck duck{};
            std::snprintf(duck.name, sizeof duck.name, "d%02u", i + 1);
            std::snprintf(duck.address, sizeof duck.address, "10.0.0.%u", i + 1);
            domain_.add_duck(duck, i, peer(i));
        }
        auto port = std::make_unique<ScriptPort>();
        port_ = port.get();
        duckhost_error error;
        domain_.set_shared(true, false);
        require(domain_.use(std::move(port), &error) == DUCKHOST_OK, "the domain has its port");
        for (uint8_t i = 0; i < ducks; i++) attach(*domain_.links()[i], i);
        forget_calls();
    }
    ~ScriptDomain() { domain_.stop(); }

    static Peer peer(uint32_t duck) { return {0x0100000au + (duck << 24), 7211}; }

    // As before each OPEN.
    void forget_calls() {
        board_.published.store(0);
        ForgetCallsOp op;
        op.result_bytes_max = result_bytes_max_;
        domain_.post(&op);
        domain_.help();
        require(board_.prepare((1u << ducks_) - 1, call_bytes_max_, result_bytes_max_), "memory");
    }

    // A right header and seal around this; without a key: a packet in clear.
    std::vector<uint8_t> sealed(duck_packet_header header, const std::vector<uint8_t> &payload,
                                duck_seal_key *key) {
        header.magic = DUCK_WIRE_MAGIC;
        header.version = DUCK_WIRE_VERSION;
        header.key = key == nullptr ? DUCK_KEY_CLEAR : DUCK_KEY_SESSION;
        header.payload_bytes = static_cast<uint16_t>(payload.size());
        std::vector<uint8_t> packet(sizeof header + payload.size());
        std::memcpy(packet.data(), &header, sizeof header);
        if (!payload.empty())
            std::memcpy(packet.data() + sizeof header, payload.data(), payload.size());
        if (key != nullptr) duck_seal(key, packet.data(), packet.size());
        return packet;
    }

    // False when no call may begin now.
    bool call(uint32_t bytes) {
        CallSlot *slot = board_.find_free();
        const uint32_t number = board_.published.load() + 1;
        if (slot == nullptr || !board_.has_credit(number)) return false;
        slot->number = number;
        slot->is_released = false;
        slot->bytes = bytes;
        slot->submit_ns = now_ns();
        slot->sent_ns.store(0);
        slot->has_failed.store(0);
        for (CallPart &part : slot->part) part.state.store(CallPart::waiting);
        slot->open_parts.store(ducks_);
        board_.place(*slot);
        board_.published.store(number);
        return true;
    }

  protected:
    // What a duck seals with `raw` as its key is opened by the host as of this epoch.
    void set_duck_key(Link &link, uint32_t duck, const uint8_t raw[16], uint32_t epoch) {
        link.epoch = epoch;
        duck_seal_key_set(&link.to_duck, raw, DUCK_KEY_SESSION, DUCK_TO_DUCK);
        duck_seal_key_set(&link.to_host[epoch % 2], raw, DUCK_KEY_SESSION, DUCK_TO_HOST);
        duck_replay_reset(&link.window[epoch % 2]);
        duck_seal_key_set(&sealing_[duck], raw, DUCK_KEY_SESSION, DUCK_TO_HOST);
    }

  private:
    static duckhost_domain config() {
        duckhost_domain domain{};
        std::snprintf(domain.name, sizeof domain.name, "script");
        domain.mtu = 1500;
        return domain;
    }

    // As after a handshake, with keys that are known here.
    void attach(Link &link, uint32_t duck) {
        link.session = 1000 + duck;
        link.boot_id = 1;
        link.status.attached.set(1);
        link.status.heard_ns.set(now_ns());
        const uint8_t raw[16] = {static_cast<uint8_t>(duck + 1)};
        set_duck_key(link, duck, raw, 0);
        link.ping_next_ns = now_ns();
    }

    const uint8_t ducks_;
    const uint32_t call_bytes_max_, result_bytes_max_;

  protected:
    CallBoard board_;
    ScriptPort *port_ = nullptr;
    duck_seal_key sealing_[kDucksMax];
    Domain domain_;
};

} // namespace duckhost
