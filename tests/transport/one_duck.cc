// SPDX-License-Identifier: Apache-2.0
//
// One duck of a domain without threads: what it sealed before a compute session began, and the
// limits of requests that wait behind others.
//     one_duck NAME        runs one check; prints what was not true
#include "script_domain.h"

#include <deque>
#include <functional>
#include <map>
#include <string>

using namespace duckhost;

namespace {

constexpr uint32_t kBytesMax = 1000;
constexpr uint64_t kSecond = 1000 * kMillisecond;

template <typename T> std::vector<uint8_t> bytes_of(const T &value) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(&value);
    return std::vector<uint8_t>(bytes, bytes + sizeof value);
}

struct Request {
    Request(uint8_t type, uint64_t limit_ns, uint64_t silence_ns) : op(0) {
        op.type = type;
        op.payload = room;
        op.payload_bytes = sizeof(duck_open);
        op.start_ns = now_ns();
        op.deadline_ns = op.start_ns + limit_ns;
        op.silence_ns = silence_ns;
        op.reply = room;
        op.reply_bytes_max = sizeof room;
    }
    uint8_t room[sizeof(duck_stats)] = {};
    RequestOp op;
};

class OneDuck : private ScriptDomain {
  public:
    OneDuck() : ScriptDomain(1, kBytesMax, kBytesMax) {}
    ~OneDuck() { stop(); }

    void stop() { domain_.stop(); }
    void turn() { require(domain_.help(), "the domain takes a turn"); }
    Link &link() { return *domain_.links()[0]; }
    uint64_t dropped() { return link().status.dropped_session.get(); }

    // Fresh keys at once, as of this epoch.
    void change_keys(uint32_t epoch) {
        const uint8_t raw[16] = {static_cast<uint8_t>(100 + epoch)};
        set_duck_key(link(), 0, raw, epoch);
    }

    std::vector<uint8_t> seal(uint8_t type, uint32_t sequence, const std::vector<uint8_t> &payload,
                              uint32_t prefix_bytes = 0) {
        duck_packet_header header{};
        header.type = type;
        header.epoch = static_cast<uint8_t>(link().epoch);
        header.session = link().session;
        header.sequence = sequence;
        header.message_bytes = static_cast<uint32_t>(payload.size()) - prefix_bytes;
        header.fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500;
        return sealed(header, payload, &sealing_[0]);
    }
    std::vector<uint8_t> result(uint32_t call, uint8_t value) {
        std::vector<uint8_t> payload(sizeof(duck_result_prefix));
        payload.push_back(value);
        return seal(DUCK_MSG_RESULT, call, payload, sizeof(duck_result_prefix));
    }
    std::vector<uint8_t> fault() {
        duck_fault told{};
        told.status = DUCK_ERR_KERNEL_FAULT;
        return seal(DUCK_MSG_FAULT, 1, bytes_of(told));
    }
    // Everything that a duck says about a call.
    std::deque<std::vector<uint8_t>> all_of_call(uint32_t call) {
        const uint32_t nack[] = {DUCK_MSG_CALL, 1, 0, 1};
        return {seal(DUCK_MSG_NACK, call, bytes_of(nack)),
                seal(DUCK_MSG_BUSY, call, bytes_of(duck_done{})), result(call, 99), fault()};
    }
    void arrive(std::vector<uint8_t> packet) {
        port_->put(std::move(packet), peer(0));
        turn();
    }

    void forget_calls() { ScriptDomain::forget_calls(); }
    Request &ask_to_open() { return ask(DUCK_MSG_OPEN, 10 * kSecond); }
    std::vector<uint8_t> done() {
        return seal(DUCK_MSG_DONE, link().request_sequence, bytes_of(duck_done{}));
    }
    void open() {
        forget_calls();
        Request &open = ask_to_open();
        arrive(done());
        require(open.op.wait() == DUCKHOST_OK, "OPEN is answered");
    }
    void call() {
        require(ScriptDomain::call(10), "a call begins");
        turn();
    }
    bool is_waiting(uint32_t call) { return link().calls.is_active(call); }
    bool has_ended() { return board_.has_ended(nullptr); }
    uint8_t result_of(uint32_t call) {
        const CallSlot *slot = board_.find(call);
        require(slot != nullptr && slot->part[0].state.load() == CallPart::done, "it has a result");
        return slot->part[0].result[0];
    }

    Request &ask(uint8_t type, uint64_t limit_ns, uint64_t silence_ns = 60 * kSecond) {
        Request &made = requests_.emplace_back(type, limit_ns, silence_ns);
        post(&made.op);
        return made;
    }
    void post(Op *op) {
        domain_.post(op);
        turn();
    }
    bool is_asked(const Request &request) {
        for (const RequestState &place : link().request)
            if (place.op == &request.op) return true;
        return false;
    }

  private:
    std::deque<Request> requests_;
};

void expect_stale(OneDuck &duck, const std::deque<std::vector<uint8_t>> &packets) {
    const uint64_t before = duck.dropped();
    for (const auto &packet : packets) duck.arrive(packet);
    require(duck.dropped() == before + packets.size(), "all are dropped and counted");
    require(duck.is_waiting(1) && !duck.has_ended(), "the call goes on");
    require(duck.link().status.nacks_received.get() == 0, "nothing is sent again");
}

// Delayed packets of the first compute session, when the second one has a call of the same number.
void check_earlier_session() {
    OneDuck duck;
    duck.open();
    duck.call();
    const auto delayed = duck.all_of_call(1);
    const auto before_open = duck.fault(), before_done = duck.fault();
    duck.arrive(duck.result(1, 5));
    require(duck.result_of(1) == 5, "the first session's result");
    duck.forget_calls();
    duck.arrive(before_open);
    duck.ask_to_open();
    duck.arrive(before_done);
    require(!duck.has_ended(), "an earlier session's fault ends no session that begins");
    duck.arrive(duck.done());
    duck.call();
    expect_stale(duck, delayed);
    duck.arrive(duck.result(1, 7));
    require(duck.result_of(1) == 7, "the second session's result");
    duck.call();
    duck.arrive(duck.fault());
    require(duck.has_ended(), "the second session's fault");
}

// Counters begin anew with the keys: what was sealed under older ones is older all the same.
void check_keys_change() {
    for (const uint32_t first : {0u, 254u, 255u}) { // packets tell it modulo 256
        OneDuck duck;
        duck.change_keys(first);
        duck.open();
        duck.call();
        const auto delayed = duck.all_of_call(1);
        duck.arrive(duck.result(1, 5));
        duck.change_keys(first + 1);
        duck.open();
        duck.call();
        expect_stale(duck, delayed);
        const auto under_old_keys = duck.result(1, 6);
        duck.change_keys(first + 2);
        duck.arrive(under_old_keys);
        require(duck.result_of(1) == 6, "newer than DONE, under its keys");
        duck.call();
        duck.arrive(duck.result(2, 7));
        require(duck.result_of(2) == 7, "a smaller counter under newer keys is newer");
    }
}

void check_waiting_requests() {
    OneDuck duck;
    for (size_t i = 0; i < kRequestsMax; i++) duck.ask(DUCK_MSG_COMMIT, 60 * kSecond);
    Request &late = duck.ask(DUCK_MSG_STATS, 0);
    Request &patient = duck.ask(DUCK_MSG_STATS, 60 * kSecond);
    Request &silent = duck.ask(DUCK_MSG_STATS, 60 * kSecond, 0);
    DomainKeyOp key(0);
    key.deadline_ns = now_ns();
    duck.post(&key);
    duck.stop(); // what still waits is told that
    require(late.op.wait() == DUCKHOST_ERR_DEADLINE, "its time was over while it waited");
    require(std::strstr(late.op.error.text, "d01 (10.0.0.1:0) is alive") != nullptr, "by name");
    require(silent.op.wait() == DUCKHOST_ERR_UNREACHABLE, "silence counts, too");
    require(key.wait() == DUCKHOST_ERR_DEADLINE, "and who waits for a key is told");
    require(patient.op.wait() == DUCKHOST_ERR_CLOSED, "what has time goes on");
}

// Those whose time is over leave the queue to the others, in their order.
void check_turns_of_requests() {
    OneDuck duck;
    std::deque<Request *> first;
    for (size_t i = 0; i < kRequestsMax; i++)
        first.push_back(&duck.ask(DUCK_MSG_COMMIT, 60 * kSecond));
    Request &second = duck.ask(DUCK_MSG_STATS, 60 * kSecond);
    Request &late = duck.ask(DUCK_MSG_STATS, 0);
    Request &third = duck.ask(DUCK_MSG_STATS, 60 * kSecond);
    const uint32_t asked = duck.link().request_sequence;
    for (const Request *next : {&second, &third}) {
        require(!duck.is_asked(*next), "four are with the duck");
        duck.arrive(duck.done());
        require(duck.is_asked(*next), "the one that waits longest is next");
    }
    require(duck.link().request_sequence == asked + 2, "no other one was asked");
    require(first.back()->op.wait() == DUCKHOST_OK && second.op.wait() == DUCKHOST_OK, "answered");
    require(late.op.wait() == DUCKHOST_ERR_DEADLINE, "its time was over");
}

} // namespace

int main(int count, char **words) {
    const std::map<std::string, std::function<void()>> checks = {
        {"earlier_session", check_earlier_session},
        {"keys_change", check_keys_change},
        {"waiting_requests", check_waiting_requests},
        {"turns_of_requests", check_turns_of_requests}};
    require(count == 2, "usage: one_duck NAME");
    const auto found = checks.find(words[1]);
    require(found != checks.end(), "there is a check of this name");
    found->second();
    return 0;
}
