/* SPDX-License-Identifier: Apache-2.0
 *
 * Getting and keeping an address (RFC 2131 4.4). All cards ask; offers are collected for a moment,
 * and the best one is taken: that of the card the firmware booted from, then one that names a boot
 * server. Waits double up to 32 s and differ by a random part: a shelf must not ask in step.
 */
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#define CARRIER_WAIT_MS 15000
#define CARRIER_POLL_MS 50
#define COLLECT_MS 300
#define FIRST_WAIT_MS 1000
#define WAIT_MS_MAX 32000
#define ANSWER_WAIT_MS 2000
#define PET_MS 2000 /* no wait is longer without a sign of life: watchdogs give 30 s, some less */
#define RENEW_RETRY_MS 10000
#define LEASE_S_MAX 0x7fffffffu /* "for ever" and what lies near it */
#ifndef LEASE_S_MIN
#define LEASE_S_MIN 30u
#endif

uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint32_t random_word(void) {
    uint32_t word = 0;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) word = (uint32_t)now_ms();
    return word;
}

/* poll for a part of a wait: there may be no answer for hours, and the watchdog is armed. */
static int wait_petting(struct pollfd *set, int count, uint64_t ms) {
    machine_pet_watchdog();
    return poll(set, (nfds_t)count, (int)(ms < PET_MS ? ms : PET_MS));
}

static void ask(const struct nic *nic, const struct dhcp_question *question, uint32_t to) {
    uint8_t packet[DHCP_PACKET_BYTES_MAX];
    struct sockaddr_in place = {
        .sin_family = AF_INET, .sin_port = htons(DHCP_SERVER_PORT), .sin_addr.s_addr = to};
    size_t bytes = dhcp_build(packet, question);
    if (sendto(nic->socket, packet, bytes, 0, (struct sockaddr *)&place, sizeof place) < 0)
        say("%s: DHCP: %s", nic->name, strerror(errno));
}

/* The next answer on this card that is there now. */
static bool next_answer(const struct nic *nic, uint32_t xid, struct dhcp_answer *out) {
    uint8_t packet[DHCP_PACKET_BYTES_MAX];
    for (;;) {
        ssize_t bytes = recv(nic->socket, packet, sizeof packet, 0);
        if (bytes < 0) return false;
        if (dhcp_parse(packet, (size_t)bytes, xid, nic->mac, out)) return true;
    }
}

static void wait_for_carrier(struct nic *nics, int count) {
    uint64_t deadline = now_ms() + CARRIER_WAIT_MS;
    while (now_ms() < deadline) {
        for (int i = 0; i < count; i++)
            if (nic_has_carrier(&nics[i])) return;
        wait_petting(NULL, 0, CARRIER_POLL_MS);
    }
    say("no card has a link after %d s; asking all the same", CARRIER_WAIT_MS / 1000);
}

static int worth(const struct nic *nic, const struct dhcp_answer *offer,
                 const struct options *options) {
    bool booted = options->has_boot_mac && memcmp(nic->mac, options->boot_mac, 6) == 0;
    return (booted ? 2 : 0) + (offer->boot_server != 0 ? 1 : 0);
}

/* Collects offers of all cards until `deadline`, or COLLECT_MS after the first. */
static struct nic *best_offer(struct nic *nics, int count, uint32_t xid, uint64_t deadline,
                              const struct options *options, struct dhcp_answer *best) {
    struct pollfd set[NICS_MAX];
    struct nic *chosen = NULL;
    int best_worth = -1;
    for (int i = 0; i < count; i++)
        set[i] = (struct pollfd){.fd = nics[i].socket, .events = POLLIN};
    for (uint64_t now = now_ms(); now < deadline; now = now_ms()) {
        if (wait_petting(set, count, deadline - now) <= 0) continue;
        for (int i = 0; i < count; i++) {
            struct dhcp_answer offer;
            while (nics[i].socket >= 0 && next_answer(&nics[i], xid, &offer)) {
                if (offer.kind != DHCP_OFFER || worth(&nics[i], &offer, options) <= best_worth)
                    continue;
                if (chosen == NULL && now + COLLECT_MS < deadline) deadline = now + COLLECT_MS;
                chosen = &nics[i];
                *best = offer;
                best_worth = worth(chosen, best, options);
            }
        }
    }
    return chosen;
}

/* Waits for an ACK (true) or a NAK; `out` holds it. */
static bool acknowledged(const struct nic *nic, uint32_t xid, struct dhcp_answer *out) {
    struct pollfd set = {.fd = nic->socket, .events = POLLIN};
    uint64_t deadline = now_ms() + ANSWER_WAIT_MS;
    for (uint64_t now = now_ms(); now < deadline; now = now_ms()) {
        if (wait_petting(&set, 1, deadline - now) <= 0) continue;
        while (next_answer(nic, xid, out))
            if (out->kind == DHCP_ACK || out->kind == DHCP_NAK) return out->kind == DHCP_ACK;
    }
    memset(out, 0, sizeof *out);
    return false;
}

static void take(struct lease *lease, struct nic *nic, const struct dhcp_answer *given) {
    uint64_t now = now_ms();
    uint64_t lease_s = given->lease_s;
    if (lease_s < LEASE_S_MIN) lease_s = LEASE_S_MIN;
    if (lease_s > LEASE_S_MAX) lease_s = LEASE_S_MAX;
    lease->nic = nic;
    lease->given = *given;
    if (lease->given.mask == 0) lease->given.mask = htonl(0xffffff00u);
    lease->renew_at_ms = now + lease_s * 500; /* T1 and T2 of RFC 2131 4.4.5 */
    lease->rebind_at_ms = now + lease_s * 875;
    lease->ends_at_ms = now + lease_s * 1000;
    lease->next_ask_ms = lease->renew_at_ms;
}

void lease_acquire(struct lease *lease, struct nic *nics, int count,
                   const struct options *options) {
    uint64_t wait_ms = FIRST_WAIT_MS, began = now_ms();
    memset(lease, 0, sizeof *lease);
    wait_for_carrier(nics, count);
    for (int tries = 1;; tries++) {
        uint32_t xid = random_word();
        uint64_t seconds = (now_ms() - began) / 1000;
        struct dhcp_question question = {.kind = DHCP_DISCOVER,
                                         .xid = xid,
                                         .seconds = (uint16_t)(seconds > 65535 ? 65535 : seconds)};
        struct dhcp_answer offer, given;
        for (int i = 0; i < count; i++) {
            memcpy(question.mac, nics[i].mac, 6);
            if (nics[i].socket >= 0) ask(&nics[i], &question, INADDR_BROADCAST);
        }
        uint64_t deadline = now_ms() + wait_ms + random_word() % (wait_ms / 2);
        struct nic *nic = best_offer(nics, count, xid, deadline, options, &offer);
        if (nic != NULL) {
            question.kind = DHCP_REQUEST;
            question.address = offer.address;
            question.server = offer.server;
            memcpy(question.mac, nic->mac, 6);
            ask(nic, &question, INADDR_BROADCAST);
            if (acknowledged(nic, xid, &given)) {
                take(lease, nic, &given);
                return;
            }
        }
        say("no address after %d tries", tries);
        wait_ms = wait_ms * 2 > WAIT_MS_MAX ? WAIT_MS_MAX : wait_ms * 2;
    }
}

bool lease_keep(struct lease *lease, uint64_t now) {
    struct nic *nic = lease->nic;
    struct dhcp_answer answer;
    uint32_t before = lease->given.address;
    if (now < lease->next_ask_ms) return false;
    struct dhcp_question question = {.kind = DHCP_REQUEST, .xid = random_word(), .ours = before};
    memcpy(question.mac, nic->mac, 6);
    /* First the server that gave it, later any server; at the end, anew from nothing. */
    bool by_all = now >= lease->rebind_at_ms;
    if (now >= lease->ends_at_ms) {
        question.ours = 0;
        question.address = before;
    }
    ask(nic, &question, by_all ? INADDR_BROADCAST : lease->given.server);
    if (acknowledged(nic, question.xid, &answer)) {
        take(lease, nic, &answer);
        return answer.address != before;
    }
    lease->next_ask_ms = now_ms() + RENEW_RETRY_MS;
    if (answer.kind != DHCP_NAK) return false;
    struct options none = {.has_boot_mac = false};
    say("the server took back our address");
    lease_acquire(lease, nic, 1, &none);
    return lease->given.address != before;
}
