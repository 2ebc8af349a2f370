/* SPDX-License-Identifier: Apache-2.0
 *
 * The Linux image's boot, as one list.
 */
#include "init.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define LOOK_MS 2000 /* lease, watchdog, and whether duckd lives */

static struct nic nics[NICS_MAX];

static void apply(const struct lease *lease, const struct options *options) {
    struct in_addr address = {.s_addr = lease->given.address};
    unsigned mtu = options->mtu != 0 ? options->mtu : lease->given.mtu;
    if (mtu != 0) nic_set_mtu(lease->nic, mtu);
    if (!nic_set_address(lease->nic, lease->given.address, lease->given.mask))
        give_up("%s takes no address", lease->nic->name);
    say("%s: %s, MTU %u, name %s", lease->nic->name, inet_ntoa(address), mtu, options->name);
}

static void choose_name(struct options *options, const struct lease *lease) {
    const uint8_t *mac = lease->nic->mac;
    if (options->name[0] == 0)
        snprintf(options->name, sizeof options->name, "%.31s", lease->given.host_name);
    if (options->name[0] == 0)
        snprintf(options->name, sizeof options->name, "duck-%02x%02x%02x", mac[3], mac[4], mac[5]);
    if (sethostname(options->name, strlen(options->name)) != 0) say("no host name");
}

/* SIGCHLD: somebody ended. SIGTERM and SIGINT (Ctrl-Alt-Del, the power button): restart. */
static int open_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool asked_to_restart(int signals) {
    struct signalfd_siginfo info;
    bool asked = false;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        asked = asked || info.ssi_signo != SIGCHLD;
    return asked;
}

static void open_nics(int *count) {
    *count = nics_find(nics, NICS_MAX);
    if (*count == 0) give_up("no network card that a driver of this image takes");
    for (int i = 0; i < *count; i++)
        if (nic_up(&nics[i])) nic_tune(&nics[i]);
}

int main(void) {
    static struct options options;
    static struct lease lease;
    int nic_count;
    if (getpid() != 1) {
        fprintf(stderr, "duck-init is process 1 of the Linux image, nothing else\n");
        return 2;
    }
    machine_mount();
    reboot(RB_DISABLE_CAD);
    int signals = open_signals();
    options_read(&options, "/proc/cmdline");
    machine_load_modules();
    machine_open_watchdog();
    open_nics(&nic_count);
    lease_acquire(&lease, nics, nic_count, &options);
    choose_name(&options, &lease);
    apply(&lease, &options);
    machine_reserve_huge_pages(options.huge_mib);
    duckd_start(&lease, &options);
    for (;;) {
        struct pollfd set = {.fd = signals, .events = POLLIN};
        poll(&set, 1, LOOK_MS);
        machine_pet_watchdog();
        if (asked_to_restart(signals)) {
            duckd_stop();
            machine_reboot();
        }
        duckd_look(&lease, &options);
        if (lease_keep(&lease, now_ms())) {
            duckd_stop();
            apply(&lease, &options);
            duckd_start(&lease, &options);
        }
    }
}
