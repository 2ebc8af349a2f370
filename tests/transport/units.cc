// SPDX-License-Identifier: Apache-2.0
//
// Parts of the transport by themselves: cutting messages, adding results, injecting faults.
//     units NAME        runs one check; prints what was not true
#include <fault_port.h>
#include <message.h>
#include <sum.h>
#include <trace_ring.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>

using namespace duckhost;

namespace {

void require(bool is_fine, const char *what) {
    if (is_fine) return;
    std::fprintf(stderr, "not true: %s\n", what);
    std::exit(1);
}

// What is sent can be taken out; what is put in is received.
class MemoryPort final : public Port {
  public:
    struct Packet {
        std::string data;
        Peer peer;
    };
    uint8_t *transmit_buffer() override { return buffer_; }
    void transmit(uint32_t bytes, const Peer *peers, size_t count) override {
        for (size_t i = 0; i < count; i++)
            sent.push_back({std::string(reinterpret_cast<char *>(buffer_), bytes), peers[i]});
    }
    void flush() override {}
    size_t receive(ReceivedPacket *out, size_t count_max) override {
        size_t count = 0;
        while (count < count_max && !incoming.empty()) {
            handed_[count] = incoming.front();
            incoming.pop_front();
            Packet &packet = handed_[count];
            out[count++] = {reinterpret_cast<uint8_t *>(packet.data.data()),
                            static_cast<uint32_t>(packet.data.size()), packet.peer};
        }
        return count;
    }
    unsigned wait(uint64_t, unsigned) override { return 0; }
    void wake() override {}
    bool refused(Peer *) override { return false; }
    const PortCounters &counters() const override { return counters_; }

    std::deque<Packet> sent, incoming;

  private:
    uint8_t buffer_[kPacketRoom];
    Packet handed_[kReceiveBatch];
    PortCounters counters_;
};

const Peer kFirst{1, 10}, kSecond{2, 10};

struct Bench {
    MemoryPort *inner = new MemoryPort;
    FaultPort port{std::unique_ptr<Port>(inner), {kFirst, kSecond}};

    void send(int number, const Peer *peers, size_t count) {
        uint8_t *buffer = port.transmit_buffer();
        std::memset(buffer, number, 100);
        port.transmit(100, peers, count);
    }
    // After this time nothing is held back any more: the longest hold is half a millisecond.
    static void let_time_pass() {
        const uint64_t end = now_ns() + kMillisecond;
        while (now_ns() < end) {
        }
    }
    void settle() {
        let_time_pass();
        port.flush();
    }
    std::string receive_all() {
        std::string numbers;
        ReceivedPacket batch[kReceiveBatch];
        auto take = [&] {
            const size_t got = port.receive(batch, kReceiveBatch);
            for (size_t i = 0; i < got; i++) numbers += static_cast<char>(batch[i].data[0]);
            return got;
        };
        while (take() > 0 || !inner->incoming.empty()) {
        }
        let_time_pass();
        while (take() > 0) {
        }
        return numbers;
    }
};

std::string sent_numbers(const Bench &bench) {
    std::string numbers;
    for (const MemoryPort::Packet &packet : bench.inner->sent) numbers += packet.data[0];
    return numbers;
}

void check_off() {
    Bench bench;
    const Peer both[] = {kFirst, kSecond};
    bench.send(65, both, 2);
    require(sent_numbers(bench) == "AA", "without faults packets pass at once");
    bench.inner->incoming.push_back({std::string(10, 'x'), kFirst});
    require(bench.receive_all() == "x", "and arrive");
}

std::string run_with(const duckhost_faults &faults, uint64_t seed) {
    Bench bench;
    bench.port.set(faults, seed, 0);
    for (int i = 0; i < 60; i++) bench.send(65 + i, &kFirst, 1);
    bench.settle();
    for (int i = 0; i < 60; i++)
        bench.inner->incoming.push_back({std::string(100, static_cast<char>(65 + i)), kSecond});
    return sent_numbers(bench) + "|" + bench.receive_all();
}

void check_seed() {
    duckhost_faults faults{};
    faults.drop = 0.3;
    const std::string one = run_with(faults, 1);
    require(one == run_with(faults, 1), "the same seed drops the same packets");
    require(one != run_with(faults, 2), "another seed drops others");
    require(one.size() > 60 && one.size() < 110, "about three in ten are dropped, both ways");
}

void check_all_or_nothing() {
    duckhost_faults faults{};
    faults.drop = 1;
    require(run_with(faults, 1) == "|", "drop 1 drops everything");
    faults.drop = 0;
    faults.duplicate = 1;
    require(run_with(faults, 1).size() == 4 * 60 + 1, "duplicate 1 doubles everything");
}

void check_reorder() {
    duckhost_faults faults{};
    faults.reorder = 0.5;
    Bench bench;
    bench.port.set(faults, 3, 0);
    for (int i = 0; i < 60; i++) bench.send(65 + i, &kFirst, 1);
    bench.settle();
    std::string numbers = sent_numbers(bench);
    std::string sorted;
    for (int i = 0; i < 60; i++) sorted += static_cast<char>(65 + i);
    require(numbers != sorted, "the order has changed");
    std::map<char, int> seen;
    for (char number : numbers) seen[number]++;
    require(numbers.size() == 60 && seen.size() == 60, "and nothing is lost or repeated");
    require(bench.port.fault_counters().reordered.get() > 10, "it is counted");
}

void check_corrupt() {
    duckhost_faults faults{};
    faults.corrupt = 1;
    Bench bench;
    bench.port.set(faults, 4, 0);
    const Peer both[] = {kFirst, kSecond};
    for (int i = 0; i < 20; i++) bench.send(85, both, 2);
    bench.settle();
    require(bench.inner->sent.size() == 40, "all are sent");
    for (const MemoryPort::Packet &packet : bench.inner->sent) {
        int bits = 0;
        for (char byte : packet.data) bits += __builtin_popcount(static_cast<uint8_t>(byte) ^ 85u);
        require(bits == 1, "exactly one bit differs");
    }
}

void check_cut() {
    Bench bench;
    bench.port.set({}, 1, 2); // the second duck
    const Peer both[] = {kFirst, kSecond};
    bench.send(65, both, 2);
    bench.settle();
    require(bench.inner->sent.size() == 1 && bench.inner->sent[0].peer == kFirst,
            "only the first duck gets it");
    bench.inner->incoming.push_back({std::string(10, 'a'), kFirst});
    bench.inner->incoming.push_back({std::string(10, 'b'), kSecond});
    require(bench.receive_all() == "a", "and only the first is heard");
    require(bench.port.fault_counters().cut.get() == 2, "both are counted");
    bench.port.set({}, 1, 0);
    bench.send(66, both, 2);
    require(bench.inner->sent.size() == 3, "afterwards all is as before");
}

void check_cutting() {
    std::string data(100'000, 0);
    for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<char>(i * 7 + i / 251);
    const duck_result_prefix prefix{1, 2};
    for (uint32_t bytes : {0u, 1u, 1407u, 1408u, 1409u, 99'999u, 100'000u}) {
        for (uint32_t stride : {64u, 1344u, 1408u, 8896u}) {
            Message message;
            message.type = DUCK_MSG_RESULT;
            message.sequence = 9;
            message.data = reinterpret_cast<const uint8_t *>(data.data());
            message.bytes = bytes;
            message.stride = static_cast<uint16_t>(stride);
            message.prefix = &prefix;
            std::string joined;
            for (uint32_t i = 0; i < fragment_count(message); i++) {
                uint8_t packet[kPacketRoom];
                const uint32_t size = build_fragment(packet, message, i, 5, DUCK_KEY_SESSION);
                duck_packet_header header;
                require(duck_packet_check(packet, size, &header) == DUCK_CHECK_OK, "it is valid");
                require(header.session == 5 && header.sequence == 9, "its numbers are right");
                const size_t front = sizeof header + sizeof prefix;
                joined.append(reinterpret_cast<char *>(packet) + front, size - front);
            }
            require(joined == data.substr(0, bytes), "the fragments join to the message");
        }
    }
}

// Of a domain's CALL and RESULT, and of WRITE: whole fragments fit the MTU, with one more stride
// they would not.
void check_strides() {
    constexpr uint32_t step = 64;
    const std::string data(2 * DUCK_WIRE_FRAGMENT_BYTES_MAX, 'x');
    const duck_write_prefix prefix{}; // the longest one
    for (uint32_t mtu = 1280; mtu <= 9000; mtu++) {
        const auto write_stride = stride_for_mtu(mtu, sizeof(duck_write_prefix));
        const std::pair<uint8_t, uint16_t> kinds[] = {{DUCK_MSG_CALL, call_stride_for_mtu(mtu)},
                                                      {DUCK_MSG_RESULT, call_stride_for_mtu(mtu)},
                                                      {DUCK_MSG_WRITE, write_stride}};
        for (const auto &[type, stride] : kinds) {
            Message message;
            message.type = type;
            message.data = reinterpret_cast<const uint8_t *>(data.data());
            message.bytes = stride + 1u;
            message.stride = stride;
            message.prefix = &prefix;
            uint8_t packet[kPacketRoom];
            const uint32_t bytes = build_fragment(packet, message, 0, 5, DUCK_KEY_SESSION);
            require(stride % step == 0 && bytes + kIpUdpBytes <= mtu, "a packet fits the MTU");
            if (type != DUCK_MSG_CALL) // its stride is the one of its RESULT
                require(bytes + kIpUdpBytes + step > mtu, "and uses it");
        }
    }
}

void check_sums() {
    alignas(64) float parts[3][37];
    alignas(64) uint16_t halves[3][37];
    for (int duck = 0; duck < 3; duck++) {
        for (int i = 0; i < 37; i++) {
            parts[duck][i] = 1.0f / static_cast<float>(3 + 5 * duck + i);
            uint32_t word;
            std::memcpy(&word, &parts[duck][i], sizeof word);
            halves[duck][i] = static_cast<uint16_t>(word >> 16);
        }
    }
    parts[0][3] = -0.0f;
    parts[1][3] = parts[2][3] = -0.0f;
    float out[37], wide[37];
    for (int duck = 0; duck < 3; duck++) {
        sum_f32(out, reinterpret_cast<uint8_t *>(parts[duck]), 37, duck == 0);
        sum_bf16(wide, reinterpret_cast<uint8_t *>(halves[duck]), 37, duck == 0);
    }
    auto widened = [&](int duck, int i) {
        const uint32_t word = static_cast<uint32_t>(halves[duck][i]) << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    };
    for (int i = 0; i < 37; i++) {
        const float expected = (parts[0][i] + parts[1][i]) + parts[2][i];
        require(std::memcmp(&out[i], &expected, sizeof expected) == 0, "float32: bits in order");
        const float half = (widened(0, i) + widened(1, i)) + widened(2, i);
        require(std::memcmp(&wide[i], &half, sizeof half) == 0, "bf16: bits in order");
    }
}

void check_clock() {
    const ClockSample nothing;
    require(start_on_host(77, nothing, 1000) == 0, "without a PONG nothing is known");
    // The duck is 5,000,000,000 ns ahead; 400 ns there and 400 back.
    const uint64_t ahead = 5000000000;
    ClockSample clock = better_clock(nothing, 1000, 1400 + ahead, 1800);
    require(clock.offset_ns == 5000000000 && clock.error_ns == 400, "half the round trip");
    const ClockSample worse = better_clock(clock, 10000, 40000 + ahead, 60000);
    require(worse.offset_ns == clock.offset_ns, "a slow round trip tells less");
    require(worse.error_ns > clock.error_ns, "what is known grows old");
    require(better_clock(clock, 2000, 2100 + ahead, 2200).error_ns == 100, "a fast one tells more");
    // Every moment of the last two minutes comes back to 64 ns, across the low bits' wrap too.
    for (uint64_t now : {uint64_t{300000000000}, (uint64_t{1} << 38) - ahead + 1000}) {
        for (uint64_t ago : {uint64_t{0}, uint64_t{900}, uint64_t{119000000000}}) {
            const auto start = static_cast<uint32_t>((now - ago + ahead) >> 6);
            if (start == 0) continue;
            const uint64_t told = start_on_host(start, clock, now);
            require(told <= now - ago && now - ago - told < 64, "the moment comes back");
        }
    }
    require(start_on_host(0, clock, 1000) == 0, "0 is unknown");
    // A duck that booted later than the host: its clock is behind.
    clock = better_clock(nothing, 9000000000, 1000, 9000000800);
    require(clock.offset_ns == 1000 - 9000000400, "behind");
    const auto start = static_cast<uint32_t>(640000 >> 6);
    require(start_on_host(start, clock, 9000700400) == 9000000400 - 1000 + 640000, "behind too");
}

void check_trace_ring() {
    TraceRing ring;
    duckhost_trace_entry entry{}, out[8];
    ring.add(entry);
    require(!ring.is_on() && ring.read(out, 8) == 0, "off at first");
    require(ring.resize(3) && ring.is_on(), "on");
    for (uint32_t call = 1; call <= 5; call++) {
        entry.call = call;
        ring.add(entry);
    }
    require(ring.read(out, 8) == 3, "the last three");
    require(out[0].call == 3 && out[1].call == 4 && out[2].call == 5, "oldest first");
    require(ring.read(out, 2) == 2 && out[0].call == 4, "the newest two");
    require(ring.resize(0) && ring.read(out, 8) == 0 && !ring.is_on(), "off again");
}

} // namespace

int main(int count, char **words) {
    const std::map<std::string, std::function<void()>> checks = {
        {"off", check_off},
        {"seed", check_seed},
        {"all_or_nothing", check_all_or_nothing},
        {"reorder", check_reorder},
        {"cut", check_cut},
        {"corrupt", check_corrupt},
        {"cutting", check_cutting},
        {"strides", check_strides},
        {"sums", check_sums},
        {"clock", check_clock},
        {"trace_ring", check_trace_ring}};
    require(count == 2, "usage: units NAME");
    const auto found = checks.find(words[1]);
    require(found != checks.end(), "there is a check of this name");
    found->second();
    return 0;
}
