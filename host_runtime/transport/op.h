// SPDX-License-Identifier: Apache-2.0
//
// What an API thread asks of a domain thread: it lives on the asking thread's stack, is linked into
// the domain's queue, and is finished exactly once.
#pragma once

#include "base.h"

#include <condition_variable>
#include <mutex>

namespace duckhost {

struct Op {
    enum class Kind {
        hello,
        detach,
        request,
        write,
        faults,
        forget_calls,
        make_domain_key,
        domain_key
    };

    Op(Kind kind_, uint32_t link_) : kind(kind_), link(link_) { succeed(&error); }

    const Kind kind;
    const uint32_t link; // index within the domain; ops of a whole domain leave it alone
    Op *next = nullptr;
    duckhost_error error{}; // of the domain thread until finish(), then of the asking thread

    void finish() {
        std::lock_guard<std::mutex> guard(mutex_);
        done_ = true;
        finished_.notify_all(); // under the lock: the waiter may destroy the op right afterwards
    }
    int wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return done_; });
        return error.code;
    }

  private:
    std::mutex mutex_;
    std::condition_variable finished_;
    bool done_ = false;
};

struct HelloOp : Op {
    explicit HelloOp(uint32_t link_) : Op(Kind::hello, link_) {}
    uint64_t deadline_ns = 0;
    uint32_t timeout_ms = 0;
    duck_info info{};
    uint8_t identity[DUCK_WIRE_KEY_BYTES] = {}; // proven when the op succeeds
    uint64_t round_trip_ns = 0;
};

struct RequestOp : Op {
    explicit RequestOp(uint32_t link_) : Op(Kind::request, link_) {}
    uint8_t type = 0;
    const uint8_t *payload = nullptr;
    uint32_t payload_bytes = 0;
    uint64_t start_ns = 0, deadline_ns = 0, silence_ns = 0;
    uint8_t *reply = nullptr;
    uint32_t reply_bytes_max = 0, reply_bytes = 0;
    uint8_t reply_type = 0;
};

struct WriteOp : Op {
    explicit WriteOp(uint32_t link_) : Op(Kind::write, link_) {}
    uint32_t region = 0;
    uint64_t offset = 0, bytes = 0;
    const uint8_t *data = nullptr;
    duckhost_progress *progress = nullptr; // never null; accessed with atomic builtins
};

struct FaultsOp : Op {
    FaultsOp() : Op(Kind::faults, 0) {}
    duckhost_faults faults{};
    uint64_t seed = 0, cut_mask = 0;
};

// Before a compute session opens: calls of the last one end, memory for new ones is taken.
struct ForgetCallsOp : Op {
    ForgetCallsOp() : Op(Kind::forget_calls, 0) {}
    uint32_t result_bytes_max = 0; // 0 = no session follows
};

struct MakeDomainKeyOp : Op {
    MakeDomainKeyOp() : Op(Kind::make_domain_key, 0) {}
};

// Before a compute session opens: finished when the duck has its domain's key.
struct DomainKeyOp : Op {
    explicit DomainKeyOp(uint32_t link_) : Op(Kind::domain_key, link_) {}
    uint64_t deadline_ns = 0;
};

// First in, first out; linked through Op::next.
class OpList {
  public:
    bool empty() const { return head_ == nullptr; }
    Op *front() const { return head_; }
    void push(Op *op) {
        op->next = nullptr;
        if (head_ == nullptr)
            head_ = op;
        else
            tail_->next = op;
        tail_ = op;
    }
    Op *pop() {
        Op *op = head_;
        if (op != nullptr) head_ = op->next;
        return op;
    }

  private:
    Op *head_ = nullptr, *tail_ = nullptr;
};

} // namespace duckhost
