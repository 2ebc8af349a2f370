// SPDX-License-Identifier: Apache-2.0
//
// What the C++ test programs share: checks, and a fleet of running ducks with a kernel loaded.
#pragma once

#include <duckhost.h>

extern "C" {
#include <seal.h>
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

inline void check(int code, const duckhost_error &error, const char *what) {
    if (code == DUCKHOST_OK) return;
    std::fprintf(stderr, "%s: %s\n", what, error.text);
    std::exit(1);
}

inline void require(bool is_fine, const char *what) {
    if (is_fine) return;
    std::fprintf(stderr, "not true: %s\n", what);
    std::exit(1);
}

struct Fleet {
    duckhost_fleet *handle = nullptr;
    uint32_t ducks = 0;
    std::vector<uint8_t> kernel;
};

inline void request(const Fleet &fleet, uint32_t duck, uint32_t type, const void *payload,
                    uint32_t bytes) {
    uint8_t reply[DUCK_WIRE_PACKET_BYTES_MAX];
    duckhost_error error;
    check(duckhost_request(fleet.handle, duck, type, payload, bytes, 10000, reply, sizeof reply,
                           nullptr, nullptr, &error),
          error, "request");
}

inline void load_region(const Fleet &fleet, uint32_t duck, uint32_t region,
                        const std::vector<uint8_t> &data) {
    duckhost_error error;
    duck_reserve reserve{};
    reserve.region = region;
    reserve.bytes = data.size();
    request(fleet, duck, DUCK_MSG_RESERVE, &reserve, sizeof reserve);
    duckhost_progress progress{};
    check(
        duckhost_write(fleet.handle, duck, region, 0, data.data(), data.size(), &progress, &error),
        error, "write");
    duck_commit commit{};
    commit.region = region;
    commit.flags = DUCK_COMMIT_LAST;
    commit.bytes = data.size();
    duck_sha256 hash;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, data.data(), data.size());
    duck_sha256_end(&hash, commit.sha256);
    request(fleet, duck, DUCK_MSG_COMMIT, &commit, sizeof commit);
}

inline void load(const Fleet &fleet, uint32_t duck) {
    duckhost_error error;
    duck_info info;
    uint64_t round_trip_ns = 0;
    check(duckhost_hello(fleet.handle, duck, 10000, &info, nullptr, &round_trip_ns, &error), error,
          "hello");
    std::vector<uint8_t> weights(2'000'001, 7);
    const float factor = static_cast<float>(duck + 1);
    std::memcpy(weights.data(), &factor, sizeof factor);
    load_region(fleet, duck, DUCK_REGION_KERNEL, fleet.kernel);
    load_region(fleet, duck, DUCK_REGION_WEIGHTS, weights);
}

inline void open_session(const Fleet &fleet) {
    duckhost_error error;
    duck_open open{};
    open.flags = DUCK_OPEN_TAKEOVER;
    open.core_count = 1;
    open.call_bytes_max = open.result_bytes_max = 1u << 20;
    open.scratch_bytes = 4096;
    open.call_time_limit_ms = 20000;
    check(duckhost_session_open(fleet.handle, (UINT64_C(1) << fleet.ducks) - 1, &open, nullptr,
                                20000, &error),
          error, "session_open");
}

inline Fleet open_fleet(const char *key_hex, const char *kernel, char **ports, uint32_t count) {
    Fleet fleet;
    fleet.ducks = count;
    uint8_t key[DUCK_WIRE_KEY_BYTES];
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = static_cast<uint8_t>(std::stoul(std::string(key_hex + 2 * i, 2), nullptr, 16));
    std::ifstream file(kernel, std::ios::binary);
    fleet.kernel.assign(std::istreambuf_iterator<char>(file), {});
    require(!fleet.kernel.empty(), "the kernel file can be read");
    duckhost_domain domain[2] = {};
    std::vector<duckhost_duck> ducks(count);
    for (uint32_t i = 0; i < 2; i++) {
        std::snprintf(domain[i].name, sizeof domain[i].name, "domain%u", i + 1);
        domain[i].mtu = i == 0 ? 1500 : 9000;
    }
    for (uint32_t i = 0; i < count; i++) {
        std::snprintf(ducks[i].name, sizeof ducks[i].name, "d%02u", i + 1);
        std::snprintf(ducks[i].address, sizeof ducks[i].address, "127.0.0.1");
        ducks[i].domain = i % 2;
        ducks[i].port = static_cast<uint32_t>(std::stoul(ports[i]));
    }
    duckhost_options options{};
    options.poll_policy = DUCK_POLL_BLOCK;
    options.silence_ms = 10000; // sanitizers are slow
    duckhost_error error;
    check(duckhost_open(domain, 2, ducks.data(), count, key, &options, &fleet.handle, &error),
          error, "open");
    return fleet;
}

inline void load_all(const Fleet &fleet) {
    std::vector<std::thread> loaders;
    for (uint32_t duck = 0; duck < fleet.ducks; duck++)
        loaders.emplace_back([&fleet, duck] { load(fleet, duck); });
    for (std::thread &loader : loaders) loader.join();
}
