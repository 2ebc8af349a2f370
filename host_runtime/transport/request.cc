// SPDX-License-Identifier: Apache-2.0
//
// Requests and their replies: repeated with growing pauses until the reply comes or a limit is
// reached. A repetition has the same sequence number, so the duck never does it twice.
#include "domain.h"

#include <cstring>

namespace duckhost {
namespace {

constexpr uint64_t kSoon = 1 * kMillisecond; // again, when the port's queue was full

bool is_reply_to(uint8_t request, uint8_t reply) {
    if (reply == DUCK_MSG_DONE) return true;
    if (request == DUCK_MSG_READ) return reply == DUCK_MSG_READ_DATA;
    const bool answers_itself =
        request == DUCK_MSG_LOG || request == DUCK_MSG_STATS || request == DUCK_MSG_USAGE;
    return answers_itself && reply == request;
}

uint32_t status_of_done(const uint8_t *payload) {
    uint32_t status;
    std::memcpy(&status, payload + offsetof(duck_done, status), sizeof status);
    return status;
}

} // namespace

void Domain::start_request(Link &link, RequestOp *op) {
    if (!link.is_attached()) {
        fail(&op->error, DUCKHOST_ERR_STATE, static_cast<int>(link.index),
             "%s (%s) is not attached: %s needs a HELLO first", link.name, link.address_text,
             message_type_text(op->type));
        return op->finish();
    }
    for (RequestState &request : link.request) {
        if (request.op != nullptr) continue;
        request.op = op;
        request.sequence = ++link.request_sequence;
        request.backoff_ns = options_.request_retry_us * kMicrosecond;
        return send_request(link, request);
    }
    link.request_queue.push(op);
}

void Domain::send_request(Link &link, RequestState &request) {
    if (!send_whole(link, request.op->type, request.sequence, request.op->payload,
                    request.op->payload_bytes)) {
        request.next_ns = now_ + kSoon;
        return;
    }
    request.next_ns = now_ + request.backoff_ns;
    request.backoff_ns *= 2;
    const uint64_t backoff_ns_max = options_.retry_us_max * kMicrosecond;
    if (request.backoff_ns > backoff_ns_max) request.backoff_ns = backoff_ns_max;
}

uint64_t Domain::limit_of(const Link &link, const RequestOp &op) const {
    return std::min(op.deadline_ns, silent_since(link, op.start_ns) + op.silence_ns);
}

// True when one of its limits is reached: its error is filled in.
bool Domain::reaches_limit(const Link &link, RequestOp &op, const char *missed) {
    if (now_ < limit_of(link, op)) return false;
    const char *what = message_type_text(op.type);
    const uint64_t silent_ns = elapsed_ns(now_, silent_since(link, op.start_ns));
    if (silent_ns >= op.silence_ns)
        fail_silent(link, &op.error, silent_ns, what);
    else
        fail(&op.error, DUCKHOST_ERR_DEADLINE, static_cast<int>(link.index),
             "%s (%s) is alive, but did not %s %s within %.1f s", link.name, link.address_text,
             missed, what, static_cast<double>(op.deadline_ns - op.start_ns) * 1e-9);
    return true;
}

// Those that wait behind others have the same limits.
uint64_t Domain::queue_timer(Link &link) {
    uint64_t next = kNever;
    OpList waiting;
    while (!link.request_queue.empty()) {
        auto *op = static_cast<RequestOp *>(link.request_queue.pop());
        if (reaches_limit(link, *op, "come to")) {
            end_request(link, op);
            continue;
        }
        next = std::min(next, limit_of(link, *op));
        waiting.push(op);
    }
    link.request_queue = waiting;
    return next;
}

uint64_t Domain::request_timer(Link &link) {
    uint64_t next = queue_timer(link);
    for (RequestState &request : link.request) {
        // The next one that waits takes the place of one that is over.
        while (request.op != nullptr && reaches_limit(link, *request.op, "finish"))
            finish_request(link, request);
        if (request.op == nullptr) continue;
        if (now_ >= request.next_ns) {
            link.status.requests_resent.add();
            send_request(link, request);
        }
        next = std::min({next, request.next_ns, limit_of(link, *request.op)});
    }
    return next;
}

void Domain::take_reply(Link &link, const duck_packet_header &header, const uint8_t *payload) {
    if (header.message_bytes != header.payload_bytes) return link.status.dropped_size.add();
    for (RequestState &request : link.request) {
        RequestOp *op = request.op;
        if (op == nullptr || request.sequence != header.sequence) continue;
        if (!is_reply_to(op->type, header.type)) return link.status.dropped_type.add();
        const bool is_done = header.type == DUCK_MSG_DONE;
        if (is_done && (header.payload_bytes < offsetof(duck_done, text) ||
                        header.payload_bytes > sizeof(duck_done)))
            return link.status.dropped_size.add();
        // The text of DONE may be cut short; the asking side always gets the whole struct.
        const auto whole_bytes =
            is_done ? static_cast<uint32_t>(sizeof(duck_done)) : header.payload_bytes;
        if (whole_bytes > op->reply_bytes_max) {
            fail(&op->error, DUCKHOST_ERR_ARGUMENT, static_cast<int>(link.index),
                 "%s (%s) answered %s with %u bytes, there is room for %u", link.name,
                 link.address_text, message_type_text(op->type), whole_bytes, op->reply_bytes_max);
            return finish_request(link, request);
        }
        if (whole_bytes > 0) { // else `reply` may be null
            std::memset(op->reply, 0, whole_bytes);
            std::memcpy(op->reply, payload, header.payload_bytes);
        }
        op->reply_bytes = whole_bytes;
        op->reply_type = header.type;
        if (op->type == DUCK_MSG_OPEN && is_done && status_of_done(payload) == DUCK_OK)
            link.calls.open(link.whole_epoch(header.epoch), header.counter);
        return finish_request(link, request);
    }
    // A reply to a repetition whose first answer was already taken: nothing to do.
}

void Domain::finish_request(Link &link, RequestState &request) {
    RequestOp *op = request.op;
    request.op = nullptr;
    end_request(link, op);
    if (!link.request_queue.empty())
        start_request(link, static_cast<RequestOp *>(link.request_queue.pop()));
}

void Domain::end_request(Link &link, RequestOp *op) {
    op->finish();
    if (link.domain_key.request.has_value() && op == &*link.domain_key.request)
        domain_key_given(link);
}

void Domain::fail_requests(Link &link, duckhost_code code, const char *reason) {
    auto end = [&](RequestOp *op) {
        fail(&op->error, code, static_cast<int>(link.index), "%s (%s) %s during %s", link.name,
             link.address_text, reason, message_type_text(op->type));
        op->finish();
    };
    while (!link.request_queue.empty()) end(static_cast<RequestOp *>(link.request_queue.pop()));
    for (RequestState &request : link.request) {
        if (request.op == nullptr) continue;
        RequestOp *op = request.op;
        request.op = nullptr;
        end(op);
    }
    link.domain_key.request.reset();
}

} // namespace duckhost
