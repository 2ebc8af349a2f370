// SPDX-License-Identifier: Apache-2.0
//
// Writing into a duck's regions: chunks (WRITE messages) in flight under a window that adapts to
// loss, repaired by the duck's selective acknowledgements. One write runs per duck at a time.
#pragma once

#include "message.h"
#include "op.h"

namespace duckhost {

class Domain;
struct Link;

// DONE with this bit in its sequence refuses the WRITE chunk named by the other bits.
constexpr uint32_t kWriteSequenceBit = 0x80000000u;
constexpr uint32_t kChunkFragmentsMax = DUCK_WIRE_WRITE_CHUNK_BYTES / 64;

class Bulk {
  public:
    bool is_active() const { return op_ != nullptr; }
    void start(Domain &domain, Link &link, WriteOp *op);
    // Sends what may be sent now; true when it could go on at once (more turns are wanted).
    bool pump(Domain &domain, Link &link);
    // Probes and limits; returns when it wants to be called next.
    uint64_t timer(Domain &domain, Link &link);
    void take_ack(Domain &domain, Link &link, uint32_t sequence, const duck_nack &ack);
    void take_refusal(Domain &domain, Link &link, uint32_t sequence, const duck_done &done);
    // Ends the write under way and those waiting, with an error.
    void fail_all(Link &link, duckhost_code code, const char *reason);
    // A new session: chunk numbers start again.
    void reset() { sequence_ = 0; }

  private:
    struct Chunk {
        bool is_active = false;
        bool had_loss = false;
        uint32_t sequence = 0;
        uint64_t offset = 0; // within the op's data
        uint32_t bytes = 0;
        uint32_t fragments = 0;
        uint32_t missing = 0; // not known to have arrived
        uint32_t pending = 0; // fragments to be sent: bits set in `bitmap`
        uint32_t cursor = 0;  // no pending fragment lies before it
        uint32_t passes = 0;
        uint64_t sent_order = 0; // the last time that pending became empty, in packets
        uint64_t sent_ns = 0;    // the same, in time
        uint64_t probe_ns = kNever, backoff_ns = 0;
        uint64_t bitmap[kChunkFragmentsMax / 64 + 1] = {};
    };

    void begin(Domain &domain, Link &link);
    bool check_limits(Domain &domain, Link &link);
    uint64_t retry_ns(const Domain &domain) const;
    void mark_pending(Chunk &chunk, uint32_t index);
    bool start_chunk(Domain &domain, Link &link);
    bool send_next(Domain &domain, Link &link, Chunk &chunk);
    void complete(Domain &domain, Link &link, Chunk &chunk);
    void note_loss(Domain &domain, Chunk &chunk, uint32_t missing);
    void probe_earlier(const Chunk &told);
    void finish(Domain &domain, Link &link);
    void end(Link &link);
    bool paced(const Domain &domain);

    WriteOp *op_ = nullptr;
    OpList queue_;
    Chunk chunk_[DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
    uint32_t sequence_ = 0; // of the newest chunk
    uint32_t chunk_bytes_ = 0;
    uint16_t stride_ = 0;
    uint64_t next_offset_ = 0, acked_bytes_ = 0, resent_bytes_ = 0;
    uint32_t active_chunks_ = 0;
    double window_ = 2;         // chunks that may be in flight
    bool is_slow_start_ = true; // until the first loss the window doubles per round trip
    uint64_t loss_ns_ = 0;      // the window was last cut
    double loss_share_ = 0;     // of fragments sent for the first time, smoothed
    uint64_t packets_ = 0;      // sent so far
    uint64_t round_trip_ns_ = 0;
    uint64_t progress_ns_ = 0; // something was acknowledged
    double tokens_ = 0;        // bytes that pacing allows now
    uint64_t tokens_ns_ = 0;
};

} // namespace duckhost
