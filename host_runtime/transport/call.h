// SPDX-License-Identifier: Apache-2.0
//
// The domain thread's side of calls: sending CALL, gathering RESULT, NACK and QUERY timers.
#pragma once

#include "call_board.h"
#include "message.h"

#include <vector>

namespace duckhost {

class Domain;
struct Link;

// One call at one duck.
struct LinkCall {
    bool is_active = false;
    uint32_t number = 0;
    uint64_t start_ns = 0;     // handed to this domain
    uint64_t fragment_ns = 0;  // a new piece of the result arrived, 0 = none yet
    uint64_t next_ns = kNever; // NACK or QUERY is due
    uint64_t backoff_ns = 0;
    uint32_t fragments = 0; // of the result, 0 = unknown
    uint32_t received = 0;
    std::vector<uint64_t> bitmap; // received fragments of the result
};

class LinkCalls {
  public:
    // Takes the memory for results of this size; until open() there is no session. Control path.
    void prepare(uint32_t result_bytes_max, uint16_t stride);
    // The duck has answered OPEN by a packet of this epoch and counter.
    void open(uint32_t epoch, uint64_t counter) {
        floor_epoch_ = epoch;
        floor_counter_ = counter;
    }
    // Sealed no later than that: of an earlier compute session.
    bool is_stale(uint32_t epoch, uint64_t counter) const {
        return epoch != floor_epoch_ ? epoch < floor_epoch_ : counter <= floor_counter_;
    }
    void start(Domain &domain, Link &link, uint32_t number);
    void note_sent(Domain &domain, uint32_t number);
    bool is_active(uint32_t number) { return active(number) != nullptr; }
    uint64_t timer(Domain &domain, Link &link);
    void take_result(Domain &domain, Link &link, const duck_packet_header &header,
                     const uint8_t *payload);
    void take_nack(Domain &domain, Link &link, uint32_t sequence, const duck_nack &nack);
    void take_busy(Domain &domain, uint32_t sequence);
    void take_fault(Domain &domain, Link &link, const duck_fault &fault);
    // Every call under way fails with this error, and the session ends.
    void fail_all(Domain &domain, Link &link, const duckhost_error &error);
    bool is_waiting() const;

  private:
    LinkCall *active(uint32_t number);
    bool limits(Domain &domain, Link &link, LinkCall &call);
    void ask(Domain &domain, Link &link, LinkCall &call);
    bool accept(Domain &domain, Link &link, LinkCall &call, const duck_packet_header &header);
    void finish(Domain &domain, Link &link, LinkCall &call, const duck_packet_header &header);
    void send_nack(Domain &domain, Link &link, LinkCall &call);

    uint32_t result_bytes_max_ = 0;
    uint32_t floor_epoch_ = UINT32_MAX; // these two: everything is stale
    uint64_t floor_counter_ = UINT64_MAX;
    uint64_t usual_ns_ = 0; // how long calls take here, smoothed
    LinkCall call_[kCallsInFlight];
};

// The sending of calls of one domain.
class DomainCalls {
  public:
    void forget();
    bool has_news(Domain &domain) const { return newest(domain) > taken_; }
    // Takes newly published calls.
    bool take(Domain &domain);
    bool pump(Domain &domain);
    // Fragments [0, n) of this call went out once.
    uint32_t sent_fragments(Domain &domain, uint32_t number) const;

  private:
    struct Sending {
        uint32_t number = 0; // 0 = nothing to send
        uint32_t next = 0;
    };
    static uint32_t newest(Domain &domain);

    uint32_t taken_ = 0; // number of the newest call taken
    Sending sending_[kCallsInFlight];
};

} // namespace duckhost
