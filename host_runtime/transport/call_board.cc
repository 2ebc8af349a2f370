// SPDX-License-Identifier: Apache-2.0
#include "call_board.h"

#include <sys/mman.h>

namespace duckhost {
namespace {

constexpr size_t kAlignment = 4096;
// Memory up to this size is touched at once, so that the first calls meet no page faults.
constexpr size_t kPopulateMax = size_t{64} << 20;

size_t rounded(uint32_t bytes) {
    return (size_t{bytes} + kAlignment - 1) / kAlignment * kAlignment;
}

} // namespace

bool Mapping::map(size_t bytes) {
    reset();
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (bytes <= kPopulateMax) flags |= MAP_POPULATE;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) return false;
    data_ = static_cast<uint8_t *>(memory);
    bytes_ = bytes;
    return true;
}

void Mapping::reset() {
    if (data_ != nullptr) munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

bool CallBoard::prepare(uint64_t ducks, uint32_t call_bytes_max, uint32_t result_bytes_max) {
    const size_t call_room = rounded(call_bytes_max), result_room = rounded(result_bytes_max);
    const auto count = static_cast<size_t>(__builtin_popcountll(ducks));
    if (!memory_.map(kSlots * (call_room + count * result_room))) return false;
    uint8_t *next = memory_.data();
    for (CallSlot &slot : slot_) {
        slot.number = 0;
        slot.is_released = true;
        slot.open_parts.store(0);
        slot.has_failed.store(0);
        slot.message = next;
        next += call_room;
        for (uint32_t duck = 0; duck < DUCKHOST_DUCKS_MAX; duck++) {
            slot.part[duck].result = nullptr;
            if ((ducks >> duck & 1) == 0) continue;
            slot.part[duck].result = next;
            next += result_room;
        }
    }
    for (auto &entry : ring_) entry.store(nullptr);
    std::lock_guard<std::mutex> guard(mutex_);
    ducks_.store(ducks);
    call_bytes_max_ = call_bytes_max;
    result_bytes_max_ = result_bytes_max;
    has_ended_ = false;
    published.store(0);
    return true;
}

CallSlot *CallBoard::find(uint32_t number) {
    for (CallSlot &slot : slot_)
        if (slot.number == number && !slot.is_released) return &slot;
    return nullptr;
}

CallSlot *CallBoard::find_free() {
    for (CallSlot &slot : slot_)
        if (slot.is_released && slot.open_parts.load() == 0) return &slot;
    return nullptr;
}

void CallBoard::notify() {
    // The store to the part came before; a waiter counts itself in before it looks (both seq_cst).
    if (sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> guard(mutex_);
    changed_.notify_all();
}

void CallBoard::finish_part(CallSlot &slot, uint32_t duck) {
    slot.part[duck].state.store(CallPart::done);
    if (slot.open_parts.fetch_sub(1) == 1) notify();
}

void CallBoard::fail_part(CallSlot &slot, uint32_t duck, const duckhost_error &error,
                          bool ends_session) {
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (slot.has_failed.load() == 0) {
            slot.error = error;
        } else {
            slot.error.ducks |= error.ducks;
        }
        if (ends_session && !has_ended_) {
            has_ended_ = true;
            end_error_ = error;
        }
    }
    slot.part[duck].state.store(CallPart::failed);
    slot.has_failed.store(1);
    slot.open_parts.fetch_sub(1);
    notify();
}

void CallBoard::end_session(const duckhost_error &error) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (has_ended_) return;
    has_ended_ = true;
    end_error_ = error;
    changed_.notify_all();
}

void CallBoard::abort_all(const duckhost_error &error) {
    end_session(error);
    std::lock_guard<std::mutex> guard(mutex_);
    for (CallSlot &slot : slot_) {
        if (slot.open_parts.load() == 0 || slot.has_failed.load() != 0) continue;
        slot.error = error;
        slot.has_failed.store(1);
    }
    changed_.notify_all();
}

void CallBoard::note_sent(CallSlot &slot, uint64_t now) {
    uint64_t seen = slot.sent_ns.load();
    while (seen < now && !slot.sent_ns.compare_exchange_weak(seen, now)) {
    }
}

bool CallBoard::has_ended(duckhost_error *error) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (has_ended_ && error != nullptr) *error = end_error_;
    return has_ended_;
}

void CallBoard::wait_finished(CallSlot &slot) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock,
                  [&slot] { return slot.open_parts.load() == 0 || slot.has_failed.load() != 0; });
    sleepers_.fetch_sub(1);
}

bool CallBoard::has_credit(uint32_t number) {
    const CallSlot *before = ring_[number % kCallsInFlight].load();
    // A slot that has another number by now was given away because its call was over.
    return before == nullptr || before->number != number - kCallsInFlight ||
           before->open_parts.load() == 0;
}

void CallBoard::wait_credit(uint32_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return has_ended_ || has_credit(number); });
    sleepers_.fetch_sub(1);
}

void CallBoard::copy_error(CallSlot &slot, duckhost_error *error) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (error != nullptr) *error = slot.error;
}

} // namespace duckhost
