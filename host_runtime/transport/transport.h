// SPDX-License-Identifier: Apache-2.0
//
// The whole fleet: what the C interface calls. All methods are thread-safe.
#pragma once

#include "call_board.h"
#include "domain.h"
#include "trace_ring.h"

#include <memory>
#include <shared_mutex>
#include <vector>

namespace duckhost {

class Transport {
  public:
    int open(const duckhost_domain *domains, uint32_t domain_count, const duckhost_duck *ducks,
             uint32_t duck_count, const uint8_t *fleet_private, const duckhost_options &options,
             duckhost_error *error);
    ~Transport();
    // Ends the threads; whoever waits in another method gets DUCKHOST_ERR_CLOSED.
    void stop();

    int hello(uint32_t duck, uint32_t timeout_ms, duck_info *info, uint8_t *identity,
              uint64_t *round_trip_ns, duckhost_error *error);
    int detach(uint32_t duck, duckhost_error *error);
    int request(uint32_t duck, uint32_t type, const void *payload, uint32_t payload_bytes,
                uint32_t timeout_ms, void *reply, uint32_t reply_bytes_max, uint32_t *reply_type,
                uint32_t *reply_bytes, duckhost_error *error);
    int write(uint32_t duck, uint32_t region, uint64_t offset, const void *data, uint64_t bytes,
              duckhost_progress *progress, duckhost_error *error);

    int session_open(uint64_t ducks, const duck_open &open, const uint8_t *weights_ids,
                     uint32_t timeout_ms, duckhost_error *error);
    int session_close(duckhost_error *error);
    int submit(const void *message, uint32_t bytes, uint64_t *ticket, duckhost_error *error);
    int wait_sum(uint64_t ticket, uint32_t dtype, float *out, uint64_t count,
                 duckhost_timing *timing, duckhost_error *error);
    int wait(uint64_t ticket, duckhost_timing *timing, duckhost_error *error);
    int result(uint64_t ticket, uint32_t duck, const void **data, uint32_t *bytes,
               duckhost_error *error);
    int release(uint64_t ticket, duckhost_error *error);

    int duck_status(uint32_t duck, duckhost_duck_status *out) const;
    int domain_stats(uint32_t domain, duckhost_domain_stats *out) const;
    int set_faults(const duckhost_faults &faults, duckhost_error *error);
    int set_trace(uint32_t calls, duckhost_error *error);
    uint32_t get_trace(duckhost_trace_entry *out, uint32_t count_max) const;

  private:
    struct Place {
        Domain *domain;
        uint32_t link;
        const Link *state; // names are constant, status is for any thread
    };

    int check_duck(uint32_t duck, duckhost_error *error) const;
    int add_domain(const duckhost_domain &config, duckhost_error *error);
    int add_duck(const duckhost_duck &config, uint32_t index, duckhost_error *error);
    int start_domain(size_t index, const duckhost_domain &config, duckhost_error *error);
    bool has_few_cpus() const;
    int forget_calls(uint32_t result_bytes_max, duckhost_error *error);
    void close_ducks();
    int give_domain_keys(uint64_t ducks, uint64_t deadline_ns, duckhost_error *error);
    int check_open(uint64_t ducks, const duck_open &open, duckhost_error *error) const;
    int open_ducks(uint64_t ducks, const duck_open &open, const uint8_t *weights_ids,
                   uint64_t deadline_ns, uint64_t *busy, duckhost_error *error);
    template <typename Condition> void look_around(Condition is_over, uint64_t last_wait_ns);
    void await_credit(uint32_t number);
    int publish(const void *message, uint32_t bytes, uint64_t *ticket, duckhost_error *error);
    int end_used_up(duckhost_error *error);
    CallSlot *find_slot(uint64_t ticket, duckhost_error *error);
    int wait_slot(CallSlot &slot, duckhost_error *error);
    int add_part(CallSlot &slot, uint32_t duck, uint32_t dtype, float *out, uint64_t count,
                 bool first, duckhost_error *error);
    void tell_timing(const CallSlot &slot, duckhost_timing *timing) const;
    void trace(const CallSlot &slot, uint32_t session);
    void name_silent_ducks(const CallSlot &slot, duckhost_error *error) const;
    void release_slot(CallSlot &slot);

    FleetKey fleet_key_;
    duckhost_options options_{};
    CallBoard board_; // outlives the domains' threads
    TraceRing trace_;
    std::vector<std::unique_ptr<Domain>> domains_;
    std::vector<Place> ducks_;

    std::mutex open_mutex_;           // one session_open or session_close at a time
    std::shared_mutex session_mutex_; // shared: users of the board; exclusive: its replacement
    std::mutex order_mutex_;          // submitters wait for credit one after the other
    std::mutex submit_mutex_;         // guards the next three and the slots' numbers
    bool is_open_ = false;
    uint32_t generation_ = 0; // of the compute session; upper half of tickets
    uint32_t last_call_ = 0;
    std::atomic<uint64_t> last_wait_ns_{UINT64_MAX}; // for a call
};

} // namespace duckhost
