// SPDX-License-Identifier: Apache-2.0
//
// What the errors of silent ducks say: who, since when, and what may be the matter.
#include "domain.h"

#include <cstring>

namespace duckhost {

bool Domain::hint_port(duckhost_error *error) const {
    const PortCounters &port = port_->counters();
    const auto reason = static_cast<int>(port.last_errno.get());
    if (port.too_large.get() > 0)
        set_hint(error, "packets for the MTU of domain %s (%u) do not fit this host's network card",
                 config_.name, config_.mtu);
    else if (reason != 0)
        set_hint(error, "this host cannot send in domain %s: %s", config_.name,
                 std::strerror(reason));
    return port.too_large.get() > 0 || reason != 0;
}

void Domain::hint_silent(const Link &link, duckhost_error *error) const {
    if (link.was_refused)
        set_hint(error, "the machine answers that nothing listens on this port: is duckd running?");
    else if (link.sent_wrong_seals)
        set_hint(error, "packets with a wrong seal came from there: does it have this fleet's "
                        "public key, and is it the only one with this address?");
    else if (!hint_port(error))
        set_hint(error, "is it powered on and on this network? "
                        "A duck ignores a host that speaks for another fleet");
}

// No duck of this domain was heard lately: a cable, a switch, this host's NIC.
bool Domain::is_silent() const {
    const uint64_t limit_ns = options_.silence_ms * kMillisecond / 2;
    for (const auto &link : links_)
        if (link->is_attached() && elapsed_ns(now_, silent_since(*link, 0)) < limit_ns)
            return false;
    return true;
}

void Domain::fail_silent(const Link &link, duckhost_error *error, uint64_t silent_ns,
                         const char *during) const {
    fail(error, DUCKHOST_ERR_UNREACHABLE, static_cast<int>(link.index),
         "%s (%s) does not answer: nothing received for %.1f s during %s%s%s%s", link.name,
         link.address_text, static_cast<double>(silent_ns) * 1e-9, during,
         is_silent() ? "; nothing at all is heard in domain " : "", is_silent() ? name() : "",
         is_silent() ? " (cable, switch or network card)" : "");
    hint_silent(link, error);
}

} // namespace duckhost
