/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of duck-init as a program for tests:
 *   parse              hex packets on stdin, one a line; prints what dhcp_parse makes of each
 *   options            the kernel's command line on stdin; prints what options_parse makes of it
 *   lease CARD...      an address by DHCP on these cards, then keeps it for KEEP_MS; prints changes
 *   silence            asks where nobody answers, for SILENCE_MS of a made clock that only poll
 *                      moves; prints the longest time between two signs of life to the watchdog
 */
#include "../../images/linux/init.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEEP_MS 4000
#define LOOK_US 20000
#define SILENCE_MS 600000

int __real_poll(struct pollfd *set, nfds_t count, int ms);
int __wrap_poll(struct pollfd *set, nfds_t count, int ms);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

static bool silent; /* the clock is made_ms */
static uint64_t made_ms, petted_ms, longest_ms;

_Noreturn void machine_reboot(void) {
    puts("reboot");
    exit(3);
}

void machine_pet_watchdog(void) { petted_ms = made_ms; }

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    if (!silent) return __real_clock_gettime(clock, out);
    *out = (struct timespec){.tv_sec = (time_t)(made_ms / 1000),
                             .tv_nsec = (long)(made_ms % 1000) * 1000000};
    return 0;
}

int __wrap_poll(struct pollfd *set, nfds_t count, int ms) {
    if (!silent) return __real_poll(set, count, ms);
    made_ms += (uint64_t)ms;
    if (made_ms - petted_ms > longest_ms) longest_ms = made_ms - petted_ms;
    if (made_ms < SILENCE_MS) return 0;
    printf("longest=%llu\n", (unsigned long long)longest_ms);
    exit(0);
}

static const uint8_t fixed_mac[6] = {2, 0, 0, 0, 0, 1};

static int parse(void) {
    static char line[2 * DHCP_PACKET_BYTES_MAX + 2];
    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t bytes = strcspn(line, "\n") / 2;
        uint8_t *packet = malloc(bytes == 0 ? 1 : bytes); /* exact, so that ASan sees every step */
        struct dhcp_answer answer;
        if (packet == NULL) return 1;
        for (size_t i = 0; i < bytes; i++) {
            unsigned byte = 0;
            sscanf(line + 2 * i, "%2x", &byte);
            packet[i] = (uint8_t)byte;
        }
        bool good = dhcp_parse(packet, bytes, 0x04030201u, fixed_mac, &answer);
        struct in_addr address = {.s_addr = answer.address};
        printf("%d kind=%u address=%s mtu=%u lease=%u name=%s\n", good, answer.kind,
               inet_ntoa(address), answer.mtu, answer.lease_s, answer.host_name);
        free(packet);
    }
    return 0;
}

static int options(void) {
    static char line[4096];
    struct options found;
    if (fgets(line, sizeof line, stdin) == NULL) return 1;
    options_parse(&found, line);
    printf("name=%s poll=%s memory=%s mtu=%u port=%u cores=%u huge=%ld boot=%d\n", found.name,
           found.poll, found.memory_limit, found.mtu, found.port, found.cores, found.huge_mib,
           found.has_boot_mac);
    return 0;
}

static void tell(const char *what, const struct lease *lease) {
    struct in_addr address = {.s_addr = lease->given.address};
    printf("%s %s %s mtu=%u name=%s\n", what, lease->nic->name, inet_ntoa(address),
           lease->given.mtu, lease->given.host_name);
    fflush(stdout);
}

static int keep(int count, char **names) {
    static struct nic nics[NICS_MAX];
    static struct options none;
    static struct lease lease;
    for (int i = 0; i < count; i++) {
        snprintf(nics[i].name, sizeof nics[i].name, "%s", names[i]);
        memcpy(nics[i].mac, fixed_mac, 6);
        nics[i].mac[5] = (uint8_t)(i + 1);
        if (!nic_up(&nics[i])) return 1;
    }
    lease_acquire(&lease, nics, count, &none);
    if (!nic_set_address(lease.nic, lease.given.address, lease.given.mask)) return 1;
    tell("lease", &lease);
    for (uint64_t end = now_ms() + KEEP_MS; now_ms() < end; usleep(LOOK_US)) {
        uint64_t before = lease.renew_at_ms;
        bool moved = lease_keep(&lease, now_ms());
        if (moved && !nic_set_address(lease.nic, lease.given.address, lease.given.mask)) return 1;
        if (lease.renew_at_ms != before) tell(moved ? "moved" : "renewed", &lease);
    }
    return 0;
}

static int silence(void) {
    static struct nic nic = {.name = "none", .socket = -1};
    static struct options none;
    static struct lease lease;
    silent = true;
    lease_acquire(&lease, &nic, 1, &none);
    return 1;
}

int main(int count, char **words) {
    if (count >= 2 && strcmp(words[1], "parse") == 0) return parse();
    if (count >= 2 && strcmp(words[1], "options") == 0) return options();
    if (count >= 3 && strcmp(words[1], "lease") == 0) return keep(count - 2, words + 2);
    if (count >= 2 && strcmp(words[1], "silence") == 0) return silence();
    return 2;
}
