/* SPDX-License-Identifier: Apache-2.0 */
#include "net/dhcp.h"

#include "net/bytes.h"
#include "net/ethernet.h"
#include "net/interface.h"
#include "net/random.h"
#include "net/udp.h"

#define NS_PER_S 1000000000ull

/* ---- asking ---------------------------------------------------------------------------------- */
static uint16_t seconds_asked(const struct net_interface *interface) {
    uint64_t seconds = (interface->now_ns - interface->dhcp.began_ns) / NS_PER_S;
    return seconds < UINT16_MAX ? (uint16_t)seconds : UINT16_MAX;
}

/* `to` 0: everyone. Until we have an address the header's source must be zero (RFC 2131, 4.1),
 * which interface->address is then. False: not sent. */
static bool ask(struct net_interface *interface, enum dhcp_type type, uint32_t to) {
    struct dhcp *dhcp = &interface->dhcp;
    bool requesting = dhcp->state == DHCP_REQUESTING;
    struct dhcp_question question = {
        .type = type,
        .transaction = dhcp->transaction,
        .seconds = seconds_asked(interface),
        .mac = interface->mac,
        .our_address = interface->address,
        .requested = requesting ? dhcp->offer.address : 0,
        .server = requesting ? dhcp->offer.server : 0,
    };
    if (to == 0) to = ADDRESS_BROADCAST;
    const uint8_t *mac = ipv4_route(interface, to);
    if (mac == NULL) return false; /* asked by ARP */
    size_t bytes = dhcp_build(udp_payload(interface), &question);
    bool sent = udp_send(interface, mac, to, swap16(DHCP_CLIENT_PORT), swap16(DHCP_SERVER_PORT),
                         bytes, UDP_WITH_CHECKSUM);
    if (sent) interface->count.dhcp_sent++;
    return sent;
}

/* 4, 8, 16, 32, 32 ... seconds, each with a second of jitter either way, so that a rack that was
 * switched on at once does not ask in step. */
static uint64_t next_retry_ns(struct dhcp *dhcp) {
    uint64_t jitter = net_random() % (2 * NS_PER_S);
    uint64_t wait = dhcp->retry_s * NS_PER_S - NS_PER_S + jitter;
    if (dhcp->retry_s < DHCP_RETRY_LAST_S) dhcp->retry_s *= 2;
    return wait;
}

static void discover(struct net_interface *interface) {
    struct dhcp *dhcp = &interface->dhcp;
    dhcp->state = DHCP_SELECTING;
    dhcp->has_offer = false;
    (void)ask(interface, DHCP_DISCOVER, 0);
    dhcp->next_ns = interface->now_ns + next_retry_ns(dhcp);
}

/* The first question leaves at next_ns; until then no answer can have our new transaction number.
 * */
static void begin(struct net_interface *interface) {
    interface->dhcp = (struct dhcp){.state = DHCP_SELECTING,
                                    .transaction = net_random(),
                                    .began_ns = interface->now_ns,
                                    .retry_s = DHCP_RETRY_FIRST_S};
}

void dhcp_start(struct net_interface *interface) {
    begin(interface);
    discover(interface);
}

static void request_offer(struct net_interface *interface) {
    struct dhcp *dhcp = &interface->dhcp;
    dhcp->state = DHCP_REQUESTING;
    dhcp->tries = 1;
    dhcp->retry_s = DHCP_RETRY_FIRST_S;
    (void)ask(interface, DHCP_REQUEST, 0);
    dhcp->next_ns = interface->now_ns + next_retry_ns(dhcp);
}

/* ---- offers ---------------------------------------------------------------------------------- */
static uint32_t worth(const struct dhcp_answer *offer) {
    size_t at = 0;
    uint8_t bytes;
    bool ours = dhcp_vendor_option(offer, DHCP_VENDOR_SETTING, &at, &bytes) != NULL;
    bool boots = offer->has_boot_file || offer->next_server != 0;
    return (ours ? 4u : 0u) + (boots ? 2u : 0u) + (offer->host_name[0] != 0 ? 1u : 0u);
}

static void take_offer(struct net_interface *interface, const struct dhcp_answer *answer) {
    struct dhcp *dhcp = &interface->dhcp;
    if (!dhcp->has_offer) {
        uint64_t decide = interface->now_ns + DHCP_COLLECT_NS;
        if (decide < dhcp->next_ns) dhcp->next_ns = decide;
    }
    if (!dhcp->has_offer || worth(answer) > worth(&dhcp->offer)) dhcp->offer = *answer;
    dhcp->has_offer = true;
    if (worth(&dhcp->offer) >= 2) request_offer(interface);
}

/* ---- the lease ------------------------------------------------------------------------------- */
static uint64_t after_s(uint64_t now_ns, uint32_t seconds) { return now_ns + seconds * NS_PER_S; }

/* 4.4.5: T1 is half, T2 seven eighths of the lease unless the server says otherwise (and sense). */
static void set_times(struct dhcp *dhcp, uint64_t now_ns) {
    const struct dhcp_answer *binding = &dhcp->binding;
    uint32_t lease = binding->lease_s;
    dhcp->renew_ns = dhcp->rebind_ns = dhcp->end_ns = UINT64_MAX;
    if (lease == DHCP_INFINITE) return;
    uint32_t renew = lease / 2, rebind = (uint32_t)((uint64_t)lease * 7 / 8);
    bool sensible =
        binding->renew_s != 0 && binding->renew_s < binding->rebind_s && binding->rebind_s < lease;
    dhcp->renew_ns = after_s(now_ns, sensible ? binding->renew_s : renew);
    dhcp->rebind_ns = after_s(now_ns, sensible ? binding->rebind_s : rebind);
    dhcp->end_ns = after_s(now_ns, lease);
}

static void bind(struct net_interface *interface, const struct dhcp_answer *answer) {
    struct dhcp *dhcp = &interface->dhcp;
    dhcp->binding = *answer;
    dhcp->state = DHCP_BOUND;
    set_times(dhcp, interface->now_ns);
    dhcp->next_ns = dhcp->renew_ns;
    net_address_taken(interface, &dhcp->binding);
}

static void lose(struct net_interface *interface, const char *why, uint64_t pause_ns) {
    net_address_lost(interface, why);
    begin(interface);
    interface->dhcp.next_ns = interface->now_ns + pause_ns;
}

static uint64_t earlier(uint64_t left, uint64_t right) { return left < right ? left : right; }

/* Half of what is left, but not more often than the limits say; the next phase begins at its own
 * time. */
static uint64_t renew_retry_ns(const struct dhcp *dhcp, uint64_t now_ns, uint64_t until_ns) {
    uint64_t half = until_ns > now_ns ? (until_ns - now_ns) / 2 : 0;
    uint64_t share_s = dhcp->binding.lease_s / DHCP_RENEW_SHARE;
    uint64_t least = (share_s < DHCP_RENEW_RETRY_S ? share_s + 1 : DHCP_RENEW_RETRY_S) * NS_PER_S;
    return earlier(now_ns + (half > least ? half : least), until_ns);
}

static void renew(struct net_interface *interface) {
    struct dhcp *dhcp = &interface->dhcp;
    uint64_t now = interface->now_ns;
    if (now >= dhcp->end_ns) {
        lose(interface, "the lease ended", 0);
        return;
    }
    if (dhcp->state == DHCP_BOUND) {
        dhcp->transaction = net_random();
        dhcp->began_ns = now;
    }
    bool anyone = now >= dhcp->rebind_ns || dhcp->state == DHCP_REBINDING;
    dhcp->state = anyone ? DHCP_REBINDING : DHCP_RENEWING;
    bool sent = ask(interface, DHCP_REQUEST, anyone ? 0 : dhcp->binding.server);
    dhcp->next_ns = sent ? renew_retry_ns(dhcp, now, anyone ? dhcp->end_ns : dhcp->rebind_ns)
                         : now + NS_PER_S; /* by then the server's MAC is known */
}

void dhcp_confirm(struct net_interface *interface) {
    struct dhcp *dhcp = &interface->dhcp;
    if (dhcp->state == DHCP_OFF) return;
    if (interface->address == 0) {
        dhcp_start(interface);
        return;
    }
    dhcp->transaction = net_random();
    dhcp->began_ns = interface->now_ns;
    dhcp->state = DHCP_REBINDING;
    (void)ask(interface, DHCP_REQUEST, 0);
    uint64_t again = renew_retry_ns(dhcp, interface->now_ns, dhcp->end_ns);
    dhcp->next_ns =
        dhcp->end_ns == UINT64_MAX ? interface->now_ns + DHCP_RENEW_RETRY_S * NS_PER_S : again;
}

void dhcp_tick(struct net_interface *interface) {
    struct dhcp *dhcp = &interface->dhcp;
    if (dhcp->state == DHCP_OFF || interface->now_ns < dhcp->next_ns) return;
    switch (dhcp->state) {
    case DHCP_OFF: return;
    case DHCP_SELECTING:
        if (dhcp->has_offer)
            request_offer(interface);
        else
            discover(interface);
        return;
    case DHCP_REQUESTING:
        if (dhcp->tries == DHCP_REQUEST_TRIES) {
            dhcp_start(interface);
            return;
        }
        dhcp->tries++;
        (void)ask(interface, DHCP_REQUEST, 0);
        dhcp->next_ns = interface->now_ns + next_retry_ns(dhcp);
        return;
    case DHCP_BOUND:
    case DHCP_RENEWING:
    case DHCP_REBINDING: renew(interface); return;
    }
}

/* ---- answers --------------------------------------------------------------------------------- */
/* An acknowledgement of what we asked for, from whom we asked. */
static bool is_expected(const struct net_interface *interface, const struct dhcp_answer *answer) {
    const struct dhcp *dhcp = &interface->dhcp;
    switch (dhcp->state) {
    case DHCP_SELECTING: return answer->type == DHCP_OFFER;
    case DHCP_REQUESTING:
        return answer->type != DHCP_OFFER && answer->server == dhcp->offer.server &&
               (answer->type == DHCP_NAK || answer->address == dhcp->offer.address);
    case DHCP_RENEWING:
        return answer->type != DHCP_OFFER && answer->server == dhcp->binding.server &&
               (answer->type == DHCP_NAK || answer->address == interface->address);
    case DHCP_REBINDING:
        return answer->type != DHCP_OFFER &&
               (answer->type == DHCP_NAK || answer->address == interface->address);
    default: return false;
    }
}

void dhcp_receive(struct net_interface *interface, const uint8_t *message, size_t bytes) {
    struct dhcp *dhcp = &interface->dhcp;
    struct dhcp_answer answer;
    enum dhcp_parsed parsed =
        dhcp_parse(message, bytes, dhcp->transaction, interface->mac, &answer);
    if (parsed == DHCP_MALFORMED) {
        interface->count.dhcp_malformed++;
        return;
    }
    if (parsed == DHCP_NOT_OURS || dhcp->state == DHCP_OFF || !is_expected(interface, &answer)) {
        interface->count.dhcp_ignored++;
        return;
    }
    if (answer.type == DHCP_OFFER) {
        take_offer(interface, &answer);
    } else if (answer.type == DHCP_ACK) {
        bind(interface, &answer);
    } else {
        interface->count.dhcp_naks++;
        lose(interface, "the server refused it", DHCP_NAK_PAUSE_NS);
    }
}
