/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding NICs, and what their drivers share.
 */
#include "nic/nic.h"

#include "console/console.h"
#include "memory/memory.h"
#include "nic/mmio.h"
#include "time/timer.h"

#define ARENA_PLENTY (24ull << 20)
#define ARENA_SOME (12ull << 20)
#define ARENA_ONE_NIC (2ull << 20) /* the smallest rings: 160 buffers and descriptors */

const char *nic_status_text(enum nic_status status) {
    switch (status) {
    case NIC_OK: return "works";
    case NIC_OTHER_DEVICE: return "no driver knows this device";
    case NIC_NO_REGISTERS: return "its registers are not mapped by the firmware";
    case NIC_NO_ANSWER: return "it does not answer, or its reset does not end";
    case NIC_NO_ADDRESS: return "it has no valid MAC address (NVM broken?)";
    case NIC_REFUSED: return "it refuses what the driver needs";
    case NIC_TOO_MANY: return "it is not looked at: too many NICs";
    case NIC_NO_MEMORY: return "it is not looked at: too little memory for its rings";
    }
    return "?";
}

const struct nic_model *nic_find_model(const struct nic_model *models, uint16_t device_id) {
    for (; models->device_id != 0; models++)
        if (models->device_id == device_id) return models;
    return NULL;
}

void nic_set_name(char to[16], const char *name) {
    size_t at = 0;
    while (at < 15 && name[at] != 0) {
        to[at] = name[at];
        at++;
    }
    to[at] = 0;
}

void nic_take_buffers(struct nic_memory *memory) {
    uint64_t left = memory_arena_left();
    memory->receive_count = left >= ARENA_PLENTY ? NIC_RING_COUNT_MAX
                            : left >= ARENA_SOME ? 256
                                                 : 128;
    memory->send_count = memory->receive_count / 4;
    memory->receive_buffers = memory_take((size_t)memory->receive_count * NIC_BUFFER_BYTES, 4096);
    memory->send_buffers = memory_take((size_t)memory->send_count * NIC_BUFFER_BYTES, 4096);
}

bool nic_mac_is_valid(const uint8_t mac[6]) {
    uint8_t any = 0;
    for (unsigned at = 0; at < 6; at++) any |= mac[at];
    return any != 0 && (mac[0] & 1u) == 0;
}

bool nic_wait32(const volatile void *at, uint32_t mask, uint32_t expected, uint32_t limit_us) {
    uint64_t limit = timer_now_ns() + 1000ull * limit_us;
    while ((mmio_read32(at) & mask) != expected)
        if (timer_now_ns() >= limit) return false;
    return true;
}

void nic_pause_us(uint32_t us) { timer_wait_ns(1000ull * us); }

void nic_set_link(struct nic *nic, bool up, uint32_t mbps) {
    if (nic->link != up) nic->count.link_changes++;
    nic->link = up;
    nic->link_mbps = up ? mbps : 0;
}

static enum nic_status probe(struct nic *nic, const struct pci_device *device) {
    enum nic_status status = virtio_net_probe(nic, device);
    if (status == NIC_OTHER_DEVICE) status = e1000e_probe(nic, device);
    if (status == NIC_OTHER_DEVICE) status = igb_probe(nic, device);
    if (status == NIC_OTHER_DEVICE) status = igc_probe(nic, device);
    if (status == NIC_OTHER_DEVICE) status = r8169_probe(nic, device);
    return status;
}

static void say_what_it_is(const struct nic *nic) {
    const struct pci_device *device = nic->device;
    const uint8_t *mac = nic->mac;
    klog("nic %02x:%02x.%x: %s %s, %02x:%02x:%02x:%02x:%02x:%02x%s", device->bus, device->slot,
         device->function, nic->driver, nic->model, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5],
         nic->unproven ? " (not yet seen on silicon)" : "");
}

static void say_why_not(const struct pci_device *device, enum nic_status status) {
    klog("nic %02x:%02x.%x: %04x:%04x %s", device->bus, device->slot, device->function,
         device->vendor_id, device->device_id, nic_status_text(status));
}

/* False: it will never work. One that may only be slow to start stays, and is started again later.
 * */
static bool try_to_start(struct nic *nic) {
    enum nic_status status = probe(nic, nic->device);
    bool was_found = status == NIC_OK;
    if (was_found) status = nic->start(nic);
    if (status == NIC_OK) {
        say_what_it_is(nic);
        return true;
    }
    say_why_not(nic->device, status);
    nic->broken = true;
    return was_found && status != NIC_NO_ADDRESS;
}

static enum nic_status room_for_one_more(unsigned count) {
    if (count == NIC_COUNT_MAX) return NIC_TOO_MANY;
    return memory_arena_left() < ARENA_ONE_NIC ? NIC_NO_MEMORY : NIC_OK;
}

unsigned nic_find(struct nic nics[NIC_COUNT_MAX]) {
    unsigned count = 0;
    for (unsigned index = 0; index < pci_count(); index++) {
        const struct pci_device *device = pci_at(index);
        if (device->class_code != PCI_CLASS_ETHERNET) continue;
        enum nic_status room = room_for_one_more(count);
        if (room != NIC_OK) {
            say_why_not(device, room);
            continue;
        }
        nics[count] = (struct nic){.device = device};
        if (try_to_start(&nics[count])) count++;
    }
    return count;
}
