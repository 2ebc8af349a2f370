/* SPDX-License-Identifier: Apache-2.0
 *
 * The main loop of core 0: look at the network, do what is due, compute for a while, rest in the
 * way the poll policy says. Nothing in it waits for anything.
 */
#include "boot/options.h"
#include "console/console.h"
#include "console/format.h"
#include "cpu/cpu.h"
#include "cpu/trap.h"
#include "duck_main.h"
#include "net/net.h"
#include "panic/panic.h"
#include "session/session.h"
#include "time/timer.h"
#include "time/watchdog.h"

#include <string.h>

/* Poll policy "hlt": the longer nothing comes, the longer the nap, as in duckd. */
#define NAP_NS_MIN 50000ull
#define NAP_NS_MAX 4000000ull
#define PANIC_PORT 7212u /* of the host: a text, one datagram */
#define PANIC_FLUSH_US_MAX 10000u
#define PANIC_RESOLVE_NS_MAX 100000000ull

static struct duck_core core;

/* ---- start ----------------------------------------------------------------------------------- */

static int hex_digit(char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

static void put_name(char name[DUCK_WIRE_NAME_BYTES]) {
    const struct net_description *net = net_describe();
    const char *wanted = options_text("name");
    if (wanted == NULL && net->host_name[0] != 0) wanted = net->host_name;
    if (wanted != NULL) {
        for (size_t i = 0; i + 1 < DUCK_WIRE_NAME_BYTES && wanted[i] != 0 && wanted[i] != '.'; i++)
            name[i] = wanted[i];
        return;
    }
    format_text(name, DUCK_WIRE_NAME_BYTES, "duck-%02x%02x%02x", net->mac[3], net->mac[4],
                net->mac[5]);
}

static void read_config(struct core_config *config) {
    static const char build[] = DUCK_BUILD_HASH;
    memset(config, 0, sizeof *config);
    if (!options_hex("fleet_public", config->fleet_public, sizeof config->fleet_public))
        klog("no fleet key in this image: the duck obeys nobody (see duckctl image build)");
    plat_random(config->identity_private, sizeof config->identity_private);
    put_name(config->name);
    for (size_t i = 0; i < sizeof config->build; i++)
        config->build[i] = (uint8_t)(hex_digit(build[2 * i]) << 4 | hex_digit(build[2 * i + 1]));
}

static void read_fixed_address(struct net_fixed *fixed) {
    uint8_t bytes[4];
    memset(fixed, 0, sizeof *fixed);
    if (options_address("address", bytes)) memcpy(&fixed->address, bytes, sizeof bytes);
    if (options_address("netmask", bytes)) memcpy(&fixed->netmask, bytes, sizeof bytes);
    if (options_address("router", bytes)) memcpy(&fixed->router, bytes, sizeof bytes);
    fixed->mtu_bytes = (uint32_t)options_number("mtu", 0);
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Until a packet, a completed call, a timer of the network or the core, or the nap's end. */
static void rest(uint64_t deadline, uint64_t idle_ns) {
    if (deadline == 0) return;
    if (!cpu_waits_by_halting()) {
        __builtin_ia32_pause();
        return;
    }
    uint64_t nap = idle_ns / 4;
    if (nap < NAP_NS_MIN) nap = NAP_NS_MIN;
    if (nap > NAP_NS_MAX) nap = NAP_NS_MAX;
    uint64_t until = min_u64(timer_now_ns() + nap, min_u64(deadline, net_next_timer_ns()));
    /* A wake between the look and the halt must not be missed. */
    interrupts_off();
    if (cores_are_quiet()) timer_sleep_until(until);
    interrupts_on();
}

static void wait_for_address(void) {
    struct net_fixed fixed;
    read_fixed_address(&fixed);
    net_init(DUCK_WIRE_PORT, &fixed);
    while (!net_ready()) {
        watchdog_pet();
        if (net_poll(NULL) == 0) rest(UINT64_MAX, 0);
    }
}

/* The last words, to the host that the image or DHCP names. */
static void send_panic(const char *text, size_t bytes) {
    struct net_peer host = {.port = __builtin_bswap16(PANIC_PORT)};
    uint8_t address[4];
    if (!net_ready() || !options_address("host", address)) return;
    memcpy(&host.address, address, sizeof address);
    if (bytes > NET_UDP_PAYLOAD_BYTES_MAX) bytes = NET_UDP_PAYLOAD_BYTES_MAX;
    /* A host that has never spoken to us has to be asked for its Ethernet address first. */
    uint64_t limit = timer_now_ns() + PANIC_RESOLVE_NS_MAX;
    do {
        memcpy(net_udp_buffer(), text, bytes);
        if (net_udp_send(&host, bytes)) {
            net_flush(PANIC_FLUSH_US_MAX);
            return;
        }
        net_poll(NULL);
    } while (timer_now_ns() < limit);
}

static void say_ready(const struct core_config *config) {
    const struct net_description *net = net_describe();
    const uint8_t *address = (const uint8_t *)&net->address;
    klog("duckos ready name=%s address=%u.%u.%u.%u nic=%s mtu=%u link=%u cores=%u memory=%lu "
         "build=%s ms=%lu",
         config->name, address[0], address[1], address[2], address[3], net->driver, net->mtu_bytes,
         net->link_mbps, cpu_count(), memory_window_bytes(), DUCK_BUILD_HASH,
         timer_now_ns() / 1000000);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void take_datagram(const struct net_peer *from, uint8_t *payload, size_t bytes) {
    const struct plat_peer peer = {.address = from->address, .port = from->port};
    account_packet();
    core_packet(&core, &peer, payload, bytes);
}

static _Noreturn void live(void) {
    uint64_t busy_ns = timer_now_ns();
    for (;;) {
        watchdog_pet();
        unsigned frames = net_poll(take_datagram);
        uint64_t deadline = core_tick(&core);
        bool computed = cores_step();
        if (frames != 0 || computed)
            busy_ns = timer_now_ns();
        else
            rest(deadline, timer_now_ns() - busy_ns);
    }
}

_Noreturn void duck_main(void) {
    static struct core_config config;
    platform_random_init();
    cores_init();
    regions_init(options_number("memory_limit", 0));
    wait_for_address();
    read_config(&config);
    core_init(&core, &config);
    platform_follow_console(&core.log);
    panic_sender(send_panic);
    say_ready(&config);
    memset(&config, 0, sizeof config);
    live();
}
