// SPDX-License-Identifier: Apache-2.0
//
// Who takes a domain's turns, and how it waits between them. The domain's own thread does, unless
// the domain is shared and a thread that waits for a call takes its turns meanwhile: then nothing
// is handed over, and one thread less wants a CPU. Whoever takes a turn holds turn_mutex_.
#include "domain.h"

#include <csignal>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

namespace duckhost {
namespace {

constexpr uint32_t kYieldTurns = 20; // sleep policy: yields before it sleeps
constexpr uint32_t kSleepTurns = 50; // then short sleeps, then it blocks: the call is a long one
constexpr uint64_t kSleep = 20 * kMicrosecond;
constexpr unsigned long kTimerSlack = 1 * kMicrosecond;
constexpr uint64_t kIdleMax = 100 * kMillisecond;
constexpr uint64_t kStall = 5 * kIdleMax; // between two turns: nobody was let run
// For so long after another thread took a turn, the domain's own one leaves the port to it.
constexpr uint64_t kHelped = 200 * kMicrosecond;
constexpr uint32_t kSendRounds = 64;         // of a burst each: then others may take turns
constexpr uint64_t kHelpedMax = 5 * kHelped; // when that goes on and on

} // namespace

// ---- other threads ------------------------------------------------------------------------------

void Domain::stop() {
    if (port_ == nullptr || is_stopping_.exchange(true)) return;
    port_->wake();
    if (thread_.joinable())
        thread_.join();
    else
        end_everything();
}

// Sends a call that was just published, or makes sure that somebody does.
void Domain::send_call() {
    if (is_shared_) {
        std::unique_lock<std::mutex> turn(turn_mutex_, std::try_to_lock);
        if (turn.owns_lock() && !is_stopping_.load()) {
            now_ = now_ns();
            calls_.take(*this);
            for (uint32_t i = 0; i < kSendRounds && pump(); i++) port_->flush();
            port_->flush();
        }
    }
    // The domain thread stores is_sleeping_ before it looks for calls a last time. It is woken even
    // when the call is out: its timers have changed.
    if (is_sleeping_.load()) port_->wake();
}

bool Domain::help() {
    if (!is_shared_) return false;
    std::unique_lock<std::mutex> turn(turn_mutex_, std::try_to_lock);
    if (!turn.owns_lock() || is_stopping_.load()) return false;
    take_turn();
    helped_ns_ = now_;
    return true;
}

// ---- the thread ---------------------------------------------------------------------------------

// The inventory says where: a polling thread wants a CPU that nobody else is scheduled on.
void Domain::pin() const {
    if (config_.cpu == 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(config_.cpu - 1, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); // start() checked that it may
}

void Domain::run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr); // signals are the application's business
    prctl(PR_SET_NAME, config_.name, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, kTimerSlack, 0, 0, 0); // timers of 300 us must not be 50 us late
    pin();
    port_->enter();
    std::unique_lock<std::mutex> turn(turn_mutex_);
    while (!is_stopping_.load()) {
        const uint64_t deadline_ns = take_turn();
        if (deadline_ns != 0) idle(turn, deadline_ns);
    }
    end_everything();
    port_->leave();
}

// When the next one is due; 0 = at once: there was something to do.
uint64_t Domain::take_turn() {
    counters_.turns.add();
    const uint64_t last_turn_ns = now_;
    now_ = now_ns();
    if (elapsed_ns(now_, last_turn_ns) > kStall) resumed_ns_ = now_;
    bool is_busy = receive() > 0;
    is_busy |= take_commands();
    is_busy |= calls_.take(*this);
    const uint64_t deadline_ns = run_timers();
    is_busy |= pump();
    port_->flush();
    if (!is_busy) return deadline_ns > 0 ? deadline_ns : 1;
    idle_turns_ = 0;
    last_wait_ns_ = now_ - busy_ns_;
    busy_ns_ = now_;
    return 0;
}

void Domain::idle(std::unique_lock<std::mutex> &turn, uint64_t deadline_ns) {
    now_ = now_ns();
    if (elapsed_ns(now_, helped_ns_) < kHelped) return leave_turns(turn);
    const uint64_t waited_ns = elapsed_ns(now_, busy_ns_);
    const bool may_sleep = options_.poll_policy != DUCK_POLL_SPIN;
    if (!may_sleep ||
        (options_.poll_policy == DUCK_POLL_BLOCK && may_look(last_wait_ns_, waited_ns))) {
        turn.unlock();
        courtesy_.pause();
        turn.lock();
        return;
    }
    deadline_ns = std::min({deadline_ns, port_->due_ns(), now_ + kIdleMax});
    if (deadline_ns <= now_) return;
    if (options_.poll_policy == DUCK_POLL_SLEEP && nap(turn, deadline_ns - now_)) return;
    sleep(turn, deadline_ns - now_);
}

// Somebody else takes the turns: look now and then whether they still do, or whether we are called.
void Domain::leave_turns(std::unique_lock<std::mutex> &turn) {
    const bool goes_on = elapsed_ns(now_, left_ns_) < 2 * kHelpedMax;
    leave_ns_ = goes_on ? std::min(2 * leave_ns_, kHelpedMax) : kHelped;
    const uint64_t time_ns = leave_ns_;
    turn.unlock();
    for (;;) {
        const unsigned seen = port_->wait(time_ns, 0);
        if ((seen & kWoken) != 0) {
            turn.lock();
            break;
        }
        if (turn.try_lock()) break;
    }
    left_ns_ = now_ns();
}

// Sleep policy, while a result is waited for: react within microseconds, for a while.
bool Domain::nap(std::unique_lock<std::mutex> &turn, uint64_t timeout_ns) {
    bool is_waiting = false;
    for (const auto &link : links_) is_waiting |= link->calls.is_waiting();
    if (!is_waiting || idle_turns_ >= kYieldTurns + kSleepTurns) return false;
    const bool yields = idle_turns_++ < kYieldTurns;
    const timespec time = {0, static_cast<long>(std::min(timeout_ns, kSleep))};
    turn.unlock();
    if (yields)
        sched_yield();
    else
        nanosleep(&time, nullptr);
    turn.lock();
    return true;
}

void Domain::sleep(std::unique_lock<std::mutex> &turn, uint64_t timeout_ns) {
    const unsigned watched = port_->is_congested() ? kPacket | kRoom : kPacket;
    unsigned seen = 0;
    is_sleeping_.store(true);
    if (!has_commands_.load() && !calls_.has_news(*this) && !is_stopping_.load()) {
        turn.unlock();
        seen = port_->wait(timeout_ns, watched);
        turn.lock();
    }
    is_sleeping_.store(false);
    if ((seen & kError) != 0) port_->read_errors();
    note_refused();
}

uint64_t Domain::run_timers() {
    uint64_t next = domain_rekey_timer();
    for (const auto &link : links_) {
        const uint64_t due[] = {hello_timer(*link),
                                ping_timer(*link),
                                rekey_timer(*link),
                                domain_key_timer(*link),
                                request_timer(*link),
                                link->bulk.timer(*this, *link),
                                link->calls.timer(*this, *link)};
        for (uint64_t time : due)
            if (time < next) next = time;
    }
    return next;
}

// Calls go first; bulk traffic takes turns between the ducks.
bool Domain::pump() {
    bool is_busy = calls_.pump(*this);
    for (const auto &link : links_) is_busy |= link->bulk.pump(*this, *link);
    return is_busy;
}

void Domain::note_refused() {
    Peer peer;
    if (!port_->refused(&peer)) return;
    for (const auto &link : links_)
        if (link->peer == peer) {
            link->status.unreachable_notes.add();
            link->was_refused = true;
        }
}

void Domain::end_everything() {
    duckhost_error error;
    fail(&error, DUCKHOST_ERR_CLOSED, -1, "the transport is closed");
    for (const auto &link : links_) {
        link->calls.fail_all(*this, *link, error);
        detach(*link, DUCKHOST_ERR_CLOSED, "the transport is closed");
        fail_hello(*link, DUCKHOST_ERR_CLOSED, "the transport is closed");
        fail_domain_key(*link, error);
    }
    std::lock_guard<std::mutex> guard(queue_mutex_);
    is_closed_ = true;
    while (Op *op = queue_.pop()) {
        op->error = error;
        op->finish();
    }
}

} // namespace duckhost
