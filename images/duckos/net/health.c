/* SPDX-License-Identifier: Apache-2.0 */
#include "net/health.h"

#include "console/console.h"
#include "net/bytes.h"
#include "net/interface.h"
#include "panic/panic.h"

#define NS_PER_S 1000000000ull

static void begin_again(struct net_interface *interface) {
    struct health *health = &interface->health;
    health->heard_ns = health->moved_ns = health->no_link_ns = interface->now_ns;
    health->last_frames = interface->count.received_frames;
    health->last_completed = interface->nic->count.completed;
}

static bool restart(struct net_interface *interface) {
    struct health *health = &interface->health;
    struct nic *nic = interface->nic;
    if (interface->now_ns < health->retry_ns) return false;
    nic->count.resets++;
    nic->link = false;
    enum nic_status status = nic->start(nic);
    begin_again(interface);
    if (status == NIC_OK) {
        health->failures = 0;
        copy_bytes(interface->mac, nic->mac, sizeof interface->mac); /* now known for certain */
        klog("net: %s started anew", nic->driver);
        return true;
    }
    health->failures++;
    health->retry_ns = interface->now_ns + health->failures * NS_PER_S;
    klog("net: %s does not start (%u): %s", nic->driver, health->failures, nic_status_text(status));
    if (interface->is_last_hope && health->failures >= HEALTH_START_FAILURES_MAX)
        panic("net: the NIC is lost after %u starts: %s", health->failures,
              nic_status_text(status));
    return false;
}

static bool sends_stall(struct net_interface *interface) {
    struct health *health = &interface->health;
    struct nic *nic = interface->nic;
    bool waiting = nic->sending(nic);
    if (!waiting || nic->count.completed != health->last_completed || !nic->link) {
        health->last_completed = nic->count.completed;
        health->moved_ns = interface->now_ns;
        return false;
    }
    return interface->now_ns - health->moved_ns >= HEALTH_SEND_STALL_NS;
}

static uint32_t somebody(const struct net_interface *interface) {
    uint32_t server = interface->dhcp.binding.server;
    return is_on_link(interface, server) ? server : interface->router;
}

/* An address, but no frame at all: ask, then doubt the receiver. */
static bool is_deaf(struct net_interface *interface) {
    struct health *health = &interface->health;
    uint64_t now = interface->now_ns;
    if (interface->count.received_frames != health->last_frames || !interface->nic->link) {
        if (interface->count.received_frames != health->last_frames) health->deaf_factor = 1;
        health->last_frames = interface->count.received_frames;
        health->heard_ns = now;
        return false;
    }
    uint32_t who = somebody(interface);
    if (who == 0 || now - health->heard_ns < HEALTH_SILENCE_NS) return false;
    if (now - health->asked_ns >= NS_PER_S) {
        health->asked_ns = now;
        arp_ask(interface, who);
    }
    if (health->deaf_factor == 0) health->deaf_factor = 1;
    if (now - health->heard_ns < HEALTH_DEAF_NS * health->deaf_factor) return false;
    if (health->deaf_factor < HEALTH_DEAF_FACTOR_MAX) health->deaf_factor *= 2;
    return true;
}

static bool waits_too_long_for_link(struct net_interface *interface) {
    struct health *health = &interface->health;
    if (interface->nic->link || health->no_link_ns == 0) health->no_link_ns = interface->now_ns;
    return interface->now_ns - health->no_link_ns >= HEALTH_LINK_WAIT_NS;
}

bool health_check(struct net_interface *interface) {
    struct nic *nic = interface->nic;
    if (nic->broken) return restart(interface);
    const char *why = sends_stall(interface)               ? "sent frames do not leave"
                      : is_deaf(interface)                 ? "nothing arrives, not even an answer"
                      : waits_too_long_for_link(interface) ? "no link for a minute"
                                                           : NULL;
    if (why == NULL) return true;
    klog("net: %s: %s", nic->driver, why);
    nic->broken = true;
    return restart(interface);
}
