// SPDX-License-Identifier: Apache-2.0
//
// A duck of the fleet that lies: after an honest handshake it answers with random
// packets whose seals are right and whose contents are not. Every call into the transport must end,
// and nothing outside of its buffers may be touched (built with sanitizers to see that).
//
//     hostile SEED ROUNDS
#include <duckhost.h>

extern "C" {
#include <seal.h>
}

#include <arpa/inet.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint8_t kFleetPrivate[DUCK_WIRE_KEY_BYTES] = {1, 2, 3};
constexpr uint8_t kOwnKey[DUCK_WIRE_KEY_BYTES] = {4, 5, 6}; // identity and ephemeral, both
constexpr uint32_t kResultBytes = 20000;

void require(bool is_fine, const char *what) {
    if (is_fine) return;
    std::fprintf(stderr, "not true: %s\n", what);
    std::exit(1);
}

class HostileDuck {
  public:
    explicit HostileDuck(uint32_t seed) : random_(seed) {
        socket_ = socket(AF_INET, SOCK_DGRAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        require(bind(socket_, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0, "bind");
        timeval pause{0, 1000};
        setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause);
        socklen_t bytes = sizeof address;
        getsockname(socket_, reinterpret_cast<sockaddr *>(&address), &bytes);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { run(); });
    }
    ~HostileDuck() {
        is_over_.store(true);
        thread_.join();
        close(socket_);
    }
    uint32_t port() const { return port_; }
    uint64_t lies() const { return lies_.load(); }

  private:
    void run() {
        uint8_t packet[DUCK_WIRE_PACKET_BYTES_MAX];
        while (!is_over_.load()) {
            socklen_t bytes = sizeof host_;
            const ssize_t got = recvfrom(socket_, packet, sizeof packet, 0,
                                         reinterpret_cast<sockaddr *>(&host_), &bytes);
            if (got >= static_cast<ssize_t>(sizeof(duck_packet_header))) answer(packet);
            if (is_known_) lie();
        }
    }

    uint32_t below(uint32_t limit) { return random_() % limit; }

    void send(uint8_t *packet, size_t bytes) {
        sendto(socket_, packet, bytes, 0, reinterpret_cast<sockaddr *>(&host_), sizeof host_);
    }

    void answer(const uint8_t *packet) {
        duck_packet_header header;
        std::memcpy(&header, packet, sizeof header);
        sequence_ = header.sequence;
        const uint8_t *payload = packet + sizeof header;
        if (header.type == DUCK_MSG_HELLO) return give_cookie(header, payload);
        if (header.type == DUCK_MSG_PROOF) return introduce(header, payload);
        if (!is_known_) return;
        if (header.type == DUCK_MSG_PING) {
            duck_ping ping;
            std::memcpy(&ping, payload, sizeof ping);
            duck_pong pong{};
            pong.host_time_ns = ping.host_time_ns;
            return tell(DUCK_MSG_PONG, header.sequence, &pong, sizeof pong);
        }
        const duck_done fine{};
        if (header.type == DUCK_MSG_REKEY) return rekey(header, payload);
        const bool is_request = header.type == DUCK_MSG_OPEN || header.type == DUCK_MSG_CLOSE ||
                                header.type == DUCK_MSG_DOMAIN_KEY;
        if (is_request) tell(DUCK_MSG_DONE, header.sequence, &fine, sizeof fine);
    }

    void give_cookie(const duck_packet_header &asked, const uint8_t *payload) {
        duck_hello hello;
        std::memcpy(&hello, payload, sizeof hello);
        duck_cookie cookie{};
        cookie.session = hello.session;
        cookie.protocol_version = DUCK_WIRE_VERSION;
        cookie.boot_id = 1;
        std::memcpy(cookie.host_nonce, hello.host_nonce, sizeof cookie.host_nonce);
        duck_agree_public(kOwnKey, cookie.ephemeral);
        duck_agree_public(kOwnKey, cookie.identity);
        if (below(4) == 0) // a lie already here: the host must come to no harm, and try again
            reinterpret_cast<uint8_t *>(&cookie)[below(sizeof cookie)] ^=
                static_cast<uint8_t>(1u << below(8));
        uint8_t packet[sizeof asked + sizeof cookie];
        duck_packet_header header = asked;
        header.type = DUCK_MSG_COOKIE;
        std::memcpy(packet, &header, sizeof header);
        std::memcpy(packet + sizeof header, &cookie, sizeof cookie);
        send(packet, sizeof packet);
    }

    void introduce(const duck_packet_header &asked, const uint8_t *payload) {
        duck_proof proof;
        std::memcpy(&proof, payload, sizeof proof);
        duck_transcript transcript{};
        uint8_t fleet_public[DUCK_WIRE_PUBLIC_BYTES], digest[32], secret[32];
        transcript.session = proof.session;
        transcript.boot_id = 1;
        std::memcpy(transcript.host_nonce, proof.host_nonce, sizeof transcript.host_nonce);
        std::memcpy(transcript.host_ephemeral, proof.ephemeral, sizeof transcript.host_ephemeral);
        duck_agree_public(kOwnKey, transcript.duck_ephemeral);
        duck_agree_public(kOwnKey, transcript.duck_identity);
        require(duck_fleet_public(kFleetPrivate, fleet_public), "fleet key");
        duck_transcript_digest(&transcript, fleet_public, digest);
        // It does not hold when the cookie was a lie.
        if (!duck_fleet_verify(fleet_public, digest, proof.signature)) return;
        require(duck_agree(kOwnKey, proof.ephemeral, secret), "agreement");
        duck_session_keys_derive(digest, secret, secret, &keys_);
        set_key(0);
        session_ = asked.session;
        is_known_ = true;
        duck_info info{};
        info.session = session_;
        info.protocol_version = DUCK_WIRE_VERSION;
        info.boot_id = 1;
        tell(DUCK_MSG_INFO, asked.sequence, &info, sizeof info);
    }

    void set_key(uint32_t epoch) {
        epoch_ = static_cast<uint8_t>(epoch);
        duck_seal_key_set(&to_host_, keys_.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
    }

    void rekey(const duck_packet_header &asked, const uint8_t *payload) {
        duck_rekey request, answer{};
        uint8_t secret[32];
        std::memcpy(&request, payload, sizeof request);
        if (request.epoch != epoch_ + 1u) return;
        answer.epoch = request.epoch;
        duck_agree_public(kOwnKey, answer.ephemeral);
        tell(DUCK_MSG_REKEY, asked.sequence, &answer, sizeof answer);
        require(duck_agree(kOwnKey, request.ephemeral, secret), "agreement");
        duck_session_keys_next(&keys_, secret);
        set_key(request.epoch);
    }

    void tell(uint8_t type, uint32_t sequence, const void *data, uint32_t bytes) {
        uint8_t packet[DUCK_WIRE_PACKET_BYTES_MAX];
        duck_packet_header header{};
        header.magic = DUCK_WIRE_MAGIC;
        header.version = DUCK_WIRE_VERSION;
        header.type = type;
        header.key = DUCK_KEY_SESSION;
        header.epoch = epoch_;
        header.session = session_;
        header.sequence = sequence;
        header.message_bytes = bytes;
        header.fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500;
        header.payload_bytes = static_cast<uint16_t>(bytes);
        std::memcpy(packet, &header, sizeof header);
        std::memcpy(packet + sizeof header, data, bytes);
        duck_seal(&to_host_, packet, sizeof header + bytes);
        send(packet, sizeof header + bytes);
    }

    // A header whose lengths agree with each other, so that the lie reaches the message's parser.
    void lie() {
        static const uint8_t types[] = {
            DUCK_MSG_RESULT, DUCK_MSG_RESULT,    DUCK_MSG_RESULT, DUCK_MSG_NACK,  DUCK_MSG_NACK,
            DUCK_MSG_BUSY,   DUCK_MSG_WRITE_ACK, DUCK_MSG_DONE,   DUCK_MSG_STATS, DUCK_MSG_LOG,
            DUCK_MSG_PONG,   DUCK_MSG_READ_DATA, DUCK_MSG_FAULT,  DUCK_MSG_CALL,  DUCK_MSG_WRITE,
            DUCK_MSG_REKEY,  DUCK_MSG_INFO};
        static const uint32_t sizes[] = {
            0,    1,    7,    8,    16,        24,           32,
            208,  256,  520,  528,  1408,      kResultBytes, kResultBytes + 1,
            4000, 7200, 2816, 2817, 1408 * 60, 32u << 20,    (32u << 20) - 5};
        uint8_t packet[DUCK_WIRE_PACKET_BYTES_MAX + 64];
        for (uint8_t &byte : packet) byte = static_cast<uint8_t>(random_());
        duck_packet_header header{};
        header.magic = DUCK_WIRE_MAGIC;
        header.version = DUCK_WIRE_VERSION;
        header.type = types[below(sizeof types)];
        if (header.type == DUCK_MSG_FAULT && below(50) != 0) header.type = DUCK_MSG_RESULT;
        header.key = DUCK_KEY_SESSION;
        header.epoch = epoch_;
        header.session = session_;
        header.sequence = sequence_ + below(4) - 1;
        if (below(20) == 0) header.sequence |= 0x80000000u;
        header.message_bytes = sizes[below(sizeof sizes / sizeof *sizes)];
        header.fragment_bytes = static_cast<uint16_t>(below(4) == 0 ? 64 * (1 + below(139)) : 1408);
        const uint32_t count = duck_fragment_count(header.message_bytes, header.fragment_bytes);
        header.fragment_index = below(3) == 0 ? count - 1 : below(count);
        uint32_t data = header.fragment_bytes;
        if (header.fragment_index == count - 1)
            data = header.message_bytes - header.fragment_index * data;
        header.payload_bytes = static_cast<uint16_t>(data + duck_prefix_bytes(header.type));
        std::memcpy(packet, &header, sizeof header);
        make_plausible(header, packet + sizeof header);
        const size_t bytes = sizeof header + header.payload_bytes;
        if (bytes > DUCK_WIRE_PACKET_BYTES_MAX) return;
        duck_seal(&to_host_, packet, bytes);
        send(packet, bytes);
        lies_.fetch_add(1);
    }

    void make_plausible(const duck_packet_header &header, uint8_t *payload) {
        if (header.type != DUCK_MSG_NACK && header.type != DUCK_MSG_WRITE_ACK) return;
        const uint32_t types[] = {DUCK_MSG_CALL, DUCK_MSG_WRITE, DUCK_MSG_RESULT};
        const uint32_t type = types[below(3)];
        const uint32_t ranges = below(2) == 0 ? (header.payload_bytes - 8u) / 8 : below(70);
        std::memcpy(payload, &type, 4);
        std::memcpy(payload + 4, &ranges, 4);
    }

    std::minstd_rand random_;
    int socket_ = -1;
    uint32_t port_ = 0;
    std::thread thread_;
    std::atomic<bool> is_over_{false};
    std::atomic<uint64_t> lies_{0};
    sockaddr_in host_{};
    bool is_known_ = false;
    uint32_t session_ = 0, sequence_ = 0;
    uint8_t epoch_ = 0;
    duck_session_keys keys_{};
    duck_seal_key to_host_{};
};

duckhost_fleet *open_fleet(uint32_t port) {
    duckhost_domain domain{};
    std::snprintf(domain.name, sizeof domain.name, "domain1");
    domain.mtu = 1500;
    duckhost_duck duck{};
    std::snprintf(duck.name, sizeof duck.name, "liar");
    std::snprintf(duck.address, sizeof duck.address, "127.0.0.1");
    duck.port = port;
    duckhost_options options{};
    options.rekey_ms = 40;
    options.poll_policy = DUCK_POLL_BLOCK;
    options.silence_ms = 600;
    options.ping_ms = 50;
    options.call_ms = 300;
    duckhost_error error;
    duckhost_fleet *fleet = nullptr;
    require(duckhost_open(&domain, 1, &duck, 1, kFleetPrivate, &options, &fleet, &error) == 0,
            "open");
    return fleet;
}

// Whatever the duck says: each function returns.
void use_everything(duckhost_fleet *fleet) {
    duckhost_error error;
    duck_info info;
    uint64_t round_trip_ns = 0, ticket = 0;
    uint8_t identity[DUCK_WIRE_KEY_BYTES];
    duckhost_hello(fleet, 0, 300, &info, identity, &round_trip_ns, &error);
    uint8_t reply[DUCK_WIRE_PACKET_BYTES_MAX], zeros[1024] = {};
    uint32_t type = 0, bytes = 0;
    for (uint32_t kind : {DUCK_MSG_STATS, DUCK_MSG_LOG, DUCK_MSG_READ, DUCK_MSG_COMMIT})
        duckhost_request(fleet, 0, kind, zeros, 256, 100, reply, sizeof reply, &type, &bytes,
                         &error);
    std::vector<uint8_t> data(300'000);
    duckhost_progress progress{};
    duckhost_write(fleet, 0, DUCK_REGION_WEIGHTS, 0, data.data(), data.size(), &progress, &error);
    duck_open open{};
    open.call_bytes_max = 1 << 16;
    open.result_bytes_max = kResultBytes;
    open.call_time_limit_ms = 1000;
    if (duckhost_session_open(fleet, 1, &open, nullptr, 500, &error) != 0) return;
    std::vector<float> out(kResultBytes / 4);
    for (int i = 0; i < 3; i++) {
        if (duckhost_submit(fleet, data.data(), 40'000, &ticket, &error) != 0) return;
        duckhost_wait_sum(fleet, ticket, 0, out.data(), out.size(), nullptr, &error);
    }
}

} // namespace

int main(int count, char **words) {
    require(count == 3, "usage: hostile SEED ROUNDS");
    HostileDuck duck(static_cast<uint32_t>(std::stoul(words[1])));
    duckhost_fleet *fleet = open_fleet(duck.port());
    for (unsigned long round = 0; round < std::stoul(words[2]); round++) use_everything(fleet);
    duckhost_duck_status status;
    require(duckhost_get_duck_status(fleet, 0, &status) == 0, "status");
    duckhost_close(fleet);
    std::printf("lies %llu size %llu type %llu\n", static_cast<unsigned long long>(duck.lies()),
                static_cast<unsigned long long>(status.dropped_size),
                static_cast<unsigned long long>(status.dropped_type));
    return 0;
}
