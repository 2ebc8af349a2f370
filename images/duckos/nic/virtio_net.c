/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio-net over PCI, the modern interface. Sections are those of "Virtual I/O Device (VIRTIO)
 * Version 1.1".
 *
 * Who owns what (2.6): each queue has three parts. The driver writes the descriptor table and the
 * available ring, and only the driver moves available->index; the device writes the used ring, and
 * only the device moves used->index. A buffer belongs to the device from the moment its descriptor
 * stands behind available->index until the device puts it into the used ring.
 *
 * Descriptor i always points to buffer i. A received frame's buffer goes back to the device when
 * it is released; sent buffers wait in a stack of free descriptors.
 */
#include "console/console.h"
#include "memory/memory.h"
#include "nic/mmio.h"
#include "nic/nic.h"

#include <assert.h>

#define VENDOR_VIRTIO 0x1af4u
#define DEVICE_NET_TRANSITIONAL 0x1000u
#define DEVICE_NET_MODERN 0x1041u

/* 4.1.4: a vendor capability says where each register block lies. */
enum { BLOCK_COMMON = 1, BLOCK_NOTIFY = 2, BLOCK_DEVICE = 4 };
/* 4.1.4.3: the common block. */
enum {
    COMMON_DEVICE_FEATURE_SELECT = 0x00,
    COMMON_DEVICE_FEATURE = 0x04,
    COMMON_DRIVER_FEATURE_SELECT = 0x08,
    COMMON_DRIVER_FEATURE = 0x0c,
    COMMON_MSIX_CONFIG = 0x10,
    COMMON_STATUS = 0x14,
    COMMON_QUEUE_SELECT = 0x16,
    COMMON_QUEUE_SIZE = 0x18,
    COMMON_QUEUE_MSIX_VECTOR = 0x1a,
    COMMON_QUEUE_ENABLE = 0x1c,
    COMMON_QUEUE_NOTIFY_OFF = 0x1e,
    COMMON_QUEUE_DESCRIPTORS = 0x20,
    COMMON_QUEUE_AVAILABLE = 0x28,
    COMMON_QUEUE_USED = 0x30,
    COMMON_BYTES = 0x38,
};
/* 2.1 */
enum {
    STATUS_ACKNOWLEDGE = 1,
    STATUS_DRIVER = 2,
    STATUS_DRIVER_OK = 4,
    STATUS_FEATURES_OK = 8,
    STATUS_NEEDS_RESET = 64,
    STATUS_FAILED = 128,
};
/* 5.1.3 and 6 */
#define FEATURE_MTU (1ull << 3)
#define FEATURE_MAC (1ull << 5)
#define FEATURE_STATUS (1ull << 16)
#define FEATURE_VERSION_1 (1ull << 32)
/* 5.1.4: the device block. */
enum { DEVICE_MAC = 0, DEVICE_STATUS = 6, DEVICE_MTU = 10, DEVICE_BYTES = 12, LINK_UP = 1 };

#define NO_VECTOR 0xffffu
#define DESCRIPTOR_DEVICE_WRITES 2u
#define AVAILABLE_NO_INTERRUPT 1u
#define USED_NO_NOTIFY 1u

/* 5.1.6: with VERSION_1 the header always has num_buffers. All zero when sending. */
struct net_header {
    uint8_t flags, segmentation;
    uint16_t header_bytes, segment_bytes, checksum_start, checksum_offset, buffer_count;
};
static_assert(sizeof(struct net_header) == 12, "5.1.6");

struct descriptor { /* 2.6.5 */
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
};
static_assert(sizeof(struct descriptor) == 16, "2.6.5");

struct available { /* 2.6.6, driver to device */
    uint16_t flags, index;
    uint16_t ring[NIC_RING_COUNT_MAX];
};
static_assert(offsetof(struct available, ring) == 4, "2.6.6");

struct used { /* 2.6.8, device to driver */
    uint16_t flags, index;
    struct {
        uint32_t id, bytes;
    } ring[NIC_RING_COUNT_MAX];
};
static_assert(offsetof(struct used, ring) == 4, "2.6.8");

struct queue {
    struct descriptor *descriptors; /* written by the driver */
    struct available *available;    /* written by the driver */
    volatile struct used *used;     /* written by the device */
    volatile uint8_t *doorbell;
    uint8_t *buffers;
    uint16_t number, count;
    uint16_t available_index; /* of the next entry that we fill; published by publish() */
    uint16_t used_index;      /* of the next entry that we look at */
};

struct virtio {
    volatile uint8_t *common, *notify, *device;
    uint32_t notify_multiplier;
    uint64_t notify_bytes;
    uint64_t features;
    struct nic_memory memory;
    struct queue receive, send;
    uint16_t lent; /* the descriptor of the frame that is lent out */
    uint16_t released;
    uint16_t free_count, free[NIC_RING_COUNT_MAX]; /* send descriptors that are ours */
};

/* ---- registers ------------------------------------------------------------------------------- */
static volatile uint8_t *map_block(const struct pci_device *device, uint8_t type,
                                   uint32_t bytes_min, uint8_t *capability, uint64_t *bytes) {
    for (uint8_t at = 0; (at = pci_find_capability(device, PCI_CAPABILITY_VENDOR, at)) != 0;) {
        if (pci_read8(device, (uint16_t)(at + 3u)) != type) continue;
        uint8_t bar = pci_read8(device, (uint16_t)(at + 4u));
        uint32_t offset = pci_read32(device, (uint16_t)(at + 8u));
        uint32_t length = pci_read32(device, (uint16_t)(at + 12u));
        if (length < bytes_min) continue;
        volatile uint8_t *base = pci_map_bar(device, bar, (uint64_t)offset + length, NULL);
        if (base == NULL) continue; /* 4.1.4.1: take the first one that can be used */
        *capability = at;
        *bytes = length;
        return base + offset;
    }
    return NULL;
}

static enum nic_status map_registers(struct virtio *virtio, const struct pci_device *device) {
    uint8_t capability = 0;
    uint64_t bytes = 0;
    virtio->common = map_block(device, BLOCK_COMMON, COMMON_BYTES, &capability, &bytes);
    virtio->device = map_block(device, BLOCK_DEVICE, DEVICE_BYTES, &capability, &bytes);
    virtio->notify = map_block(device, BLOCK_NOTIFY, 2, &capability, &virtio->notify_bytes);
    if (virtio->common == NULL || virtio->device == NULL || virtio->notify == NULL)
        return NIC_NO_REGISTERS;
    virtio->notify_multiplier = pci_read32(device, (uint16_t)(capability + 16u)); /* 4.1.4.4 */
    return NIC_OK;
}

static void add_status(struct virtio *virtio, uint8_t bit) {
    mmio_write8(virtio->common + COMMON_STATUS,
                (uint8_t)(mmio_read8(virtio->common + COMMON_STATUS) | bit));
}

static uint64_t device_features(struct virtio *virtio) {
    mmio_write32(virtio->common + COMMON_DEVICE_FEATURE_SELECT, 0);
    uint64_t low = mmio_read32(virtio->common + COMMON_DEVICE_FEATURE);
    mmio_write32(virtio->common + COMMON_DEVICE_FEATURE_SELECT, 1);
    return low | (uint64_t)mmio_read32(virtio->common + COMMON_DEVICE_FEATURE) << 32;
}

/* 3.1.1 steps 4 to 6. */
static enum nic_status agree_on_features(struct virtio *virtio) {
    const uint64_t wanted = FEATURE_MTU | FEATURE_MAC | FEATURE_STATUS | FEATURE_VERSION_1;
    virtio->features = device_features(virtio) & wanted;
    if ((virtio->features & FEATURE_VERSION_1) == 0) return NIC_REFUSED;
    mmio_write32(virtio->common + COMMON_DRIVER_FEATURE_SELECT, 0);
    mmio_write32(virtio->common + COMMON_DRIVER_FEATURE, (uint32_t)virtio->features);
    mmio_write32(virtio->common + COMMON_DRIVER_FEATURE_SELECT, 1);
    mmio_write32(virtio->common + COMMON_DRIVER_FEATURE, (uint32_t)(virtio->features >> 32));
    add_status(virtio, STATUS_FEATURES_OK);
    bool kept = (mmio_read8(virtio->common + COMMON_STATUS) & STATUS_FEATURES_OK) != 0;
    return kept ? NIC_OK : NIC_REFUSED;
}

/* 4.1.4.3.1: zero resets; the reset is over when zero can be read back. */
static enum nic_status reset(struct virtio *virtio) {
    mmio_write8(virtio->common + COMMON_STATUS, 0);
    for (unsigned wait = 0; mmio_read8(virtio->common + COMMON_STATUS) != 0; wait++) {
        if (wait == NIC_RESET_LIMIT_US / 10) return NIC_NO_ANSWER;
        nic_pause_us(10);
    }
    return NIC_OK;
}

/* ---- queues ---------------------------------------------------------------------------------- */
static void write64(volatile uint8_t *at, const volatile void *memory) {
    uint64_t address = nic_dma(memory);
    mmio_write32(at, (uint32_t)address);
    mmio_write32(at + 4, (uint32_t)(address >> 32));
}

static void take_queue(struct queue *queue, uint32_t count, uint8_t *buffers) {
    queue->count = (uint16_t)count;
    queue->buffers = buffers;
    queue->descriptors = memory_take(count * sizeof *queue->descriptors, 16);
    queue->available = memory_take(sizeof *queue->available, 2);
    queue->used = memory_take(sizeof *queue->used, 4);
}

/* 4.1.5.1.3 */
static enum nic_status start_queue(struct virtio *virtio, struct queue *queue, uint16_t number) {
    volatile uint8_t *common = virtio->common;
    queue->number = number;
    mmio_write16(common + COMMON_QUEUE_SELECT, number);
    uint16_t most = mmio_read16(common + COMMON_QUEUE_SIZE);
    if (most == 0 || (most & (most - 1u)) != 0) return NIC_REFUSED;
    if (queue->count > most) queue->count = most;
    mmio_write16(common + COMMON_QUEUE_SIZE, queue->count);
    mmio_write16(common + COMMON_QUEUE_MSIX_VECTOR, NO_VECTOR);
    write64(common + COMMON_QUEUE_DESCRIPTORS, queue->descriptors);
    write64(common + COMMON_QUEUE_AVAILABLE, queue->available);
    write64(common + COMMON_QUEUE_USED, queue->used);
    uint64_t doorbell =
        (uint64_t)mmio_read16(common + COMMON_QUEUE_NOTIFY_OFF) * virtio->notify_multiplier;
    if (doorbell + 2 > virtio->notify_bytes) return NIC_REFUSED;
    queue->doorbell = virtio->notify + doorbell;
    queue->available->flags = AVAILABLE_NO_INTERRUPT;
    queue->available->index = queue->available_index = 0;
    queue->used->flags = queue->used->index = queue->used_index = 0;
    mmio_write16(common + COMMON_QUEUE_ENABLE, 1);
    return NIC_OK;
}

static void offer(struct queue *queue, uint16_t descriptor) {
    queue->available->ring[queue->available_index & (queue->count - 1u)] = descriptor;
    queue->available_index++;
}

/* From here on the offered buffers are the device's. */
static void publish(struct queue *queue) {
    ring_barrier(); /* entries before the index */
    *(volatile uint16_t *)&queue->available->index = queue->available_index;
    ring_full_barrier(); /* 2.6.13.4.1: the index before the device's wish is read */
    if ((queue->used->flags & USED_NO_NOTIFY) == 0) mmio_write16(queue->doorbell, queue->number);
}

static void fill_receive_queue(struct virtio *virtio) {
    struct queue *queue = &virtio->receive;
    for (uint16_t at = 0; at < queue->count; at++) {
        uint8_t *buffer = queue->buffers + (size_t)at * NIC_BUFFER_BYTES;
        queue->descriptors[at] = (struct descriptor){.address = nic_dma(buffer),
                                                     .bytes = NIC_BUFFER_BYTES,
                                                     .flags = DESCRIPTOR_DEVICE_WRITES};
        offer(queue, at);
    }
    virtio->released = 0;
}

static void fill_send_queue(struct virtio *virtio) {
    struct queue *queue = &virtio->send;
    virtio->free_count = queue->count;
    for (uint16_t at = 0; at < queue->count; at++) {
        uint8_t *buffer = queue->buffers + (size_t)at * NIC_BUFFER_BYTES;
        *(struct net_header *)buffer = (struct net_header){0};
        queue->descriptors[at] = (struct descriptor){.address = nic_dma(buffer)};
        virtio->free[at] = at;
    }
}

/* Take the next used entry. False: none, or the device wrote nonsense and must be reset. */
static bool take_used(struct nic *nic, struct queue *queue, uint16_t *id, uint32_t *bytes) {
    if (nic->broken || queue->used->index == queue->used_index) return false;
    ring_barrier(); /* the index before the entry */
    uint32_t at = queue->used_index & (queue->count - 1u);
    uint32_t found = queue->used->ring[at].id;
    *bytes = queue->used->ring[at].bytes;
    if (found >= queue->count || *bytes > NIC_BUFFER_BYTES) {
        nic->count.bad_descriptors++;
        nic->broken = true;
        return false;
    }
    queue->used_index++;
    *id = (uint16_t)found;
    return true;
}

/* ---- the driver's functions ------------------------------------------------------------------ */
static void read_settings(struct nic *nic, struct virtio *virtio) {
    if ((virtio->features & FEATURE_MAC) != 0)
        for (unsigned at = 0; at < 6; at++)
            nic->mac[at] = mmio_read8(virtio->device + DEVICE_MAC + at);
    nic->mtu_bytes_max = NIC_MTU_JUMBO;
    if ((virtio->features & FEATURE_MTU) == 0) return;
    uint32_t mtu = mmio_read16(virtio->device + DEVICE_MTU);
    nic->mtu_bytes_default = mtu < NIC_MTU_JUMBO ? mtu : NIC_MTU_JUMBO;
}

static void virtio_poll_link(struct nic *nic) {
    struct virtio *virtio = nic->state;
    uint8_t status = mmio_read8(virtio->common + COMMON_STATUS);
    if ((status & STATUS_NEEDS_RESET) != 0 || (status & STATUS_DRIVER_OK) == 0) nic->broken = true;
    bool up = (virtio->features & FEATURE_STATUS) == 0 ||
              (mmio_read16(virtio->device + DEVICE_STATUS) & LINK_UP) != 0;
    nic_set_link(nic, up, 10000); /* a queue in memory; 10 Gbit/s is what hypervisors report */
}

/* 3.1.1 */
static enum nic_status virtio_start(struct nic *nic) {
    struct virtio *virtio = nic->state;
    enum nic_status status = reset(virtio);
    if (status != NIC_OK) return status;
    add_status(virtio, STATUS_ACKNOWLEDGE);
    add_status(virtio, STATUS_DRIVER);
    status = agree_on_features(virtio);
    mmio_write16(virtio->common + COMMON_MSIX_CONFIG, NO_VECTOR);
    if (status == NIC_OK) status = start_queue(virtio, &virtio->receive, 0);
    if (status == NIC_OK) status = start_queue(virtio, &virtio->send, 1);
    read_settings(nic, virtio);
    if (status == NIC_OK && !nic_mac_is_valid(nic->mac)) status = NIC_NO_ADDRESS;
    if (status != NIC_OK) {
        add_status(virtio, STATUS_FAILED);
        return status;
    }
    fill_receive_queue(virtio);
    fill_send_queue(virtio);
    pci_bus_master_on(nic->device);
    add_status(virtio, STATUS_DRIVER_OK);
    nic->broken = false;
    publish(&virtio->receive);
    virtio_poll_link(nic);
    return NIC_OK;
}

static void virtio_stop(struct nic *nic) {
    struct virtio *virtio = nic->state;
    (void)reset(virtio); /* without bus mastering it could not write any more either */
    pci_take_over(nic->device);
    nic->broken = true;
}

static bool virtio_receive(struct nic *nic, struct nic_frame *frame) {
    struct virtio *virtio = nic->state;
    uint32_t bytes;
    while (take_used(nic, &virtio->receive, &virtio->lent, &bytes)) {
        uint8_t *buffer = virtio->receive.buffers + (size_t)virtio->lent * NIC_BUFFER_BYTES;
        if (bytes >= sizeof(struct net_header) + NIC_HEADER_BYTES) {
            frame->bytes = buffer + sizeof(struct net_header);
            frame->size = bytes - sizeof(struct net_header);
            return true;
        }
        nic->count.runts++;
        nic->release(nic);
    }
    return false;
}

static void virtio_refill(struct nic *nic) {
    struct virtio *virtio = nic->state;
    if (virtio->released == 0 || nic->broken) return;
    virtio->released = 0;
    publish(&virtio->receive);
}

static void virtio_release(struct nic *nic) {
    struct virtio *virtio = nic->state;
    offer(&virtio->receive, virtio->lent);
    if (++virtio->released >= NIC_REFILL_FRAMES) virtio_refill(nic);
}

static void reclaim(struct nic *nic) {
    struct virtio *virtio = nic->state;
    uint16_t id;
    uint32_t bytes;
    while (take_used(nic, &virtio->send, &id, &bytes)) {
        if (virtio->free_count == virtio->send.count) { /* it gave back what it did not have */
            nic->count.bad_descriptors++;
            nic->broken = true;
            return;
        }
        virtio->free[virtio->free_count++] = id;
        nic->count.completed++;
    }
}

static uint8_t *virtio_send_buffer(struct nic *nic) {
    struct virtio *virtio = nic->state;
    reclaim(nic);
    if (virtio->free_count == 0 || nic->broken) {
        nic->count.ring_full++;
        return NULL;
    }
    uint16_t id = virtio->free[virtio->free_count - 1u];
    return virtio->send.buffers + (size_t)id * NIC_BUFFER_BYTES + sizeof(struct net_header);
}

static void virtio_send(struct nic *nic, size_t bytes) {
    struct virtio *virtio = nic->state;
    uint16_t id = virtio->free[--virtio->free_count];
    virtio->send.descriptors[id].bytes = (uint32_t)(sizeof(struct net_header) + bytes);
    offer(&virtio->send, id);
    publish(&virtio->send);
}

static bool virtio_sending(struct nic *nic) {
    struct virtio *virtio = nic->state;
    reclaim(nic);
    return !nic->broken && virtio->free_count != virtio->send.count;
}

enum nic_status virtio_net_probe(struct nic *nic, const struct pci_device *device) {
    if (device->vendor_id != VENDOR_VIRTIO) return NIC_OTHER_DEVICE;
    if (device->device_id != DEVICE_NET_MODERN && device->device_id != DEVICE_NET_TRANSITIONAL)
        return NIC_OTHER_DEVICE;
    pci_take_over(device);
    struct virtio *virtio = memory_take(sizeof *virtio, 64);
    enum nic_status status = map_registers(virtio, device);
    if (status != NIC_OK) return status;
    nic_take_buffers(&virtio->memory);
    take_queue(&virtio->receive, virtio->memory.receive_count, virtio->memory.receive_buffers);
    take_queue(&virtio->send, virtio->memory.send_count, virtio->memory.send_buffers);
    nic->state = virtio;
    nic_set_name(nic->driver, "virtio-net");
    nic_set_name(nic->model, "virtio 1");
    nic->start = virtio_start;
    nic->stop = virtio_stop;
    nic->poll_link = virtio_poll_link;
    nic->receive = virtio_receive;
    nic->release = virtio_release;
    nic->refill = virtio_refill;
    nic->send_buffer = virtio_send_buffer;
    nic->send = virtio_send;
    nic->sending = virtio_sending;
    return NIC_OK;
}
