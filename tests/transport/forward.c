/* SPDX-License-Identifier: Apache-2.0
 *
 * Hands frames from one DPDK port to the other and back, until its parent ends or its time is over:
 *
 *     forward SECONDS [EAL ARGUMENT]...      two --vdev among them
 */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BURST 32u
#define DESCRIPTORS 512
#define MBUFS 4096u
#define FRAME_ROOM 9400u
#define PAUSE_US 20u

static void start(uint16_t port, struct rte_mempool *pool) {
    const struct rte_eth_conf plain = {0};
    int code = rte_eth_dev_configure(port, 1, 1, &plain);
    if (code == 0) code = rte_eth_rx_queue_setup(port, 0, DESCRIPTORS, 0, NULL, pool);
    if (code == 0) code = rte_eth_tx_queue_setup(port, 0, DESCRIPTORS, 0, NULL);
    if (code == 0) code = rte_eth_dev_start(port);
    if (code == 0) code = rte_eth_promiscuous_enable(port);
    if (code == 0 || code == -ENOTSUP) return;
    fprintf(stderr, "port %u does not start: %d\n", port, code);
    exit(1);
}

static uint16_t forward(uint16_t from, uint16_t to) {
    struct rte_mbuf *burst[BURST];
    const uint16_t got = rte_eth_rx_burst(from, 0, burst, BURST);
    const uint16_t sent = rte_eth_tx_burst(to, 0, burst, got);
    for (uint16_t i = sent; i < got; i++) rte_pktmbuf_free(burst[i]);
    return got;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    const time_t end = time(NULL) + strtol(words[1], NULL, 10);
    const pid_t parent = getppid();
    if (rte_eal_init(count - 1, words + 1) < 0) return 1;
    struct rte_mempool *pool =
        rte_pktmbuf_pool_create("frames", MBUFS, 64, 0, RTE_PKTMBUF_HEADROOM + FRAME_ROOM, 0);
    if (pool == NULL) return 1;
    for (uint16_t port = 0; port < 2; port++) start(port, pool);
    printf("ready\n");
    fflush(stdout);
    while (time(NULL) < end && getppid() == parent)
        if (forward(0, 1) + forward(1, 0) == 0) usleep(PAUSE_US);
    return 0;
}
