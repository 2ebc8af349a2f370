// SPDX-License-Identifier: Apache-2.0
//
// Compute sessions and calls, as the API threads see them.
#include "sum.h"
#include "transport.h"

#include <duck/experts.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sched.h>

namespace duckhost {
namespace {

constexpr uint32_t kTraceCallsMax = 1u << 16;
constexpr uint64_t kCloseLimit = 500 * kMillisecond;
constexpr uint32_t kBusyPauseMs = 200; // between two OPENs to a duck that another host owns
constexpr int kWaitYields = 20;
} // namespace

int check_done(const Link &link, const RequestOp &op, duckhost_error *error); // transport.cc

// ---- opening and closing ------------------------------------------------------------------------

// New calls are refused, those under way fail, and nobody looks at the board any more.
int Transport::forget_calls(uint32_t result_bytes_max, duckhost_error *error) {
    {
        std::lock_guard<std::mutex> guard(submit_mutex_);
        is_open_ = false;
        board_.published.store(0);
    }
    for (const auto &domain : domains_) {
        ForgetCallsOp op;
        op.result_bytes_max = result_bytes_max;
        domain->post(&op);
        if (op.wait() != DUCKHOST_OK) {
            if (error != nullptr) *error = op.error;
            return op.error.code;
        }
    }
    duckhost_error closed;
    fail(&closed, DUCKHOST_ERR_STATE, -1, "the compute session was closed during the call");
    board_.abort_all(closed);
    return DUCKHOST_OK;
}

// Ask every duck of the last session to close it; a duck that is gone has nothing to close.
void Transport::close_ducks() {
    const uint64_t ducks = board_.ducks();
    std::vector<std::unique_ptr<RequestOp>> ops;
    std::vector<duck_done> replies(ducks_.size());
    static const uint8_t zeros[sizeof(duck_done)] = {}; // as long as the answer
    for (uint32_t i = 0; i < ducks_.size(); i++) {
        if ((ducks >> i & 1) == 0) continue;
        auto op = std::make_unique<RequestOp>(ducks_[i].link);
        op->type = DUCK_MSG_CLOSE;
        op->payload = zeros;
        op->payload_bytes = sizeof zeros;
        op->start_ns = now_ns();
        op->deadline_ns = op->start_ns + kCloseLimit;
        op->silence_ns = kCloseLimit;
        op->reply = reinterpret_cast<uint8_t *>(&replies[i]);
        op->reply_bytes_max = sizeof replies[i];
        ducks_[i].domain->post(op.get());
        ops.push_back(std::move(op));
    }
    for (const auto &op : ops) op->wait();
}

// One domain key per compute session: a duck that lost its replay window (it was restarted) must
// not meet packets of an earlier session under the same key.
int Transport::give_domain_keys(uint64_t ducks, uint64_t deadline_ns, duckhost_error *error) {
    for (const auto &domain : domains_) {
        if (!domain->domain_key_used()) continue;
        MakeDomainKeyOp op;
        domain->post(&op);
        if (op.wait() != DUCKHOST_OK) {
            if (error != nullptr) *error = op.error;
            return op.error.code;
        }
    }
    std::vector<std::unique_ptr<DomainKeyOp>> ops;
    for (uint32_t i = 0; i < ducks_.size(); i++) {
        if ((ducks >> i & 1) == 0) continue;
        auto op = std::make_unique<DomainKeyOp>(ducks_[i].link);
        op->deadline_ns = deadline_ns;
        ducks_[i].domain->post(op.get());
        ops.push_back(std::move(op));
    }
    int code = DUCKHOST_OK;
    for (const auto &op : ops) {
        if (op->wait() == DUCKHOST_OK || code != DUCKHOST_OK) continue;
        code = op->error.code;
        if (error != nullptr) *error = op->error;
    }
    return code;
}

// One round of OPEN to all of `ducks`; those that another host owns are left in *busy.
int Transport::open_ducks(uint64_t ducks, const duck_open &open, const uint8_t *weights_ids,
                          uint64_t deadline_ns, uint64_t *busy, duckhost_error *error) {
    struct Opening {
        Opening(uint32_t duck_, uint32_t link) : duck(duck_), op(link) {}
        uint32_t duck;
        RequestOp op;
        duck_open payload{};
        duck_done reply{};
    };
    std::vector<std::unique_ptr<Opening>> all;
    for (uint32_t i = 0; i < ducks_.size(); i++) {
        if ((ducks >> i & 1) == 0) continue;
        auto opening = std::make_unique<Opening>(i, ducks_[i].link);
        opening->payload = open;
        opening->payload.domain_session = ducks_[i].domain->domain_session();
        if (weights_ids != nullptr)
            std::memcpy(opening->payload.weights_id,
                        weights_ids + size_t{i} * DUCK_WIRE_DIGEST_BYTES, DUCK_WIRE_DIGEST_BYTES);
        RequestOp &op = opening->op;
        op.type = DUCK_MSG_OPEN;
        op.payload = reinterpret_cast<const uint8_t *>(&opening->payload);
        op.payload_bytes = sizeof opening->payload;
        op.start_ns = now_ns();
        op.deadline_ns = std::max(deadline_ns, op.start_ns + kMillisecond);
        op.silence_ns = options_.silence_ms * kMillisecond;
        op.reply = reinterpret_cast<uint8_t *>(&opening->reply);
        op.reply_bytes_max = sizeof opening->reply;
        ducks_[i].domain->post(&op);
        all.push_back(std::move(opening));
    }
    *busy = 0;
    bool is_final = false;
    int code = DUCKHOST_OK;
    for (const auto &opening : all) {
        duckhost_error found;
        int one = opening->op.wait();
        if (one != DUCKHOST_OK)
            found = opening->op.error;
        else
            one = check_done(*ducks_[opening->duck].state, opening->op, &found);
        if (one == DUCKHOST_OK) continue;
        if (one == DUCKHOST_ERR_REFUSED && found.status == DUCK_ERR_BUSY)
            *busy |= UINT64_C(1) << opening->duck;
        else
            is_final = true; // an error that waiting cannot mend
        if (code != DUCKHOST_OK && !is_final) continue;
        code = one;
        if (error != nullptr) *error = found;
    }
    if (is_final) *busy = 0;
    return code;
}

int Transport::check_open(uint64_t ducks, const duck_open &open, duckhost_error *error) const {
    if (ducks == 0 || (ducks_.size() < 64 && ducks >> ducks_.size() != 0))
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "duck mask 0x%llx, there are %zu ducks",
                    static_cast<unsigned long long>(ducks), ducks_.size());
    if (open.call_bytes_max == 0 || open.call_bytes_max > DUCK_WIRE_CALL_BYTES_MAX ||
        open.result_bytes_max == 0 || open.result_bytes_max > DUCK_WIRE_CALL_BYTES_MAX)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "calls of %u and results of %u bytes: expected 1 to %u", open.call_bytes_max,
                    open.result_bytes_max, DUCK_WIRE_CALL_BYTES_MAX);
    // A duck remembers so many fragments of a call; of one that has more it drops every packet.
    for (uint32_t i = 0; i < ducks_.size(); i++) {
        const Domain &domain = *ducks_[i].domain;
        const uint64_t room = uint64_t{DUCK_WIRE_FRAGMENTS_MAX} * domain.call_stride();
        if ((ducks >> i & 1) == 0 || open.call_bytes_max <= room) continue;
        fail(error, DUCKHOST_ERR_ARGUMENT, -1,
             "calls of %u bytes: domain %s with its MTU of %u carries at most %llu (%u fragments "
             "of %u bytes)",
             open.call_bytes_max, domain.name(), domain.mtu(),
             static_cast<unsigned long long>(room), DUCK_WIRE_FRAGMENTS_MAX, domain.call_stride());
        set_hint(error, "give the domain an MTU of 1500 or more, or ask for smaller calls");
        return DUCKHOST_ERR_ARGUMENT;
    }
    return DUCKHOST_OK;
}

int Transport::session_open(uint64_t ducks, const duck_open &open, const uint8_t *weights_ids,
                            uint32_t timeout_ms, duckhost_error *error) {
    if (int code = check_open(ducks, open, error)) return code;
    std::lock_guard<std::mutex> one_at_a_time(open_mutex_);
    const uint64_t deadline_ns = now_ns() + timeout_ms * kMillisecond;
    if (int code = forget_calls(open.result_bytes_max, error)) return code;
    close_ducks();
    if (int code = give_domain_keys(ducks, deadline_ns, error)) return code;
    {
        std::unique_lock<std::shared_mutex> lock(session_mutex_);
        if (!board_.prepare(ducks, open.call_bytes_max, open.result_bytes_max))
            return fail(error, DUCKHOST_ERR_SYSTEM, -1, "no memory for the calls' buffers");
    }
    uint64_t left = ducks;
    while (int code = open_ducks(left, open, weights_ids, deadline_ns, &left, error)) {
        const bool may_wait = left != 0 && (open.flags & DUCK_OPEN_TAKEOVER) != 0 &&
                              code == DUCKHOST_ERR_REFUSED && now_ns() < deadline_ns;
        if (!may_wait) return code;
        std::this_thread::sleep_for(std::chrono::milliseconds(kBusyPauseMs));
    }
    std::lock_guard<std::mutex> guard(submit_mutex_);
    is_open_ = true;
    generation_++;
    last_call_ = 0;
    return succeed(error);
}

int Transport::session_close(duckhost_error *error) {
    std::lock_guard<std::mutex> one_at_a_time(open_mutex_);
    if (int code = forget_calls(0, error)) return code;
    close_ducks();
    std::unique_lock<std::shared_mutex> lock(session_mutex_);
    board_.clear();
    return succeed(error);
}

// ---- calls --------------------------------------------------------------------------------------

int Transport::submit(const void *message, uint32_t bytes, uint64_t *ticket,
                      duckhost_error *error) {
    std::shared_lock<std::shared_mutex> session(session_mutex_);
    std::lock_guard<std::mutex> in_order(order_mutex_);
    if (board_.published.load() + 1 > kCallsInFlight) await_credit(board_.published.load() + 1);
    if (int code = publish(message, bytes, ticket, error)) return code;
    for (const auto &domain : domains_) domain->send_call();
    return succeed(error);
}

// Until `is_over`, or for so long; meanwhile this thread takes the turns of shared domains.
template <typename Condition>
void Transport::look_around(Condition is_over, uint64_t last_wait_ns) {
    Courtesy courtesy;
    const uint64_t begin_ns = now_ns();
    const bool is_spinning = options_.poll_policy == DUCK_POLL_SPIN;
    while (is_spinning || may_look(last_wait_ns, now_ns() - begin_ns)) {
        for (const auto &domain : domains_) domain->help();
        if (is_over()) return;
        courtesy.pause();
    }
}

void Transport::await_credit(uint32_t number) {
    if (options_.poll_policy == DUCK_POLL_SPIN) {
        look_around([&] { return board_.has_credit(number) || board_.has_ended(nullptr); }, 0);
    } else if (!board_.has_credit(number)) {
        board_.wait_credit(number);
    }
}

int Transport::publish(const void *message, uint32_t bytes, uint64_t *ticket,
                       duckhost_error *error) {
    std::lock_guard<std::mutex> guard(submit_mutex_);
    if (!is_open_) return fail(error, DUCKHOST_ERR_STATE, -1, "no compute session is open");
    duckhost_error ended;
    if (board_.has_ended(&ended)) {
        fail(error, static_cast<duckhost_code>(ended.code), ended.duck,
             "the compute session has ended: %.400s", ended.text);
        if (error != nullptr) {
            error->ducks = ended.ducks;
            error->status = ended.status;
        }
        return ended.code;
    }
    if (bytes > board_.call_bytes_max())
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1,
                    "a call of %u bytes: the session was opened for at most %u", bytes,
                    board_.call_bytes_max());
    if (last_call_ == options_.session_calls_max) return end_used_up(error);
    CallSlot *slot = board_.find_free();
    if (slot == nullptr)
        return fail(error, DUCKHOST_ERR_STATE, -1,
                    "%u calls are not released: wait for one before the next",
                    DUCKHOST_TICKETS_MAX);
    std::memcpy(slot->message, message, bytes);
    slot->number = ++last_call_;
    slot->is_released = false;
    slot->bytes = bytes;
    slot->submit_ns = now_ns();
    slot->sent_ns.store(0);
    slot->has_failed.store(0);
    for (CallPart &part : slot->part) part.state.store(CallPart::waiting);
    slot->open_parts.store(static_cast<uint32_t>(__builtin_popcountll(board_.ducks())));
    board_.place(*slot);
    board_.published.store(slot->number);
    *ticket = static_cast<uint64_t>(generation_) << 32 | slot->number;
    return DUCKHOST_OK;
}

// Every duck is concerned and none is to blame. Calls under way still end with their results.
int Transport::end_used_up(duckhost_error *error) {
    duckhost_error used_up;
    fail(&used_up, DUCKHOST_ERR_USED_UP, -1,
         "all %u call numbers of the compute session are used up: it must be opened again",
         options_.session_calls_max);
    used_up.ducks = board_.ducks();
    board_.end_session(used_up);
    if (error != nullptr) *error = used_up;
    return used_up.code;
}

CallSlot *Transport::find_slot(uint64_t ticket, duckhost_error *error) {
    std::lock_guard<std::mutex> guard(submit_mutex_);
    const auto number = static_cast<uint32_t>(ticket);
    CallSlot *slot = number != 0 && ticket >> 32 == generation_ ? board_.find(number) : nullptr;
    if (slot != nullptr) return slot;
    fail(error, DUCKHOST_ERR_STATE, -1,
         "ticket %llu is not a call in flight: released, or of an earlier session",
         static_cast<unsigned long long>(ticket));
    return nullptr;
}

int Transport::wait_slot(CallSlot &slot, duckhost_error *error) {
    auto is_over = [&slot] { return slot.open_parts.load() == 0 || slot.has_failed.load() != 0; };
    const uint64_t begin_ns = now_ns();
    if (options_.poll_policy == DUCK_POLL_SLEEP)
        for (int i = 0; i < kWaitYields && !is_over(); i++) sched_yield();
    else
        look_around(is_over, last_wait_ns_.load());
    if (!is_over()) board_.wait_finished(slot);
    last_wait_ns_.store(now_ns() - begin_ns);
    if (slot.has_failed.load() == 0) return DUCKHOST_OK;
    duckhost_error found;
    board_.copy_error(slot, &found);
    name_silent_ducks(slot, &found);
    if (error != nullptr) *error = found;
    return found.code;
}

// A second dead duck reaches its limit moments after the first: name it too.
void Transport::name_silent_ducks(const CallSlot &slot, duckhost_error *error) const {
    if (error->code != DUCKHOST_ERR_UNREACHABLE) return;
    const uint64_t now = now_ns(), limit_ns = options_.silence_ms * kMillisecond / 5 * 4;
    size_t used = std::strlen(error->text);
    for (const Place &place : ducks_) {
        const uint32_t duck = place.state->index;
        const uint64_t bit = UINT64_C(1) << duck, heard_ns = place.state->status.heard_ns.get();
        if ((board_.ducks() & bit) == 0 || static_cast<int>(duck) == error->duck) continue;
        const bool is_silent = slot.part[duck].state.load() == CallPart::waiting &&
                               elapsed_ns(now, std::max(heard_ns, slot.submit_ns)) >= limit_ns;
        if (!is_silent && (error->ducks & bit) == 0) continue;
        error->ducks |= bit;
        const int more =
            std::snprintf(error->text + used, sizeof error->text - used, "; %s (%s) too",
                          place.state->name, place.state->address_text);
        used = std::min(used + static_cast<size_t>(std::max(more, 0)), sizeof error->text - 1);
    }
}

int Transport::wait(uint64_t ticket, duckhost_timing *timing, duckhost_error *error) {
    std::shared_lock<std::shared_mutex> session(session_mutex_);
    CallSlot *slot = find_slot(ticket, error);
    if (slot == nullptr) return DUCKHOST_ERR_STATE;
    if (int code = wait_slot(*slot, error)) return code;
    tell_timing(*slot, timing);
    trace(*slot, static_cast<uint32_t>(ticket >> 32));
    return succeed(error);
}

int Transport::wait_sum(uint64_t ticket, uint32_t dtype, float *out, uint64_t count,
                        duckhost_timing *timing, duckhost_error *error) {
    std::shared_lock<std::shared_mutex> session(session_mutex_);
    CallSlot *slot = find_slot(ticket, error);
    if (slot == nullptr) return DUCKHOST_ERR_STATE;
    int code = wait_slot(*slot, error);
    bool first = true;
    for (uint32_t duck = 0; duck < ducks_.size() && code == DUCKHOST_OK; duck++) {
        if ((board_.ducks() >> duck & 1) == 0) continue;
        code = add_part(*slot, duck, dtype, out, count, first, error);
        first = false;
    }
    if (code == DUCKHOST_OK) {
        tell_timing(*slot, timing);
        trace(*slot, static_cast<uint32_t>(ticket >> 32));
    }
    release_slot(*slot);
    return code == DUCKHOST_OK ? succeed(error) : code;
}

int Transport::add_part(CallSlot &slot, uint32_t duck, uint32_t dtype, float *out, uint64_t count,
                        bool first, duckhost_error *error) {
    const CallPart &part = slot.part[duck];
    const uint64_t value_bytes = dtype == DUCK_DTYPE_BF16 ? 2 : 4;
    if (dtype > DUCK_DTYPE_BF16)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "dtype %u: expected 0 or 1", dtype);
    if (part.result_bytes != count * value_bytes)
        return fail(error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(duck),
                    "%s (%s) answered call %u with %u bytes, expected %llu",
                    ducks_[duck].state->name, ducks_[duck].state->address_text, slot.number,
                    part.result_bytes, static_cast<unsigned long long>(count * value_bytes));
    if (dtype == DUCK_DTYPE_BF16)
        sum_bf16(out, part.result, count, first);
    else
        sum_f32(out, part.result, count, first);
    return DUCKHOST_OK;
}

void Transport::tell_timing(const CallSlot &slot, duckhost_timing *timing) const {
    if (timing == nullptr) return;
    *timing = {};
    uint64_t last_ns = 0;
    for (uint32_t duck = 0; duck < ducks_.size(); duck++) {
        if ((board_.ducks() >> duck & 1) == 0) continue;
        const CallPart &part = slot.part[duck];
        timing->kernel_ns = std::max(timing->kernel_ns, part.kernel_ns);
        timing->queue_ns = std::max(timing->queue_ns, part.queue_ns);
        if (part.done_ns < last_ns) continue;
        last_ns = part.done_ns;
        timing->slowest = duck;
    }
    timing->call = slot.number;
    timing->send_ns = slot.sent_ns.load() - slot.submit_ns;
    timing->total_ns = last_ns - slot.submit_ns;
    timing->sum_ns = now_ns() - last_ns;
}

void Transport::trace(const CallSlot &slot, uint32_t session) {
    if (!trace_.is_on()) return;
    for (uint32_t duck = 0; duck < ducks_.size(); duck++) {
        if ((board_.ducks() >> duck & 1) == 0) continue;
        const CallPart &part = slot.part[duck];
        trace_.add({slot.number, duck, session, 0, slot.submit_ns, slot.sent_ns.load(),
                    part.done_ns, part.start_ns, part.clock_error_ns, part.kernel_ns,
                    part.queue_ns});
    }
}

int Transport::set_trace(uint32_t calls, duckhost_error *error) {
    if (calls > kTraceCallsMax)
        return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "a trace keeps at most %u calls, not %u",
                    kTraceCallsMax, calls);
    if (!trace_.resize(size_t{calls} * ducks_.size()))
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "no memory for a trace of %u calls", calls);
    return succeed(error);
}

uint32_t Transport::get_trace(duckhost_trace_entry *out, uint32_t count_max) const {
    return static_cast<uint32_t>(trace_.read(out, count_max));
}

int Transport::result(uint64_t ticket, uint32_t duck, const void **data, uint32_t *bytes,
                      duckhost_error *error) {
    std::shared_lock<std::shared_mutex> session(session_mutex_);
    if (int code = check_duck(duck, error)) return code;
    CallSlot *slot = find_slot(ticket, error);
    if (slot == nullptr) return DUCKHOST_ERR_STATE;
    if (slot->part[duck].state.load() != CallPart::done)
        return fail(error, DUCKHOST_ERR_STATE, static_cast<int>(duck),
                    "call %u has no result of duck %u", slot->number, duck);
    *data = slot->part[duck].result;
    *bytes = slot->part[duck].result_bytes;
    return succeed(error);
}

int Transport::release(uint64_t ticket, duckhost_error *error) {
    std::shared_lock<std::shared_mutex> session(session_mutex_);
    CallSlot *slot = find_slot(ticket, error);
    if (slot == nullptr) return DUCKHOST_ERR_STATE;
    release_slot(*slot);
    return succeed(error);
}

void Transport::release_slot(CallSlot &slot) {
    std::lock_guard<std::mutex> guard(submit_mutex_);
    slot.is_released = true;
}

} // namespace duckhost
