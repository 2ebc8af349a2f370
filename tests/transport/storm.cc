// SPDX-License-Identifier: Apache-2.0
//
// The transport as a C++ program against running ducks, to be built with sanitizers: many threads
// use every function at once, under faults. It also counts memory taken on the call path.
//
//     storm KEY_HEX KERNEL.elf CALLS PORT...
#include "program.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

std::atomic<uint64_t> allocations{0}; // by operator new, of this program and the library

constexpr uint32_t kValues = 1800;

struct Call { // echo_kernel.c: SCALE
    uint32_t command = 1, argument = 0, seed = 0, reserved = 0;
    float value[kValues];
};

// One caller; two of them run at once, so four calls are never exceeded with two in flight each.
void call_often(const Fleet &fleet, uint32_t calls, float base) {
    static_assert(sizeof(Call) == 16 + 4 * kValues, "as the kernel reads it");
    Call call;
    float out[kValues];
    duckhost_error error;
    duckhost_timing timing;
    const auto total = static_cast<float>(fleet.ducks * (fleet.ducks + 1) / 2);
    for (uint32_t number = 0; number < calls; number += 2) {
        uint64_t ticket[2];
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t k = 0; k < kValues; k++)
                call.value[k] = base + static_cast<float>((number + i + k) % 1000);
            check(duckhost_submit(fleet.handle, &call, sizeof call, &ticket[i], &error), error,
                  "submit");
        }
        for (uint32_t i = 0; i < 2; i++) {
            check(duckhost_wait_sum(fleet.handle, ticket[i], 0, out, kValues, &timing, &error),
                  error, "wait_sum");
            for (uint32_t k = 0; k < kValues; k++) // small whole numbers: sums are exact
                require(out[k] == (base + static_cast<float>((number + i + k) % 1000)) * total,
                        "the sum is right");
        }
    }
}

void watch(const Fleet &fleet, const std::atomic<bool> &is_over) {
    uint8_t zeros[sizeof(duck_stats)] = {};
    while (!is_over.load()) {
        for (uint32_t duck = 0; duck < fleet.ducks; duck++) {
            duckhost_duck_status status;
            require(duckhost_get_duck_status(fleet.handle, duck, &status) == 0, "status");
            request(fleet, duck, DUCK_MSG_STATS, zeros, sizeof zeros);
        }
        duckhost_domain_stats stats;
        require(duckhost_get_domain_stats(fleet.handle, 0, &stats) == 0, "stats");
    }
}

void run_calls(const Fleet &fleet, uint32_t calls) {
    std::atomic<bool> is_over{false};
    std::thread watcher([&] { watch(fleet, is_over); });
    std::thread other([&] { call_often(fleet, calls / 2, 1); });
    call_often(fleet, calls / 2, 2000);
    other.join();
    is_over.store(true);
    watcher.join();
}

// Nothing but calls: the library may not take memory now.
void count_allocations(const Fleet &fleet) {
    call_often(fleet, 10, 3);
    const uint64_t before = allocations.load();
    std::printf("allocations before the calls: %llu\n", static_cast<unsigned long long>(before));
    call_often(fleet, 200, 5);
    std::printf("allocations on the call path: %llu\n",
                static_cast<unsigned long long>(allocations.load() - before));
}

// The session goes while a call is under way; then the fleet while a request is.
void interrupt(Fleet &fleet) {
    duckhost_error error;
    Call call;
    call.command = 6; // BUSY
    call.argument = 200'000'000;
    std::memset(call.value, 0, sizeof call.value);
    uint64_t ticket = 0;
    check(duckhost_submit(fleet.handle, &call, sizeof call, &ticket, &error), error, "submit");
    std::thread waiter([&] {
        duckhost_error found;
        float out[kValues + 4];
        const int code =
            duckhost_wait_sum(fleet.handle, ticket, 0, out, kValues + 4, nullptr, &found);
        require(code == DUCKHOST_ERR_STATE || code == DUCKHOST_OK, "the wait ended");
    });
    open_session(fleet);
    waiter.join();
    for (uint32_t duck = 0; duck < fleet.ducks; duck++)
        check(duckhost_detach(fleet.handle, duck, &error), error, "detach");
    std::thread late([&] {
        duckhost_error found;
        duck_info info;
        duckhost_hello(fleet.handle, 0, 5000, &info, nullptr, nullptr, &found);
    });
    late.join();
    duckhost_close(fleet.handle);
}

} // namespace

void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
    allocations.fetch_add(1);
    return std::malloc(bytes == 0 ? 1 : bytes);
}
void *operator new(size_t bytes) {
    void *memory = operator new(bytes, std::nothrow);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

int main(int count, char **words) {
    require(count >= 6, "usage: storm KEY_HEX KERNEL.elf CALLS PORT PORT...");
    Fleet fleet = open_fleet(words[1], words[2], words + 4, static_cast<uint32_t>(count - 4));
    const auto calls = static_cast<uint32_t>(std::stoul(words[3]));
    duckhost_error error;
    duckhost_faults faults{};
    faults.seed = 77;
    faults.drop = faults.duplicate = faults.reorder = 0.05;
    faults.corrupt = 0.01;
    check(duckhost_set_faults(fleet.handle, &faults, &error), error, "set_faults");
    load_all(fleet);
    open_session(fleet);
    run_calls(fleet, calls);
    faults = {};
    check(duckhost_set_faults(fleet.handle, &faults, &error), error, "set_faults");
    open_session(fleet);
    count_allocations(fleet);
    interrupt(fleet);
    std::printf("storm is over\n");
    return 0;
}
