// SPDX-License-Identifier: Apache-2.0
#include "base.h"

#include <cstdio>
#include <cstring>
#include <ctime>
#include <sched.h>

namespace duckhost {

namespace {
constexpr uint64_t kAlone =
    1 * kMicrosecond; // sched_yield() without anybody to yield to is shorter
constexpr uint32_t kLooksAlone = 8;
} // namespace

void Courtesy::pause() {
    __builtin_ia32_pause();
    if (looks_left_ > 0) {
        looks_left_--;
        return;
    }
    const uint64_t begin_ns = now_ns();
    sched_yield();
    if (now_ns() - begin_ns < kAlone) looks_left_ = kLooksAlone;
}

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

int fail(duckhost_error *error, duckhost_code code, int duck, const char *format, ...) {
    if (error == nullptr) return code;
    std::memset(error, 0, sizeof *error);
    error->code = code;
    error->duck = duck;
    if (duck >= 0) error->ducks = UINT64_C(1) << duck;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return code;
}

void set_hint(duckhost_error *error, const char *format, ...) {
    if (error == nullptr) return;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error->hint, sizeof error->hint, format, arguments);
    va_end(arguments);
}

int succeed(duckhost_error *error) {
    if (error != nullptr) {
        std::memset(error, 0, sizeof *error);
        error->duck = -1;
    }
    return DUCKHOST_OK;
}

const char *status_text(uint32_t status) {
    static const char *const text[] = {"ok",
                                       "bad request",
                                       "not enough memory",
                                       "range outside of the region",
                                       "region is not reserved",
                                       "digest differs",
                                       "weights or kernel are not committed",
                                       "kernel is not a valid ELF",
                                       "kernel is for another ABI version",
                                       "kernel refused to start",
                                       "another host owns the compute session",
                                       "no compute session",
                                       "time limit",
                                       "memory limit",
                                       "kernel fault",
                                       "call too large",
                                       "a table is full",
                                       "not supported",
                                       "internal error"};
    return status < sizeof text / sizeof *text ? text[status] : "unknown status";
}

const char *fault_kind_text(uint32_t kind) {
    static const char *const text[] = {"no fault",       "memory access", "illegal instruction",
                                       "arithmetic",     "bus error",     "forbidden call",
                                       "stack overflow", "kernel exited", "killed"};
    return kind < sizeof text / sizeof *text ? text[kind] : "unknown kind";
}

const char *message_type_text(uint32_t type) {
    switch (type) {
    case DUCK_MSG_HELLO: return "HELLO";
    case DUCK_MSG_PING: return "PING";
    case DUCK_MSG_LOG: return "LOG";
    case DUCK_MSG_STATS: return "STATS";
    case DUCK_MSG_USAGE: return "USAGE";
    case DUCK_MSG_REBOOT: return "REBOOT";
    case DUCK_MSG_RESERVE: return "RESERVE";
    case DUCK_MSG_WRITE: return "WRITE";
    case DUCK_MSG_COMMIT: return "COMMIT";
    case DUCK_MSG_READ: return "READ";
    case DUCK_MSG_OPEN: return "OPEN";
    case DUCK_MSG_CALL: return "CALL";
    case DUCK_MSG_CLOSE: return "CLOSE";
    case DUCK_MSG_DOMAIN_KEY: return "DOMAIN_KEY";
    default: return "message";
    }
}

// DUCK_BUILD_HASH comes from the build: 40 hex digits.
void own_build(uint8_t out[DUCK_WIRE_BUILD_BYTES]) {
    static const char hex[] = DUCK_BUILD_HASH;
    static_assert(sizeof hex == 2 * DUCK_WIRE_BUILD_BYTES + 1, "a SHA-1 in hex");
    auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (size_t i = 0; i < DUCK_WIRE_BUILD_BYTES; i++)
        out[i] = static_cast<uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
}

void build_text(const uint8_t build[DUCK_WIRE_BUILD_BYTES],
                char out[2 * DUCK_WIRE_BUILD_BYTES + 1]) {
    for (size_t i = 0; i < DUCK_WIRE_BUILD_BYTES; i++)
        std::snprintf(out + 2 * i, 3, "%02x", build[i]);
}

void copy_text(char *out, size_t out_bytes, const char *text, size_t bytes) {
    size_t used = 0;
    for (; used < bytes && used + 1 < out_bytes && text[used] != 0; used++)
        out[used] = text[used] >= 0x20 && text[used] < 0x7f ? text[used] : '?';
    out[used] = 0;
}

} // namespace duckhost
