// SPDX-License-Identifier: Apache-2.0
//
// One domain: its port, its ducks, and the thread that looks after both.
#pragma once

#include "call_board.h"
#include "fault_port.h"
#include "link.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace duckhost {

struct DomainCounters {
    Counter dropped_short, dropped_magic, dropped_version, dropped_size, dropped_source;
    Counter transmit_full, turns;
    Counter rekeys; // of the domain's key, within compute sessions
};

// The host's right to command the fleet's ducks.
struct FleetKey {
    uint8_t private_key[DUCK_WIRE_KEY_BYTES] = {};
    uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES] = {};
};

// A key of D packets: this host's own, random, given to the ducks one by one.
struct DomainKey {
    uint32_t session = 0;
    uint8_t raw[16] = {};
    duck_seal_key seal{};
    uint64_t born_ns = 0;
};

class Domain {
  public:
    // `fleet_key` outlives the domain.
    Domain(const duckhost_domain &config, const duckhost_options &options,
           const FleetKey &fleet_key, CallBoard &board);
    ~Domain();
    Domain(const Domain &) = delete;
    Domain &operator=(const Domain &) = delete;

    // Before start(). A shared domain lets threads that wait for calls take its turns; a crowded
    // one has no CPU to itself.
    void set_shared(bool is_shared, bool is_crowded) {
        is_shared_ = is_shared;
        is_crowded_ = is_crowded;
    }
    Link &add_duck(const duckhost_duck &config, uint32_t index, Peer peer);
    void set_call_peer(Peer peer) { call_peer_ = peer; } // broadcast
    int start(uint32_t bind_address, duckhost_error *error);
    // In place of start(): without a thread of its own, help() takes the turns of a shared domain.
    int use(std::unique_ptr<Port> inner, duckhost_error *error);

    // From any thread.
    void stop(); // ends the thread; everything under way ends with DUCKHOST_ERR_CLOSED
    void post(Op *op);
    void send_call();
    // Takes a turn in the domain thread's place; false when that is not possible now.
    bool help();
    const char *name() const { return config_.name; }
    uint32_t mtu() const { return config_.mtu; }
    const DomainCounters &domain_counters() const { return counters_; }
    const FaultPort &port() const { return *port_; }
    size_t duck_count() const { return links_.size(); }
    const Link &link(size_t i) const { return *links_[i]; }

    // From any thread. Has the key of D packets sealed any, and which session number do they carry?
    bool domain_key_used() const { return domain_key_used_.load(); }
    uint32_t domain_session() const { return domain_session_.load(); }

    // For the parts of the domain thread (session.cc, request.cc, bulk.cc, call.cc).
    uint64_t now() const { return now_; }
    uint64_t resumed_ns() const { return resumed_ns_; }
    // Since when a duck that was asked something at `asked_ns` is silent. The time in which this
    // thread itself did not run (a stopped process, a machine under load) is not the duck's.
    uint64_t silent_since(const Link &link, uint64_t asked_ns) const {
        return std::max({asked_ns, link.status.heard_ns.get(), resumed_ns_});
    }
    const duckhost_options &options() const { return options_; }
    CallBoard &board() { return board_; }
    uint16_t write_stride() const { return stride_for_mtu(config_.mtu, sizeof(duck_write_prefix)); }
    // False when the port's queue is full: the caller's timer tries again.
    bool send(Link &link, const Message &message, uint32_t index);
    bool send_whole(Link &link, uint8_t type, uint32_t sequence, const void *data, uint32_t bytes);
    // To all ducks of `members` at once: sealed once with the domain key.
    bool send_to_all(const Message &message, uint32_t index, uint64_t members);
    Port &transmit_port() { return *port_; }
    const DomainCalls &calls() const { return calls_; }
    uint16_t call_stride() const { return call_stride_for_mtu(config_.mtu); }
    std::vector<std::unique_ptr<Link>> &links() { return links_; }

    // The error of a duck that owes an answer and is silent; `during` is e.g. "call 812".
    void fail_silent(const Link &link, duckhost_error *error, uint64_t silent_ns,
                     const char *during) const;
    // True when this host's port has trouble with sending; then the hint says so.
    bool hint_port(duckhost_error *error) const;

  private:
    bool is_silent() const;
    // What may be the matter with a duck that does not answer.
    void hint_silent(const Link &link, duckhost_error *error) const;
    void run();
    void pin() const;
    uint64_t take_turn();
    void leave_turns(std::unique_lock<std::mutex> &turn);
    bool nap(std::unique_lock<std::mutex> &turn, uint64_t timeout_ns);
    void sleep(std::unique_lock<std::mutex> &turn, uint64_t timeout_ns);
    size_t receive();
    void take(const ReceivedPacket &packet);
    void take_info(Link &link, const duck_packet_header &header, const ReceivedPacket &packet);
    duck_check open_packet(Link &link, const duck_packet_header &header,
                           const ReceivedPacket &packet);
    void take_session(Link &link, const duck_packet_header &header, const ReceivedPacket &packet);
    void dispatch(Link &link, const duck_packet_header &header, const uint8_t *payload);
    bool take_commands();
    void execute(Op *op);
    void set_faults(const FaultsOp &op);
    void forget_calls(const ForgetCallsOp &op);
    uint64_t run_timers();
    bool pump();
    void idle(std::unique_lock<std::mutex> &turn, uint64_t deadline_ns);
    void note_refused();
    void end_everything();

    // session.cc
    void start_hello(Link &link, HelloOp *op);
    bool begin_hello(Link &link);
    void send_hello(Link &link);
    void finish_hello(Link &link);
    void fail_hello(Link &link, duckhost_code code, const char *text);
    uint64_t hello_timer(Link &link);
    void attach(Link &link, const duck_info &info);
    void take_clear(Link &link, const duck_packet_header &header, const ReceivedPacket &packet);
    void take_cookie(Link &link, const duck_cookie &cookie);
    bool make_proof(Link &link);
    void detach(Link &link, duckhost_code code, const char *reason);
    void send_ping(Link &link);
    uint64_t ping_timer(Link &link);
    void take_pong(Link &link, const duck_packet_header &header, const uint8_t *payload);
    // rekey.cc
    uint64_t rekey_timer(Link &link);
    void start_rekey(Link &link);
    void set_keys(Link &link, uint32_t epoch);
    void take_rekey(Link &link, const duck_packet_header &header, const uint8_t *payload);
    bool make_domain_key(DomainKey &key);
    bool refresh_domain_key();
    void wait_domain_key(Link &link, DomainKeyOp *op);
    void give_domain_key(Link &link, const DomainKey &key);
    void domain_key_given(Link &link);
    void fail_domain_key(Link &link, const duckhost_error &error);
    uint64_t domain_key_timer(Link &link);
    uint64_t domain_rekey_timer();
    // request.cc
    void start_request(Link &link, RequestOp *op);
    void send_request(Link &link, RequestState &request);
    uint64_t limit_of(const Link &link, const RequestOp &op) const;
    bool reaches_limit(const Link &link, RequestOp &op, const char *missed);
    uint64_t queue_timer(Link &link);
    uint64_t request_timer(Link &link);
    void take_reply(Link &link, const duck_packet_header &header, const uint8_t *payload);
    void finish_request(Link &link, RequestState &request);
    void end_request(Link &link, RequestOp *op);
    void fail_requests(Link &link, duckhost_code code, const char *reason);

    duckhost_domain config_;
    duckhost_options options_;
    const FleetKey &fleet_key_;
    CallBoard &board_;
    std::vector<std::unique_ptr<Link>> links_;
    std::vector<Peer> peers_;
    Peer call_peer_; // address 0 = none: CALLs go to each duck
    std::unique_ptr<FaultPort> port_;
    std::thread thread_;
    DomainCounters counters_;

    // Held by whoever takes a turn: guards everything but atomics and what has a mutex of its own.
    std::mutex turn_mutex_;
    bool is_shared_ = false, is_crowded_ = false;
    uint64_t helped_ns_ = 0; // another thread's last turn
    uint64_t left_ns_ = 0;   // until when the domain's thread last left the turns to others
    uint64_t leave_ns_ = 0;  // how long it leaves them at a time
    Courtesy courtesy_;
    uint64_t now_ = 0;
    uint64_t resumed_ns_ = 0; // this thread ran again after it had not for long
    uint32_t idle_turns_ = 0;
    uint64_t busy_ns_ = 0;               // the last turn that found something to do
    uint64_t last_wait_ns_ = UINT64_MAX; // between the last two such turns
    DomainCalls calls_;
    DomainKey domain_key_[2]; // the one in use, and the next one while it is being given
    uint32_t key_in_use_ = 0;
    bool is_changing_key_ = false;
    uint64_t key_retry_ns_ = 0;
    std::atomic<uint32_t> domain_session_{0};
    std::atomic<bool> domain_key_used_{false};

    std::mutex queue_mutex_;
    OpList queue_;
    bool is_closed_ = false; // guarded by queue_mutex_
    std::atomic<bool> has_commands_{false};
    std::atomic<bool> is_stopping_{false};
    std::atomic<bool> is_sleeping_{false};
};

bool random_bytes(void *out, size_t bytes);

} // namespace duckhost
