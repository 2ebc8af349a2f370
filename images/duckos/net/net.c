/* SPDX-License-Identifier: Apache-2.0
 *
 * The network as the rest of duckos sees it: which NIC, its link, its address, and one datagram
 * port.
 */
#include "net/net.h"

#include "acpi/acpi.h"
#include "boot/options.h"
#include "console/console.h"
#include "memory/memory.h"
#include "net/bytes.h"
#include "net/ethernet.h"
#include "net/health.h"
#include "net/interface.h"
#include "net/random.h"
#include "net/udp.h"
#include "time/timer.h"

#define TICK_NS 100000000ull /* looking at the link; reading a register costs a microsecond */
#define TICK_NO_LINK_NS 10000000ull

static struct nic nics[NIC_COUNT_MAX];
static struct net_interface interfaces[NIC_COUNT_MAX];
static unsigned interface_count;
static struct net_interface *active; /* has, or had, the address; the others are off */
static struct net_description description;
static struct net_counters total;
static uint64_t next_tick_ns;

/* ---- starting -------------------------------------------------------------------------------- */
static void seed_random(void) {
    uint64_t seed = timer_cycles();
    for (unsigned index = 0; index < interface_count; index++)
        for (unsigned at = 0; at < 6; at++) seed = seed * 257 + nics[index].mac[at];
    net_random_seed(seed);
}

static uint32_t first_mtu(const struct nic *nic) {
    return nic->mtu_bytes_default != 0 ? nic->mtu_bytes_default : NIC_MTU_PLAIN;
}

static void prepare(struct net_interface *interface, struct nic *nic, uint16_t udp_port,
                    uint8_t *spare) {
    *interface = (struct net_interface){.nic = nic,
                                        .udp_port = swap16(udp_port),
                                        .mtu_bytes = first_mtu(nic),
                                        .is_last_hope = interface_count == 1,
                                        .now_ns = timer_now_ns(),
                                        .spare = spare};
    copy_bytes(interface->mac, nic->mac, 6);
}

/* The description speaks of this NIC from now on. */
static void choose(struct net_interface *interface) {
    struct nic *nic = interface->nic;
    active = interface;
    interface->is_last_hope = true;
    nic_set_name(description.driver, nic->driver);
    nic_set_name(description.model, nic->model);
    description.unproven = nic->unproven;
    copy_bytes(description.mac, nic->mac, 6);
    for (unsigned index = 0; index < interface_count; index++)
        if (&interfaces[index] != interface) nics[index].stop(&nics[index]);
}

static void take_fixed(const struct net_fixed *fixed) {
    struct net_interface *interface = &interfaces[0];
    struct dhcp_answer binding = {.address = fixed->address,
                                  .netmask = fixed->netmask,
                                  .router = fixed->router,
                                  .lease_s = DHCP_INFINITE,
                                  .mtu_bytes = (uint16_t)fixed->mtu_bytes};
    net_address_taken(interface, &binding);
}

enum net_state net_init(uint16_t udp_port, const struct net_fixed *fixed) {
    const struct acpi_facts *acpi = acpi_facts();
    pci_init(acpi->ecam_address, acpi->ecam_first_bus, acpi->ecam_last_bus);
    interface_count = nic_find(nics);
    klog("net: %u PCI devices, %u usable NICs", pci_count(), interface_count);
    seed_random();
    active = NULL;
    next_tick_ns = 0;
    if (interface_count == 0) return NET_NO_NIC;
    uint8_t *spare = memory_take(NIC_BUFFER_BYTES, 64);
    for (unsigned index = 0; index < interface_count; index++)
        prepare(&interfaces[index], &nics[index], udp_port, spare);
    if (fixed != NULL && fixed->address != 0) take_fixed(fixed);
    return net_get_state();
}

/* ---- addresses ------------------------------------------------------------------------------- */
static void log_address(const char *what, uint32_t address) {
    uint8_t at[4];
    store_address(at, address);
    klog("net: %s %u.%u.%u.%u", what, at[0], at[1], at[2], at[3]);
}

static uint32_t usable_mtu(const struct net_interface *interface, uint16_t said) {
    const struct nic *nic = interface->nic;
    uint32_t mtu = said >= 576 ? said : first_mtu(nic); /* RFC 1122: every host takes 576 */
    return mtu < nic->mtu_bytes_max ? mtu : nic->mtu_bytes_max;
}

/* Letters, digits and a few more, "key=value": what our own DHCP settings look like. */
static void take_setting(const uint8_t *text, uint8_t bytes) {
    char key[24];
    size_t at = 0;
    while (at < bytes && at < sizeof key - 1 && text[at] != '=') {
        key[at] = (char)text[at];
        at++;
    }
    if (at == 0 || at == bytes || text[at] != '=') {
        klog("net: DHCP setting is not key=value");
        return;
    }
    key[at] = 0;
    enum option_result result =
        options_set(OPTION_DHCP, key, (const char *)text + at + 1, (size_t)bytes - at - 1);
    if (result != OPTION_OK && result != OPTION_WEAKER)
        klog("net: DHCP setting %s refused (%u)", key, (unsigned)result);
}

/* The boot server is the host unless a setting says otherwise; `text` gets a dotted address. */
static size_t write_address(char text[16], uint32_t address) {
    uint8_t part[4];
    size_t used = 0;
    store_address(part, address);
    for (unsigned at = 0; at < 4; at++) {
        if (part[at] >= 100) text[used++] = (char)('0' + part[at] / 100);
        if (part[at] >= 10) text[used++] = (char)('0' + part[at] / 10 % 10);
        text[used++] = (char)('0' + part[at] % 10);
        if (at < 3) text[used++] = '.';
    }
    return used;
}

static void publish_settings(const struct dhcp_answer *binding) {
    uint8_t bytes;
    size_t at = 0;
    const uint8_t *text;
    char host[16];
    if (is_host_address(binding->next_server))
        (void)options_set(OPTION_DHCP, "host", host, write_address(host, binding->next_server));
    while ((text = dhcp_vendor_option(binding, DHCP_VENDOR_SETTING, &at, &bytes)) != NULL)
        take_setting(text, bytes);
    size_t name = 0;
    while (binding->host_name[name] != 0) name++;
    if (name != 0) (void)options_set(OPTION_DHCP, "name", binding->host_name, name);
}

void net_address_taken(struct net_interface *interface, const struct dhcp_answer *binding) {
    bool is_new = interface->address != binding->address;
    if (active == NULL) choose(interface);
    interface->address = binding->address;
    interface->netmask = binding->netmask;
    interface->router = is_on_link(interface, binding->router) ? binding->router : 0;
    interface->mtu_bytes = usable_mtu(interface, binding->mtu_bytes);
    description.address = interface->address;
    description.netmask = interface->netmask;
    description.router = interface->router;
    description.dhcp_server = binding->server;
    description.next_server = binding->next_server;
    description.mtu_bytes = interface->mtu_bytes;
    description.lease_s = binding->lease_s;
    copy_bytes((uint8_t *)description.host_name, (const uint8_t *)binding->host_name,
               sizeof description.host_name);
    if (!is_new) return;
    interface->count.addresses_taken++;
    log_address("address", interface->address);
    klog("net: %s, MTU %u, lease %u s", description.host_name, interface->mtu_bytes,
         binding->lease_s);
    publish_settings(binding);
    arp_announce(interface);
}

void net_address_lost(struct net_interface *interface, const char *why) {
    if (interface->address == 0) return;
    klog("net: address lost: %s", why);
    interface->count.addresses_lost++;
    interface->address = interface->netmask = interface->router = 0;
    description.address = description.netmask = description.router = 0;
    arp_forget(interface);
}

/* ---- the round ------------------------------------------------------------------------------- */
static unsigned receive_burst(struct net_interface *interface) {
    struct nic *nic = interface->nic;
    struct nic_frame frame;
    unsigned seen = 0;
    for (; seen < NET_BURST_FRAMES_MAX && nic->receive(nic, &frame); seen++) {
        ethernet_receive(interface, frame.bytes, frame.size);
        nic->release(nic);
    }
    nic->refill(nic);
    return seen;
}

static void link_changed(struct net_interface *interface) {
    const struct nic *nic = interface->nic;
    if (!nic->link) {
        klog("net: %s link down", nic->driver);
        return;
    }
    klog("net: %s link up, %u Mbit/s", nic->driver, nic->link_mbps);
    if (interface->dhcp.state == DHCP_OFF && interface->address == 0)
        dhcp_start(interface);
    else
        dhcp_confirm(interface);
}

static bool tick(struct net_interface *interface) {
    struct nic *nic = interface->nic;
    bool before = nic->link;
    if (health_check(interface)) nic->poll_link(nic);
    bool first = interface->dhcp.state == DHCP_OFF && interface->address == 0 && nic->link;
    if (nic->link != before || first) link_changed(interface);
    return nic->link;
}

static bool is_live(const struct net_interface *interface) {
    return active == NULL || active == interface;
}

unsigned net_poll(net_udp_handler *handler) {
    uint64_t now = timer_now_ns();
    bool tick_now = now >= next_tick_ns, any_link = false;
    unsigned seen = 0;
    for (unsigned index = 0; index < interface_count; index++) {
        struct net_interface *interface = &interfaces[index];
        if (!is_live(interface)) continue;
        interface->now_ns = now;
        interface->handler = handler;
        interface->sending = NULL; /* a buffer lent before is lent no more */
        if (tick_now) any_link |= tick(interface);
        if (interface->nic->broken) continue;
        arp_ask_stale(interface);
        seen += receive_burst(interface);
        if (interface->nic->link) dhcp_tick(interface);
    }
    if (tick_now) next_tick_ns = now + (any_link ? TICK_NS : TICK_NO_LINK_NS);
    return seen;
}

uint64_t net_next_timer_ns(void) {
    uint64_t next = next_tick_ns;
    for (unsigned index = 0; index < interface_count; index++)
        if (is_live(&interfaces[index]) && interfaces[index].dhcp.state != DHCP_OFF &&
            interfaces[index].dhcp.next_ns < next)
            next = interfaces[index].dhcp.next_ns;
    return next;
}

/* ---- sending --------------------------------------------------------------------------------- */
static uint8_t no_network[NET_UDP_PAYLOAD_BYTES_MAX]; /* what is written here goes nowhere */

uint8_t *net_udp_buffer(void) { return active != NULL ? udp_payload(active) : no_network; }

bool net_udp_send(const struct net_peer *to, size_t bytes) {
    if (active == NULL) return false;
    if (active->address == 0 || active->nic->broken) {
        active->count.send_not_ready++;
        return false;
    }
    const uint8_t *mac = ipv4_route(active, to->address);
    if (mac == NULL) {
        active->count.send_unresolved++;
        return false;
    }
    return udp_send(active, mac, to->address, active->udp_port, to->port, bytes,
                    UDP_WITHOUT_CHECKSUM);
}

void net_flush(uint32_t wait_us_max) {
    if (active == NULL) return;
    uint64_t limit = timer_now_ns() + 1000ull * wait_us_max;
    while (active->nic->sending(active->nic) && timer_now_ns() < limit) {
    }
}

void net_stop(void) {
    for (unsigned index = 0; index < interface_count; index++) nics[index].stop(&nics[index]);
}

bool net_arm_wake(void) {
    net_stop();
    if (active == NULL) return false;
    struct nic *nic = active->nic;
    bool armed = nic->arm_wake != NULL;
    if (armed) {
        nic->arm_wake(nic);
        armed = pci_arm_wake(nic->device);
    }
    klog("net: Wake-on-LAN %s", armed ? "armed" : "is not possible with this NIC");
    return armed;
}

/* ---- telling --------------------------------------------------------------------------------- */
bool net_ready(void) { return active != NULL && active->address != 0 && !active->nic->broken; }

enum net_state net_get_state(void) {
    if (interface_count == 0) return NET_NO_NIC;
    if (net_ready()) return NET_READY;
    for (unsigned index = 0; index < interface_count; index++)
        if (is_live(&interfaces[index]) && nics[index].link) return NET_ASKING;
    return NET_LINK_DOWN;
}

const struct net_description *net_describe(void) {
    if (active != NULL) description.link_mbps = active->nic->link_mbps;
    return &description;
}

/* The counters of a stopped interface are of no interest: those of the one in use, or of the first.
 * */
const struct net_counters *net_count(void) {
    if (interface_count == 0) return &total;
    const struct net_interface *interface = active != NULL ? active : &interfaces[0];
    const struct nic_counters *nic = &interface->nic->count;
    total = interface->count;
    total.nic_descriptor_errors += nic->descriptor_errors;
    total.nic_oversized += nic->oversized;
    total.nic_runts += nic->runts;
    total.nic_missed += nic->missed;
    total.nic_bad_descriptors += nic->bad_descriptors;
    total.nic_resets += nic->resets;
    total.link_changes += nic->link_changes;
    return &total;
}
