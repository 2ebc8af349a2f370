// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include "domain.h"

#include <algorithm>
#include <cstring>

namespace duckhost {
namespace {

constexpr uint32_t kBurst = 64;        // CALL fragments per turn, then the port is read again
constexpr uint32_t kRepairBurst = 256; // fragments resent per NACK at most

Message call_message(Domain &domain, uint32_t number) {
    const CallSlot &slot = domain.board().slot(number);
    Message message;
    message.type = DUCK_MSG_CALL;
    message.sequence = number;
    message.data = slot.message;
    message.bytes = slot.bytes;
    message.stride = domain.call_stride();
    return message;
}

} // namespace

// ---- sending ------------------------------------------------------------------------------------

void DomainCalls::forget() {
    taken_ = 0;
    for (Sending &sending : sending_) sending = Sending();
}

uint32_t DomainCalls::newest(Domain &domain) {
    return domain.board().published.load(std::memory_order_seq_cst);
}

bool DomainCalls::take(Domain &domain) {
    if (!has_news(domain)) return false;
    const uint32_t last = newest(domain);
    while (taken_ < last) {
        taken_++;
        sending_[taken_ % kCallsInFlight] = {taken_, 0};
        for (const auto &link : domain.links())
            if ((domain.board().ducks() >> link->index & 1) != 0)
                link->calls.start(domain, *link, taken_);
    }
    return true;
}

bool DomainCalls::pump(Domain &domain) {
    uint32_t budget = kBurst;
    for (uint32_t age = kCallsInFlight; age-- > 0;) {
        if (taken_ <= age) continue;
        const uint32_t number = taken_ - age;
        Sending &sending = sending_[number % kCallsInFlight];
        if (sending.number != number) continue;
        uint64_t members = 0;
        for (const auto &link : domain.links())
            if (link->calls.is_active(number)) members |= UINT64_C(1) << link->index;
        if (members == 0) { // none here, or all failed: the slot may soon be used again
            sending.number = 0;
            continue;
        }
        const Message message = call_message(domain, number);
        const uint32_t count = fragment_count(message);
        for (; sending.next < count; sending.next++, budget--) {
            if (budget == 0) return true;
            if (!domain.send_to_all(message, sending.next, members)) return false;
        }
        sending.number = 0;
        domain.transmit_port().flush();
        CallBoard::note_sent(domain.board().slot(number), now_ns());
        for (const auto &link : domain.links()) link->calls.note_sent(domain, number);
    }
    return false;
}

uint32_t DomainCalls::sent_fragments(Domain &domain, uint32_t number) const {
    const Sending &sending = sending_[number % kCallsInFlight];
    return sending.number == number ? sending.next : fragment_count(call_message(domain, number));
}

// ---- one duck -----------------------------------------------------------------------------------

void LinkCalls::prepare(uint32_t result_bytes_max, uint16_t stride) {
    result_bytes_max_ = result_bytes_max;
    floor_epoch_ = UINT32_MAX;
    floor_counter_ = UINT64_MAX;
    for (LinkCall &call : call_) {
        call.is_active = false;
        call.bitmap.assign(duck_fragment_count(result_bytes_max, stride) / 64 + 1, 0);
    }
}

LinkCall *LinkCalls::active(uint32_t number) {
    LinkCall &call = call_[number % kCallsInFlight];
    return call.is_active && call.number == number ? &call : nullptr;
}

bool LinkCalls::is_waiting() const {
    return std::any_of(std::begin(call_), std::end(call_),
                       [](const LinkCall &call) { return call.is_active; });
}

void LinkCalls::start(Domain &domain, Link &link, uint32_t number) {
    LinkCall &call = call_[number % kCallsInFlight];
    call.is_active = true;
    call.number = number;
    call.start_ns = domain.now();
    call.fragment_ns = 0;
    call.next_ns = kNever;
    // A call that takes no longer than usual needs no question.
    const uint64_t patience_ns = std::max(domain.options().query_us * kMicrosecond, 2 * usual_ns_);
    call.backoff_ns = std::min(patience_ns, domain.options().retry_us_max * kMicrosecond);
    call.fragments = call.received = 0;
    if (link.is_attached()) return;
    duckhost_error error;
    fail(&error, DUCKHOST_ERR_STATE, static_cast<int>(link.index),
         "%s (%s) is not attached: call %u was not sent to it", link.name, link.address_text,
         number);
    fail_all(domain, link, error);
}

void LinkCalls::note_sent(Domain &domain, uint32_t number) {
    LinkCall *call = active(number);
    if (call != nullptr && call->received == 0) call->next_ns = domain.now() + call->backoff_ns;
}

// ---- timers -------------------------------------------------------------------------------------

// True when the call has failed.
bool LinkCalls::limits(Domain &domain, Link &link, LinkCall &call) {
    const uint64_t since_ns = domain.silent_since(link, call.start_ns);
    const uint64_t now = domain.now();
    duckhost_error error;
    char during[32];
    std::snprintf(during, sizeof during, "call %u", call.number);
    if (elapsed_ns(now, since_ns) >= domain.options().silence_ms * kMillisecond) {
        domain.fail_silent(link, &error, now - since_ns, during);
    } else if (elapsed_ns(now, call.start_ns) >= domain.options().call_ms * kMillisecond) {
        fail(&error, DUCKHOST_ERR_DEADLINE, static_cast<int>(link.index),
             "%s (%s) is alive, but did not finish %s within %.1f s", link.name, link.address_text,
             during, static_cast<double>(now - call.start_ns) * 1e-9);
        domain.hint_port(&error);
    } else {
        return false;
    }
    fail_all(domain, link, error);
    return true;
}

uint64_t LinkCalls::timer(Domain &domain, Link &link) {
    uint64_t next = kNever;
    for (LinkCall &call : call_) {
        if (!call.is_active) continue;
        if (limits(domain, link, call)) return kNever;
        if (domain.now() >= call.next_ns) ask(domain, link, call);
        const uint64_t silence_ns =
            domain.silent_since(link, call.start_ns) + domain.options().silence_ms * kMillisecond;
        next = std::min({next, call.next_ns, silence_ns,
                         call.start_ns + domain.options().call_ms * kMillisecond});
    }
    return next;
}

// Part of the result is here: name what is missing. Nothing is: ask where the call is.
void LinkCalls::ask(Domain &domain, Link &link, LinkCall &call) {
    if (call.received > 0) {
        send_nack(domain, link, call);
    } else {
        const duck_query query{};
        if (domain.send_whole(link, DUCK_MSG_QUERY, call.number, &query, sizeof query))
            link.status.queries_sent.add();
    }
    call.next_ns = domain.now() + call.backoff_ns;
    call.backoff_ns = std::min(call.backoff_ns * 2, domain.options().retry_us_max * kMicrosecond);
}

void LinkCalls::send_nack(Domain &domain, Link &link, LinkCall &call) {
    duck_nack nack{};
    nack.message_type = DUCK_MSG_RESULT;
    auto has = [&](uint32_t i) { return (call.bitmap[i / 64] >> (i % 64) & 1) != 0; };
    for (uint32_t i = 0; i < call.fragments && nack.range_count < DUCK_WIRE_NACK_RANGES_MAX;) {
        if (has(i)) {
            i++;
            continue;
        }
        duck_nack_range &range = nack.range[nack.range_count++];
        range.begin = i;
        while (i < call.fragments && !has(i)) i++;
        range.end = i;
    }
    const uint32_t bytes = static_cast<uint32_t>(offsetof(duck_nack, range) +
                                                 nack.range_count * sizeof(duck_nack_range));
    if (domain.send_whole(link, DUCK_MSG_NACK, call.number, &nack, bytes))
        link.status.nacks_sent.add();
}

// ---- results ------------------------------------------------------------------------------------

// False: the fragment does not fit the result it claims to belong to.
bool LinkCalls::accept(Domain &domain, Link &link, LinkCall &call,
                       const duck_packet_header &header) {
    const uint32_t count = duck_fragment_count(header.message_bytes, header.fragment_bytes);
    CallPart &part = domain.board().slot(call.number).part[link.index];
    if (header.fragment_bytes != domain.call_stride() || header.message_bytes > result_bytes_max_ ||
        (call.fragments != 0 && header.message_bytes != part.result_bytes)) {
        link.status.dropped_size.add();
        return false;
    }
    if (call.fragments == 0) {
        call.fragments = count;
        part.result_bytes = header.message_bytes;
        std::fill_n(call.bitmap.begin(), (count + 63) / 64, 0);
    }
    return true;
}

void LinkCalls::take_result(Domain &domain, Link &link, const duck_packet_header &header,
                            const uint8_t *payload) {
    LinkCall *call = active(header.sequence);
    if (call == nullptr) return; // a repetition of a result that is complete
    if (!accept(domain, link, *call, header)) return;
    const uint32_t index = header.fragment_index;
    uint64_t &word = call->bitmap[index / 64];
    const uint64_t bit = UINT64_C(1) << (index % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    call->received++;
    CallPart &part = domain.board().slot(call->number).part[link.index];
    const size_t prefix_bytes = sizeof(duck_result_prefix);
    std::memcpy(part.result + size_t{index} * header.fragment_bytes, payload + prefix_bytes,
                header.payload_bytes - prefix_bytes);
    if (call->received == call->fragments) {
        duck_result_prefix prefix;
        std::memcpy(&prefix, payload, sizeof prefix);
        part.kernel_ns = prefix.kernel_ns;
        part.queue_ns = prefix.queue_ns;
        part.start_ns = start_on_host(header.start, link.clock, now_ns());
        part.clock_error_ns = link.clock.error_ns;
        return finish(domain, link, *call, header);
    }
    call->fragment_ns = domain.now();
    call->backoff_ns = domain.options().nack_us * kMicrosecond;
    call->next_ns = domain.now() + call->backoff_ns;
}

void LinkCalls::finish(Domain &domain, Link &link, LinkCall &call, const duck_packet_header &) {
    CallSlot &slot = domain.board().slot(call.number);
    CallPart &part = slot.part[link.index];
    part.done_ns = now_ns();
    usual_ns_ = (7 * usual_ns_ + elapsed_ns(part.done_ns, call.start_ns)) / 8;
    call.is_active = false;
    link.status.calls.add();
    link.status.kernel_ns.add(part.kernel_ns);
    link.status.queue_ns.add(part.queue_ns);
    link.status.call_ns.add(part.done_ns - slot.submit_ns);
    domain.board().finish_part(slot, link.index);
}

void LinkCalls::take_nack(Domain &domain, Link &link, uint32_t sequence, const duck_nack &nack) {
    LinkCall *call = active(sequence);
    if (call == nullptr) return;
    if (nack.message_type != DUCK_MSG_CALL) return link.status.dropped_type.add();
    link.status.nacks_received.add();
    const Message message = call_message(domain, sequence);
    const uint32_t sent = domain.calls().sent_fragments(domain, sequence);
    uint32_t budget = kRepairBurst;
    for (uint32_t i = 0; i < nack.range_count; i++) {
        const uint32_t end = std::min(nack.range[i].end, sent);
        for (uint32_t index = nack.range[i].begin; index < end; index++) {
            if (budget-- == 0 || !domain.send(link, message, index)) return; // the duck asks again
            link.status.fragments_resent.add();
        }
    }
}

// The duck has the whole call and computes: ask again later, it tells by itself when it is done.
void LinkCalls::take_busy(Domain &domain, uint32_t sequence) {
    LinkCall *call = active(sequence);
    if (call != nullptr && call->received == 0) call->next_ns = domain.now() + call->backoff_ns;
}

// ---- failures -----------------------------------------------------------------------------------

void LinkCalls::fail_all(Domain &domain, Link &link, const duckhost_error &error) {
    for (LinkCall &call : call_) {
        if (!call.is_active) continue;
        call.is_active = false;
        domain.board().fail_part(domain.board().slot(call.number), link.index, error, true);
    }
}

static void describe_fault(const Link &link, const duck_fault &fault, duckhost_error *error) {
    char text[sizeof fault.text + 1], where[160] = "";
    copy_text(text, sizeof text, fault.text, sizeof fault.text);
    if (fault.fault_kind != DUCK_FAULT_NONE)
        std::snprintf(
            where, sizeof where, ", %s at 0x%llx, instruction 0x%llx, core %d",
            fault_kind_text(fault.fault_kind), static_cast<unsigned long long>(fault.address),
            static_cast<unsigned long long>(fault.instruction), static_cast<int>(fault.core));
    fail(error, DUCKHOST_ERR_FAULT, static_cast<int>(link.index), "%s (%s) ended call %u: %s%s: %s",
         link.name, link.address_text, fault.call, status_text(fault.status), where, text);
    error->status = fault.status;
    error->detail = fault.fault_kind;
    error->value = fault.address;
}

void LinkCalls::take_fault(Domain &domain, Link &link, const duck_fault &fault) {
    if ((domain.board().ducks() >> link.index & 1) == 0) return; // not in this compute session
    duckhost_error error;
    describe_fault(link, fault, &error);
    const bool is_of_one_call =
        fault.status == DUCK_ERR_BAD_REQUEST || fault.status == DUCK_ERR_CALL_TOO_LARGE;
    if (!is_of_one_call) {
        fail_all(domain, link, error);
        domain.board().end_session(error);
        return;
    }
    LinkCall *call = active(fault.call);
    if (call == nullptr) return;
    call->is_active = false;
    domain.board().fail_part(domain.board().slot(call->number), link.index, error, false);
}

} // namespace duckhost
