// SPDX-License-Identifier: Apache-2.0
//
// The calls in flight, shared by the threads that submit and wait and by the domain threads that
// send and gather. At most kCallsInFlight calls are with the ducks (the wire's credit): call n may
// begin when call n - kCallsInFlight is over. A slot keeps a call's bytes from submit to release,
// which may come later and in any order, so there are more of them. All memory is taken when a
// compute session opens.
#pragma once

#include "base.h"

#include <condition_variable>
#include <mutex>

namespace duckhost {

constexpr uint32_t kCallsInFlight = DUCK_WIRE_CALLS_IN_FLIGHT_MAX;
constexpr uint32_t kSlots = DUCKHOST_TICKETS_MAX;

struct CallPart {
    enum State : uint32_t { waiting = 0, done = 1, failed = 2 };
    // The domain thread writes the rest before it stores done or failed (release).
    std::atomic<uint32_t> state{waiting};
    uint32_t result_bytes = 0;
    uint32_t kernel_ns = 0, queue_ns = 0;
    uint64_t done_ns = 0;
    uint64_t start_ns = 0, clock_error_ns = 0; // see duckhost_trace_entry
    uint8_t *result = nullptr;
};

struct CallSlot {
    uint32_t number = 0;     // of the submitting threads
    bool is_released = true; // the same
    uint8_t *message = nullptr;
    uint32_t bytes = 0;
    uint64_t submit_ns = 0;
    std::atomic<uint64_t> sent_ns{0};    // the last domain's last fragment went out
    std::atomic<uint32_t> open_parts{0}; // ducks that neither finished nor failed
    std::atomic<uint32_t> has_failed{0};
    duckhost_error error{}; // the first failure; guarded by CallBoard::mutex
    CallPart part[DUCKHOST_DUCKS_MAX];
};

// Memory straight from the system, zeroed, returned on destruction.
class Mapping {
  public:
    Mapping() = default;
    ~Mapping() { reset(); }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    bool map(size_t bytes);
    void reset();
    uint8_t *data() const { return data_; }

  private:
    uint8_t *data_ = nullptr;
    size_t bytes_ = 0;
};

class CallBoard {
  public:
    // Only while no domain thread looks at the slots (see Transport::session_open).
    bool prepare(uint64_t ducks, uint32_t call_bytes_max, uint32_t result_bytes_max);

    void clear() { ducks_.store(0); }

    uint64_t ducks() const { return ducks_.load(); }
    uint32_t call_bytes_max() const { return call_bytes_max_; }
    uint32_t result_bytes_max() const { return result_bytes_max_; }
    // Of a call that is with the ducks.
    CallSlot &slot(uint32_t number) { return *ring_[number % kCallsInFlight].load(); }
    // The slots belong to the submitting threads.
    CallSlot *find(uint32_t number);
    CallSlot *find_free();
    void place(CallSlot &slot) { ring_[slot.number % kCallsInFlight].store(&slot); }

    std::atomic<uint32_t> published{0}; // number of the newest call

    // From the domain threads.
    void finish_part(CallSlot &slot, uint32_t duck);
    // `ends_session`: later calls fail with the same error until the session is opened again.
    void fail_part(CallSlot &slot, uint32_t duck, const duckhost_error &error, bool ends_session);
    void end_session(const duckhost_error &error);
    static void note_sent(CallSlot &slot, uint64_t now);

    // From the API threads. True when the session has ended; then *error tells why.
    bool has_ended(duckhost_error *error);
    void wait_finished(CallSlot &slot); // blocks until every part is done or one failed
    // Of the next call, by the one thread that submits now: nobody else gives slots away.
    // wait_credit blocks until call `number` may begin, or the session has ended.
    void wait_credit(uint32_t number);
    bool has_credit(uint32_t number);
    void copy_error(CallSlot &slot, duckhost_error *error);
    // The session ends with this error; whoever waits for a call gets it.
    void abort_all(const duckhost_error &error);

  private:
    void notify();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<uint32_t> sleepers_{0};
    bool has_ended_ = false;
    duckhost_error end_error_{};
    std::atomic<uint64_t> ducks_{0};
    uint32_t call_bytes_max_ = 0, result_bytes_max_ = 0;
    Mapping memory_;
    CallSlot slot_[kSlots];
    std::atomic<CallSlot *> ring_[kCallsInFlight] = {};
};

} // namespace duckhost
