// SPDX-License-Identifier: Apache-2.0
//
// A libFuzzer target: the input is a script of what ducks send and what is asked of them, for a
// domain of two attached ducks without threads or sockets. Sealed packets get right seals, so that
// inputs reach what lies behind the MAC: messages, acknowledgements, results, handshakes. Each
// packet is a heap block of its exact size. After each step no result is longer than the session
// allows, and nothing was written behind a result's room. Linked with replay_inputs.c it runs
// inputs from files. Steps are one byte (what, and whose) and what that needs, little-endian.
#include "dpdk/frame.h"
#include "script_domain.h"

#include <deque>

using namespace duckhost;

namespace {

constexpr uint32_t kDucks = ScriptDomain::kDucksMax;
constexpr uint32_t kStepsMax = 64;
constexpr uint32_t kCallBytesMax = 4000, kResultBytesMax = 6000, kResultRoom = 8192;
constexpr uint32_t kWriteBytesMax = 300000;
constexpr uint32_t kRequestsMaxOfInput = 12;

enum Step : uint8_t {
    kRaw,     // u16 size, packet as it is
    kSealed,  // PacketFields, payload
    kRequest, // u8 which, u16 room for the reply
    kWrite,   // u8 region, u32 bytes
    kCall,    // u16 bytes
    kRelease, // frees the slots of finished calls
    kHello,   //
    kCookie,  // u16 place, u8 value: a right COOKIE with one byte changed
    kInfo,    // u16 size, payload: sealed with the keys of the handshake under way
    kFrame,   // u16 size, an Ethernet frame
    kSteps
};

struct PacketFields {
    uint8_t type;
    uint8_t epoch;
    uint16_t fragment_bytes;
    uint32_t sequence, message_bytes, fragment_index, start;
    uint16_t payload_bytes;
    uint16_t reserved;
};
static_assert(sizeof(PacketFields) == 24, "no holes");

class Input {
  public:
    Input(const uint8_t *data, size_t bytes) : next_(data), left_(bytes) {}
    template <typename T> bool take(T *out) { return take(out, sizeof *out); }
    bool take(void *out, size_t bytes) {
        if (bytes > left_) return false;
        std::memcpy(out, next_, bytes);
        skip(bytes);
        return true;
    }
    // A u16, and so many of the bytes behind it as there are.
    bool take_block(std::vector<uint8_t> *out) {
        uint16_t bytes;
        if (!take(&bytes)) return false;
        take_up_to(bytes, out);
        return true;
    }
    void take_up_to(size_t bytes, std::vector<uint8_t> *out) {
        bytes = std::min(bytes, left_);
        out->assign(next_, next_ + bytes);
        skip(bytes);
    }

  private:
    void skip(size_t bytes) {
        next_ += bytes;
        left_ -= bytes;
    }
    const uint8_t *next_;
    size_t left_;
};

class Script : private ScriptDomain {
  public:
    Script() : ScriptDomain(kDucks, kCallBytesMax, kResultBytesMax) {
        for (const auto &link : domain_.links()) link->calls.open(0, 0);
    }
    ~Script() { domain_.stop(); } // finishes every op before it goes

    bool step(Input &input) {
        uint8_t what;
        if (!input.take(&what)) return false;
        const bool is_done = act(input, static_cast<Step>(what % kSteps), what / kSteps);
        domain_.help();
        check();
        return is_done;
    }

  private:
    bool act(Input &input, Step step, uint32_t whose) {
        const uint32_t duck = whose % kDucks;
        Link &link = *domain_.links()[duck];
        switch (step) {
        case kRaw: return send_raw(input, whose % (kDucks + 1));
        case kSealed: return send_sealed(input, link, duck);
        case kRequest: return request(input, duck);
        case kWrite: return write(input, duck);
        case kCall: return call(input);
        case kRelease: return release();
        case kHello: return hello(duck);
        case kCookie: return cookie(input, link, duck);
        case kInfo: return info(input, link, duck);
        default: return frame(input);
        }
    }

    bool send_raw(Input &input, uint32_t duck) { // the last one is a stranger's
        std::vector<uint8_t> packet;
        if (!input.take_block(&packet)) return false;
        port_->put(std::move(packet), peer(duck));
        return true;
    }

    bool send_sealed(Input &input, const Link &link, uint32_t duck) {
        PacketFields told;
        std::vector<uint8_t> payload;
        if (!input.take(&told)) return false;
        input.take_up_to(told.payload_bytes, &payload);
        duck_packet_header header{};
        header.type = told.type;
        header.epoch = told.epoch % 4 == 3 ? 1 : 0;
        header.session = link.session;
        header.sequence = told.sequence;
        header.message_bytes = told.message_bytes;
        header.fragment_index = told.fragment_index;
        header.fragment_bytes = told.fragment_bytes;
        header.start = told.start;
        seal(header, payload, &sealing_[duck], duck);
        return true;
    }

    void seal(const duck_packet_header &header, const std::vector<uint8_t> &payload,
              duck_seal_key *key, uint32_t duck) {
        port_->put(sealed(header, payload, key), peer(duck));
    }

    struct Request {
        explicit Request(uint32_t link) : op(link) {}
        RequestOp op;
        std::vector<uint8_t> reply;
    };

    bool request(Input &input, uint32_t duck) {
        static const uint8_t zeros[208] = {};
        // What duckhost_request() lets through.
        static const uint8_t types[] = {DUCK_MSG_LOG,    DUCK_MSG_STATS,  DUCK_MSG_USAGE,
                                        DUCK_MSG_REBOOT, DUCK_MSG_COMMIT, DUCK_MSG_RESERVE,
                                        DUCK_MSG_READ,   DUCK_MSG_OPEN,   DUCK_MSG_CLOSE};
        uint8_t type;
        uint16_t room;
        if (!input.take(&type) || !input.take(&room)) return false;
        if (requests_.size() == kRequestsMaxOfInput) return true;
        Request &made = requests_.emplace_back(duck);
        made.reply.resize(room % 1025);
        made.op.type = types[type % sizeof types];
        made.op.payload = zeros;
        made.op.payload_bytes = sizeof zeros;
        made.op.start_ns = now_ns();
        made.op.deadline_ns = made.op.start_ns + 1000 * kMillisecond;
        made.op.silence_ns = 1000 * kMillisecond;
        made.op.reply = made.reply.data();
        made.op.reply_bytes_max = static_cast<uint32_t>(made.reply.size());
        domain_.post(&made.op);
        return true;
    }

    struct Write {
        explicit Write(uint32_t link) : op(link) {}
        WriteOp op;
        duckhost_progress progress{};
        std::vector<uint8_t> data;
    };

    bool write(Input &input, uint32_t duck) {
        uint8_t region;
        uint32_t bytes;
        if (!input.take(&region) || !input.take(&bytes)) return false;
        if (writes_.size() == kRequestsMaxOfInput) return true;
        Write &made = writes_.emplace_back(duck);
        made.data.resize(bytes % (kWriteBytesMax + 1));
        made.op.region = region % 2;
        made.op.data = made.data.data();
        made.op.bytes = made.data.size();
        made.op.progress = &made.progress;
        domain_.post(&made.op);
        return true;
    }

    bool call(Input &input) {
        uint16_t bytes;
        if (!input.take(&bytes)) return false;
        ScriptDomain::call(bytes % (kCallBytesMax + 1));
        return true;
    }

    bool release() {
        for (uint32_t number = 1; number <= board_.published.load(); number++) {
            CallSlot *slot = board_.find(number);
            if (slot != nullptr && slot->open_parts.load() == 0) slot->is_released = true;
        }
        return true;
    }

    bool hello(uint32_t duck) {
        if (hellos_.size() == kRequestsMaxOfInput) return true;
        HelloOp &made = hellos_.emplace_back(duck);
        made.deadline_ns = now_ns() + 1000 * kMillisecond;
        made.timeout_ms = 1000;
        domain_.post(&made);
        return true;
    }

    bool cookie(Input &input, const Link &link, uint32_t duck) {
        uint16_t place;
        uint8_t value;
        if (!input.take(&place) || !input.take(&value)) return false;
        duck_cookie made{};
        made.session = link.hello.session;
        made.protocol_version = DUCK_WIRE_VERSION;
        made.boot_id = 1;
        std::memcpy(made.host_nonce, link.hello.host_nonce, sizeof made.host_nonce);
        const uint8_t own[DUCK_WIRE_KEY_BYTES] = {4, 5, 6};
        duck_agree_public(own, made.ephemeral);
        duck_agree_public(own, made.identity);
        reinterpret_cast<uint8_t *>(&made)[place % sizeof made] ^= value;
        const auto *bytes = reinterpret_cast<const uint8_t *>(&made);
        seal(header_of(DUCK_MSG_COOKIE, link.hello.session, sizeof made),
             std::vector<uint8_t>(bytes, bytes + sizeof made), nullptr, duck);
        return true;
    }

    // Session and boot id are right; a duck that finished a handshake may say anything else.
    bool info(Input &input, const Link &link, uint32_t duck) {
        std::vector<uint8_t> told;
        if (!input.take_block(&told)) return false;
        if (link.hello.step != HelloState::Step::proof) return true;
        duck_info made{};
        std::copy_n(told.begin(), std::min(told.size(), sizeof made),
                    reinterpret_cast<uint8_t *>(&made));
        made.session = link.hello.session;
        made.boot_id = link.hello.cookie.boot_id;
        const auto *bytes = reinterpret_cast<const uint8_t *>(&made);
        duck_seal_key_set(&sealing_[duck], link.hello.keys.to_host, DUCK_KEY_SESSION, DUCK_TO_HOST);
        seal(header_of(DUCK_MSG_INFO, link.hello.session, sizeof made),
             std::vector<uint8_t>(bytes, bytes + sizeof made), &sealing_[duck], duck);
        return true;
    }

    static duck_packet_header header_of(uint8_t type, uint32_t session, uint32_t bytes) {
        duck_packet_header header{};
        header.type = type;
        header.session = session;
        header.sequence = 1;
        header.message_bytes = bytes;
        header.fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500;
        return header;
    }

    static bool frame(Input &input) {
        std::vector<uint8_t> bytes;
        if (!input.take_block(&bytes)) return false;
        const ParsedFrame found =
            parse_frame(bytes.data(), static_cast<uint32_t>(bytes.size()), peer(0));
        if (found.kind == Frame::udp)
            require(found.payload_offset + found.payload_bytes <= bytes.size(), "within its frame");
        return true;
    }

    void check() {
        for (uint32_t number = 1; number <= board_.published.load(); number++) {
            const CallSlot *slot = board_.find(number);
            if (slot == nullptr) continue;
            for (uint32_t duck = 0; duck < kDucks; duck++) {
                const CallPart &part = slot->part[duck];
                if (part.state.load() == CallPart::done)
                    require(part.result_bytes <= kResultBytesMax, "a result fits its session");
                for (uint32_t i = kResultBytesMax; i < kResultRoom; i++)
                    require(part.result[i] == 0, "nothing is written behind a result's room");
            }
        }
    }

    std::deque<Request> requests_;
    std::deque<Write> writes_;
    std::deque<HelloOp> hellos_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Input input(data, bytes);
    Script script;
    for (uint32_t i = 0; i < kStepsMax && script.step(input); i++) {
    }
    return 0;
}
