/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the NIC really works. A link flag says little (an I226 that lost its PCIe link, or one
 * whose receiver stalled, still shows "up"), so traffic is the test:
 *   - a device that its driver calls broken is started anew, at growing intervals;
 *   - frames that were queued and do not leave although the link is up mean broken;
 *   - silence leads to an ARP question to someone who must answer, and further silence to a
 * restart. A NIC that can't be started any more ends in a panic: a reboot is the only cure, and
 * nobody stands beside the duck.
 */
#ifndef DUCKOS_NET_HEALTH_H
#define DUCKOS_NET_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

struct net_interface;

#define HEALTH_SEND_STALL_NS 2000000000ull
#define HEALTH_SILENCE_NS 20000000000ull /* then somebody is asked, once a second */
#define HEALTH_DEAF_NS 30000000000ull    /* then the NIC is started anew */
#define HEALTH_DEAF_FACTOR_MAX 64u       /* doubles each time without a frame in between */
#define HEALTH_START_FAILURES_MAX 10u
#define HEALTH_LINK_WAIT_NS 60000000000ull /* no link for so long: start the NIC anew */

struct health {
    uint64_t last_frames, heard_ns;
    uint64_t last_completed, moved_ns;
    uint64_t no_link_ns, asked_ns, retry_ns;
    uint32_t failures, deaf_factor;
};

/* Called at every tick. True: the NIC runs, and its link may be looked at. */
bool health_check(struct net_interface *interface);

#endif
