// SPDX-License-Identifier: Apache-2.0
//
// The C interface: checks pointers, keeps exceptions of the standard library inside.
#include "transport.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <strings.h>
#include <thread>

using duckhost::fail;
using duckhost::Transport;

struct duckhost_fleet {
    Transport transport;
    std::atomic<uint32_t> users{0}; // functions running; duckhost_close waits for them
};

namespace {

constexpr auto kCloseStep = std::chrono::milliseconds(1);

class User {
  public:
    explicit User(duckhost_fleet *fleet) : fleet_(fleet) { fleet_->users.fetch_add(1); }
    ~User() { fleet_->users.fetch_sub(1); }
    User(const User &) = delete;
    User &operator=(const User &) = delete;

  private:
    duckhost_fleet *fleet_;
};

int null_argument(duckhost_error *error) {
    return fail(error, DUCKHOST_ERR_ARGUMENT, -1, "a pointer is null");
}

// Only set-up and control calls allocate; what the library throws then becomes an error.
template <typename Body> int guarded(duckhost_fleet *fleet, duckhost_error *error, Body body) {
    if (fleet == nullptr) return null_argument(error);
    const User user(fleet);
    try {
        return body();
    } catch (const std::exception &problem) {
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "%s", problem.what());
    }
}

void file_digest(const void *data, size_t bytes, uint8_t digest[DUCK_WIRE_DIGEST_BYTES]) {
    static const char label[] = "duck file 1";
    duck_sha256 hash;
    duck_sha256_start(&hash);
    duck_sha256_add(&hash, label, sizeof label - 1);
    duck_sha256_add(&hash, data, bytes);
    duck_sha256_end(&hash, digest);
}

} // namespace

extern "C" {

uint32_t duckhost_api_version(void) { return DUCKHOST_API_VERSION; }

const char *duckhost_build(void) { return DUCK_BUILD_HASH; }

int duckhost_make_key(uint8_t *private_key, uint8_t *public_key) {
    uint8_t seed[32];
    if (private_key == nullptr || public_key == nullptr) return DUCKHOST_ERR_ARGUMENT;
    if (!duckhost::random_bytes(seed, sizeof seed)) return DUCKHOST_ERR_SYSTEM;
    duck_fleet_make(seed, private_key);
    explicit_bzero(seed, sizeof seed);
    return duckhost_public_key(private_key, public_key);
}

int duckhost_public_key(const uint8_t *private_key, uint8_t *public_key) {
    if (private_key == nullptr || public_key == nullptr) return DUCKHOST_ERR_ARGUMENT;
    return duck_fleet_public(private_key, public_key) ? DUCKHOST_OK : DUCKHOST_ERR_ARGUMENT;
}

int duckhost_sign(const uint8_t *private_key, const void *data, size_t bytes, uint8_t *signature) {
    uint8_t digest[DUCK_WIRE_DIGEST_BYTES], public_key[DUCK_WIRE_PUBLIC_BYTES];
    if (private_key == nullptr || data == nullptr || signature == nullptr ||
        !duck_fleet_public(private_key, public_key))
        return DUCKHOST_ERR_ARGUMENT;
    file_digest(data, bytes, digest);
    return duck_fleet_sign(private_key, digest, signature) ? DUCKHOST_OK : DUCKHOST_ERR_ARGUMENT;
}

int duckhost_verify(const uint8_t *public_key, const void *data, size_t bytes,
                    const uint8_t *signature) {
    uint8_t digest[DUCK_WIRE_DIGEST_BYTES];
    if (public_key == nullptr || data == nullptr || signature == nullptr)
        return DUCKHOST_ERR_ARGUMENT;
    file_digest(data, bytes, digest);
    return duck_fleet_verify(public_key, digest, signature) ? DUCKHOST_OK : DUCKHOST_ERR_ARGUMENT;
}

int duckhost_open(const duckhost_domain *domains, uint32_t domain_count, const duckhost_duck *ducks,
                  uint32_t duck_count, const uint8_t *fleet_private,
                  const duckhost_options *options, duckhost_fleet **out, duckhost_error *error) {
    if (domains == nullptr || ducks == nullptr || fleet_private == nullptr || options == nullptr ||
        out == nullptr)
        return null_argument(error);
    auto fleet = std::unique_ptr<duckhost_fleet>(new (std::nothrow) duckhost_fleet);
    const int code = guarded(fleet.get(), error, [&] {
        return fleet->transport.open(domains, domain_count, ducks, duck_count, fleet_private,
                                     *options, error);
    });
    if (code == DUCKHOST_OK) *out = fleet.release();
    return code;
}

void duckhost_stop(duckhost_fleet *fleet) {
    if (fleet != nullptr) fleet->transport.stop();
}

void duckhost_close(duckhost_fleet *fleet) {
    if (fleet == nullptr) return;
    fleet->transport.stop(); // everything that waits is woken and leaves
    while (fleet->users.load() != 0) std::this_thread::sleep_for(kCloseStep);
    delete fleet;
}

int duckhost_hello(duckhost_fleet *fleet, uint32_t duck, uint32_t timeout_ms, duck_info *info,
                   uint8_t *identity, uint64_t *round_trip_ns, duckhost_error *error) {
    return guarded(fleet, error, [&] {
        return fleet->transport.hello(duck, timeout_ms, info, identity, round_trip_ns, error);
    });
}

int duckhost_detach(duckhost_fleet *fleet, uint32_t duck, duckhost_error *error) {
    return guarded(fleet, error, [&] { return fleet->transport.detach(duck, error); });
}

int duckhost_request(duckhost_fleet *fleet, uint32_t duck, uint32_t type, const void *payload,
                     uint32_t payload_bytes, uint32_t timeout_ms, void *reply,
                     uint32_t reply_bytes_max, uint32_t *reply_type, uint32_t *reply_bytes,
                     duckhost_error *error) {
    if ((payload == nullptr && payload_bytes > 0) || reply == nullptr) return null_argument(error);
    return guarded(fleet, error, [&] {
        return fleet->transport.request(duck, type, payload, payload_bytes, timeout_ms, reply,
                                        reply_bytes_max, reply_type, reply_bytes, error);
    });
}

int duckhost_write(duckhost_fleet *fleet, uint32_t duck, uint32_t region, uint64_t offset,
                   const void *data, uint64_t bytes, duckhost_progress *progress,
                   duckhost_error *error) {
    if (data == nullptr && bytes > 0) return null_argument(error);
    return guarded(fleet, error, [&] {
        return fleet->transport.write(duck, region, offset, data, bytes, progress, error);
    });
}

int duckhost_session_open(duckhost_fleet *fleet, uint64_t ducks, const duck_open *open,
                          const uint8_t *weights_ids, uint32_t timeout_ms, duckhost_error *error) {
    if (open == nullptr) return null_argument(error);
    return guarded(fleet, error, [&] {
        return fleet->transport.session_open(ducks, *open, weights_ids, timeout_ms, error);
    });
}

int duckhost_session_close(duckhost_fleet *fleet, duckhost_error *error) {
    return guarded(fleet, error, [&] { return fleet->transport.session_close(error); });
}

int duckhost_submit(duckhost_fleet *fleet, const void *message, uint32_t bytes, uint64_t *ticket,
                    duckhost_error *error) {
    if (message == nullptr || ticket == nullptr) return null_argument(error);
    return guarded(fleet, error,
                   [&] { return fleet->transport.submit(message, bytes, ticket, error); });
}

int duckhost_wait_sum(duckhost_fleet *fleet, uint64_t ticket, uint32_t dtype, float *out,
                      uint64_t count, duckhost_timing *timing, duckhost_error *error) {
    if (out == nullptr) return null_argument(error);
    return guarded(fleet, error, [&] {
        return fleet->transport.wait_sum(ticket, dtype, out, count, timing, error);
    });
}

int duckhost_wait(duckhost_fleet *fleet, uint64_t ticket, duckhost_timing *timing,
                  duckhost_error *error) {
    return guarded(fleet, error, [&] { return fleet->transport.wait(ticket, timing, error); });
}

int duckhost_result(duckhost_fleet *fleet, uint64_t ticket, uint32_t duck, const void **data,
                    uint32_t *bytes, duckhost_error *error) {
    if (data == nullptr || bytes == nullptr) return null_argument(error);
    return guarded(fleet, error,
                   [&] { return fleet->transport.result(ticket, duck, data, bytes, error); });
}

int duckhost_release(duckhost_fleet *fleet, uint64_t ticket, duckhost_error *error) {
    return guarded(fleet, error, [&] { return fleet->transport.release(ticket, error); });
}

int duckhost_get_duck_status(duckhost_fleet *fleet, uint32_t duck, duckhost_duck_status *out) {
    if (out == nullptr) return DUCKHOST_ERR_ARGUMENT;
    return guarded(fleet, nullptr, [&] { return fleet->transport.duck_status(duck, out); });
}

int duckhost_get_domain_stats(duckhost_fleet *fleet, uint32_t domain, duckhost_domain_stats *out) {
    if (out == nullptr) return DUCKHOST_ERR_ARGUMENT;
    return guarded(fleet, nullptr, [&] { return fleet->transport.domain_stats(domain, out); });
}

int duckhost_set_trace(duckhost_fleet *fleet, uint32_t calls, duckhost_error *error) {
    return guarded(fleet, error, [&] { return fleet->transport.set_trace(calls, error); });
}

int duckhost_get_trace(duckhost_fleet *fleet, duckhost_trace_entry *out, uint32_t count_max,
                       uint32_t *count, duckhost_error *error) {
    if (out == nullptr || count == nullptr) return null_argument(error);
    return guarded(fleet, error, [&] {
        *count = fleet->transport.get_trace(out, count_max);
        return duckhost::succeed(error);
    });
}

int duckhost_set_faults(duckhost_fleet *fleet, const duckhost_faults *faults,
                        duckhost_error *error) {
    if (faults == nullptr) return null_argument(error);
    return guarded(fleet, error, [&] { return fleet->transport.set_faults(*faults, error); });
}

} // extern "C"
