// SPDX-License-Identifier: Apache-2.0
#include "bulk.h"

#include "domain.h"

#include <algorithm>
#include <cstring>

namespace duckhost {
namespace {

constexpr uint32_t kBurst = 32; // packets per duck and turn, so that ducks and calls take turns
constexpr uint64_t kSoon = 1 * kMillisecond;
constexpr uint64_t kProbeMin = 2 * kMillisecond;
constexpr double kWindowMin = 1;
// So many packets were sent later and heard of: this one is lost, not late.
constexpr uint64_t kOvertakenMin = 3;
constexpr double kRandomLossMax = 0.06;
constexpr double kLossWeight = 1.0 / 16; // of one chunk in the smoothed share

const char *region_text(uint32_t region) {
    return region == DUCK_REGION_KERNEL ? "kernel" : "weights";
}

} // namespace

// ---- one write after the other ------------------------------------------------------------------

void Bulk::start(Domain &domain, Link &link, WriteOp *op) {
    queue_.push(op);
    if (op_ == nullptr) begin(domain, link);
}

void Bulk::begin(Domain &domain, Link &link) {
    while (op_ == nullptr && !queue_.empty()) {
        op_ = static_cast<WriteOp *>(queue_.pop());
        if (!link.is_attached()) {
            fail(&op_->error, DUCKHOST_ERR_STATE, static_cast<int>(link.index),
                 "%s (%s) is not attached: WRITE needs a HELLO first", link.name,
                 link.address_text);
            end(link);
        }
    }
    if (op_ == nullptr) return;
    chunk_bytes_ = domain.options().bulk_chunk_bytes;
    stride_ = domain.write_stride();
    next_offset_ = acked_bytes_ = resent_bytes_ = 0;
    progress_ns_ = tokens_ns_ = domain.now();
    tokens_ = 0;
    if (op_->bytes == 0) finish(domain, link);
}

// The op leaves; chunks under way are forgotten (their numbers are not used again).
void Bulk::end(Link &) {
    WriteOp *op = op_;
    op_ = nullptr;
    for (Chunk &chunk : chunk_) chunk.is_active = false;
    active_chunks_ = 0;
    op->finish();
}

void Bulk::finish(Domain &domain, Link &link) {
    end(link);
    begin(domain, link);
}

void Bulk::fail_all(Link &link, duckhost_code code, const char *reason) {
    while (op_ != nullptr || !queue_.empty()) {
        if (op_ == nullptr) op_ = static_cast<WriteOp *>(queue_.pop());
        fail(&op_->error, code, static_cast<int>(link.index),
             "%s (%s) %s during the write of its %s", link.name, link.address_text, reason,
             region_text(op_->region));
        end(link);
    }
}

// ---- sending ------------------------------------------------------------------------------------

bool Bulk::start_chunk(Domain &domain, Link &) {
    Chunk &chunk = chunk_[(sequence_ + 1) % DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
    const uint32_t limit =
        std::min(static_cast<uint32_t>(window_), domain.options().bulk_chunks_max);
    if (chunk.is_active || active_chunks_ >= limit || next_offset_ >= op_->bytes) return false;
    chunk.is_active = true;
    chunk.had_loss = false;
    chunk.sequence = ++sequence_;
    chunk.offset = next_offset_;
    chunk.bytes =
        static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes_, op_->bytes - next_offset_));
    chunk.fragments = chunk.missing = chunk.pending = duck_fragment_count(chunk.bytes, stride_);
    chunk.cursor = chunk.passes = 0;
    chunk.probe_ns = kNever;
    chunk.backoff_ns = retry_ns(domain);
    std::memset(chunk.bitmap, 0, sizeof chunk.bitmap);
    for (uint32_t i = 0; i < chunk.fragments; i++) chunk.bitmap[i / 64] |= UINT64_C(1) << (i % 64);
    next_offset_ += chunk.bytes;
    active_chunks_++;
    return true;
}

bool Bulk::paced(const Domain &domain) {
    const uint32_t mbps = domain.options().bulk_mbps;
    if (mbps == 0) return true;
    const double bytes_per_ns = mbps * 1e6 / 8 * 1e-9;
    const double tokens_max = kBurst * 2.0 * stride_;
    tokens_ += static_cast<double>(elapsed_ns(domain.now(), tokens_ns_)) * bytes_per_ns;
    tokens_ns_ = domain.now();
    if (tokens_ > tokens_max) tokens_ = tokens_max;
    return tokens_ >= stride_;
}

bool Bulk::send_next(Domain &domain, Link &link, Chunk &chunk) {
    while ((chunk.bitmap[chunk.cursor / 64] >> (chunk.cursor % 64) & 1) == 0) chunk.cursor++;
    duck_write_prefix prefix{};
    prefix.region = op_->region;
    prefix.chunk_offset = op_->offset + chunk.offset;
    Message message;
    message.type = DUCK_MSG_WRITE;
    message.sequence = chunk.sequence;
    message.data = op_->data + chunk.offset;
    message.bytes = chunk.bytes;
    message.stride = stride_;
    message.prefix = &prefix;
    if (!domain.send(link, message, chunk.cursor)) return false;
    tokens_ -= stride_;
    packets_++;
    if (chunk.passes > 0) {
        link.status.fragments_resent.add();
        resent_bytes_ += stride_;
        __atomic_store_n(&op_->progress->bytes_resent, resent_bytes_, __ATOMIC_RELAXED);
    }
    chunk.bitmap[chunk.cursor / 64] &= ~(UINT64_C(1) << (chunk.cursor % 64));
    if (--chunk.pending == 0) {
        chunk.passes++;
        chunk.cursor = 0;
        chunk.sent_ns = domain.now();
        chunk.sent_order = packets_;
        chunk.probe_ns = domain.now() + chunk.backoff_ns;
    }
    return true;
}

bool Bulk::pump(Domain &domain, Link &link) {
    if (op_ == nullptr) return false;
    while (start_chunk(domain, link)) {
    }
    uint32_t budget = kBurst;
    const uint32_t oldest = sequence_ + 1 - DUCK_WIRE_WRITES_IN_FLIGHT_MAX;
    for (uint32_t i = 0; i < DUCK_WIRE_WRITES_IN_FLIGHT_MAX; i++) {
        Chunk &chunk = chunk_[(oldest + i) % DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
        while (chunk.is_active && chunk.pending > 0) {
            if (budget == 0) return true;
            if (!paced(domain) || !send_next(domain, link, chunk)) return false;
            budget--;
        }
    }
    return false;
}

// ---- timers -------------------------------------------------------------------------------------

uint64_t Bulk::retry_ns(const Domain &domain) const {
    const uint64_t most = domain.options().retry_us_max * kMicrosecond;
    return std::min(std::max(kProbeMin, 4 * round_trip_ns_), most);
}

// True when the write has ended.
bool Bulk::check_limits(Domain &domain, Link &link) {
    if (__atomic_load_n(&op_->progress->cancel, __ATOMIC_RELAXED) != 0) {
        fail(&op_->error, DUCKHOST_ERR_CANCELLED, static_cast<int>(link.index),
             "the write of the %s of %s was cancelled at %llu of %llu bytes",
             region_text(op_->region), link.name, static_cast<unsigned long long>(acked_bytes_),
             static_cast<unsigned long long>(op_->bytes));
        return true;
    }
    const uint64_t limit_ns = domain.options().silence_ms * kMillisecond;
    const uint64_t since_ns = std::max(progress_ns_, domain.resumed_ns());
    if (elapsed_ns(domain.now(), since_ns) < limit_ns) return false;
    const uint64_t heard_ns = link.status.heard_ns.get();
    char during[96];
    std::snprintf(during, sizeof during, "the write of its %s (%llu of %llu bytes done)",
                  region_text(op_->region), static_cast<unsigned long long>(acked_bytes_),
                  static_cast<unsigned long long>(op_->bytes));
    if (elapsed_ns(domain.now(), heard_ns) >= limit_ns / 2) {
        domain.fail_silent(link, &op_->error,
                           elapsed_ns(domain.now(), std::max(heard_ns, since_ns)), during);
        return true;
    }
    fail(&op_->error, DUCKHOST_ERR_DEADLINE, static_cast<int>(link.index),
         "%s (%s) is alive, but acknowledged nothing for %.1f s during %s", link.name,
         link.address_text, static_cast<double>(domain.now() - since_ns) * 1e-9, during);
    domain.hint_port(&op_->error);
    return true;
}

uint64_t Bulk::timer(Domain &domain, Link &link) {
    if (op_ == nullptr) return kNever;
    if (check_limits(domain, link)) {
        finish(domain, link);
        return domain.now();
    }
    uint64_t next =
        std::max(progress_ns_, domain.resumed_ns()) + domain.options().silence_ms * kMillisecond;
    for (Chunk &chunk : chunk_) {
        if (!chunk.is_active) continue;
        if (chunk.pending > 0) {
            next = std::min(next, domain.now() + kSoon); // waits for the queue or for pacing
            continue;
        }
        if (domain.now() >= chunk.probe_ns) {
            // The last fragment makes the duck tell what it has.
            mark_pending(chunk, chunk.fragments - 1);
            chunk.probe_ns = kNever;
            chunk.backoff_ns =
                std::min(chunk.backoff_ns * 2, domain.options().retry_us_max * kMicrosecond);
            next = domain.now();
            continue;
        }
        next = std::min(next, chunk.probe_ns);
    }
    return next;
}

void Bulk::mark_pending(Chunk &chunk, uint32_t index) {
    uint64_t &word = chunk.bitmap[index / 64];
    const uint64_t bit = UINT64_C(1) << (index % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    chunk.pending++;
    if (index < chunk.cursor) chunk.cursor = index;
}

// ---- acknowledgements ---------------------------------------------------------------------------

void Bulk::note_loss(Domain &domain, Chunk &chunk, uint32_t missing) {
    if (!chunk.had_loss)
        loss_share_ += kLossWeight * (static_cast<double>(missing) / chunk.fragments - loss_share_);
    chunk.had_loss = true;
    is_slow_start_ = false;
    if (elapsed_ns(domain.now(), loss_ns_) < std::max(round_trip_ns_, kSoon))
        return; // one cut per round trip
    loss_ns_ = domain.now();
    const double cut = loss_share_ > kRandomLossMax ? 0.5 : loss_share_;
    window_ = std::max(kWindowMin, window_ * (1 - cut));
}

// The duck has told about this chunk. What was sent before it and was not answered, or whose answer
// was lost, need not wait for its timer.
void Bulk::probe_earlier(const Chunk &told) {
    for (Chunk &chunk : chunk_) {
        if (!chunk.is_active || chunk.pending > 0 ||
            chunk.sent_order + kOvertakenMin > told.sent_order)
            continue;
        mark_pending(chunk, chunk.fragments - 1);
        chunk.probe_ns = kNever;
    }
}

void Bulk::complete(Domain &domain, Link &link, Chunk &chunk) {
    if (chunk.passes == 1) {
        const uint64_t measured = domain.now() - chunk.sent_ns;
        round_trip_ns_ = round_trip_ns_ == 0 ? measured : (7 * round_trip_ns_ + measured) / 8;
    }
    if (!chunk.had_loss) {
        loss_share_ -= kLossWeight * loss_share_;
        window_ += is_slow_start_ ? 1 : 1 / window_;
        window_ = std::min(window_, static_cast<double>(DUCK_WIRE_WRITES_IN_FLIGHT_MAX));
    }
    chunk.is_active = false;
    active_chunks_--;
    acked_bytes_ += chunk.bytes;
    progress_ns_ = domain.now();
    link.status.bulk_bytes.add(chunk.bytes);
    __atomic_store_n(&op_->progress->bytes_done, acked_bytes_, __ATOMIC_RELAXED);
    if (acked_bytes_ == op_->bytes) finish(domain, link);
}

void Bulk::take_ack(Domain &domain, Link &link, uint32_t sequence, const duck_nack &ack) {
    Chunk &chunk = chunk_[sequence % DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
    if (op_ == nullptr || !chunk.is_active || chunk.sequence != sequence) return; // late
    if (ack.message_type != DUCK_MSG_WRITE) return link.status.dropped_type.add();
    if (chunk.pending == 0) probe_earlier(chunk);
    if (ack.range_count == 0) return complete(domain, link, chunk);
    link.status.nacks_received.add();
    if (chunk.pending > 0) return; // told too early: the rest is still being sent
    uint32_t missing = 0;
    for (uint32_t i = 0; i < ack.range_count; i++) {
        const uint32_t end = std::min(ack.range[i].end, chunk.fragments);
        for (uint32_t index = ack.range[i].begin; index < end; index++, missing++)
            mark_pending(chunk, index);
    }
    mark_pending(chunk, chunk.fragments - 1); // the answer to it tells how the repair went
    if (missing < chunk.missing) {
        chunk.missing = missing;
        progress_ns_ = domain.now();
        chunk.backoff_ns = retry_ns(domain);
    }
    note_loss(domain, chunk, missing);
}

void Bulk::take_refusal(Domain &domain, Link &link, uint32_t sequence, const duck_done &done) {
    Chunk &chunk = chunk_[sequence % DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
    if (op_ == nullptr || !chunk.is_active || chunk.sequence != sequence) return;
    char text[DUCK_WIRE_TEXT_BYTES + 1];
    copy_text(text, sizeof text, done.text, sizeof done.text);
    fail(&op_->error, DUCKHOST_ERR_REFUSED, static_cast<int>(link.index),
         "%s (%s) refused WRITE to its %s at byte %llu: %s (%s)", link.name, link.address_text,
         region_text(op_->region), static_cast<unsigned long long>(op_->offset + chunk.offset),
         status_text(done.status), text);
    op_->error.status = done.status;
    op_->error.detail = done.detail;
    op_->error.value = done.value;
    finish(domain, link);
}

} // namespace duckhost
