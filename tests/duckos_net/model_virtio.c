/* SPDX-License-Identifier: Apache-2.0
 *
 * virtio-net, modern interface, two queues.
 */
#include "model.h"

enum { COMMON = 0x0000, NOTIFY = 0x3000, DEVICE = 0x2000, WINDOW = 0x4000, QUEUE_SIZE = 256 };
enum { WRITES = 2 };

struct queue {
    uint16_t size, enabled, taken; /* available entries that the device has taken */
    uint64_t descriptors, available, used;
    bool off; /* never becomes ready: size 0 */
};

struct virtio {
    struct model *model;
    uint32_t device_select, driver_select, driver_features[2];
    uint16_t queue_select, config_vector;
    uint8_t status;
    struct queue queue[2];
};

struct descriptor {
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
};

static uint16_t load16_at(struct virtio *virtio, uint64_t address) {
    uint16_t value;
    memcpy(&value, machine_dma(virtio->model->device, address), 2);
    return value;
}

static struct descriptor descriptor_at(struct virtio *virtio, struct queue *queue, uint16_t id) {
    struct descriptor found;
    CHECK(id < queue->size);
    memcpy(&found, machine_dma(virtio->model->device, queue->descriptors + 16u * id), 16);
    return found;
}

/* The next available descriptor's number, or -1. */
static int take_available(struct virtio *virtio, struct queue *queue) {
    uint16_t index = load16_at(virtio, queue->available + 2);
    uint16_t waiting = (uint16_t)(index - queue->taken);
    CHECK(waiting <= queue->size); /* never more than the queue holds */
    if (waiting == 0) return -1;
    return load16_at(virtio, queue->available + 4 + 2u * (queue->taken++ % queue->size));
}

static void give_used(struct virtio *virtio, struct queue *queue, uint32_t id, uint32_t bytes) {
    uint8_t *used = machine_dma(virtio->model->device, queue->used);
    uint16_t index;
    memcpy(&index, used + 2, 2);
    memcpy(used + 4 + 8u * (index % queue->size), &id, 4);
    memcpy(used + 8 + 8u * (index % queue->size), &bytes, 4);
    index++;
    memcpy(used + 2, &index, 2);
}

static void run(struct model *model) {
    struct virtio *virtio = model->own;
    struct queue *queue = &virtio->queue[1];
    if (!queue->enabled || model->hold_sends || (virtio->status & 4) == 0) return;
    for (int id; (id = take_available(virtio, queue)) >= 0;) {
        struct descriptor found = descriptor_at(virtio, queue, (uint16_t)id);
        CHECK_EQUAL(0, found.flags);
        const uint8_t *bytes = machine_dma(model->device, found.address);
        for (unsigned at = 0; at < 12; at++) CHECK_EQUAL(0, bytes[at]); /* the header */
        model_sent(model, bytes + 12, found.bytes - 12);
        give_used(virtio, queue, (uint32_t)id, 0);
    }
}

static bool inject(struct model *model, const uint8_t *frame, size_t size, enum damage damage) {
    struct virtio *virtio = model->own;
    struct queue *queue = &virtio->queue[0];
    if (!queue->enabled || (virtio->status & 4) == 0 || !model->link) return false;
    int id = take_available(virtio, queue);
    if (id < 0) return false;
    struct descriptor found = descriptor_at(virtio, queue, (uint16_t)id);
    CHECK_EQUAL(WRITES, found.flags);
    if (damage == TOO_LONG) { /* QEMU drops what does not fit a buffer: the buffer stays */
        queue->taken--;
        return false;
    }
    CHECK(size + 12 <= found.bytes);
    uint8_t *bytes = machine_dma(model->device, found.address);
    memset(bytes, 0, 12);
    bytes[10] = 1;
    memcpy(bytes + 12, frame, size);
    give_used(virtio, queue, damage == WILD_LENGTH ? 0x10000u + (uint32_t)id : (uint32_t)id,
              (uint32_t)size + 12);
    return true;
}

/* ---- registers ------------------------------------------------------------------------------- */
static uint32_t device_features(const struct virtio *virtio) {
    return virtio->device_select == 1 ? 1u : 1u << 3 | 1u << 5 | 1u << 15 | 1u << 16 | 1u << 22;
}

static uint32_t read_common(struct virtio *virtio, uint32_t offset) {
    struct queue *queue = &virtio->queue[virtio->queue_select & 1];
    switch (offset) {
    case 0x04: return device_features(virtio);
    case 0x12: return 2;
    case 0x14: return virtio->model->stuck_reset ? 0x0f : virtio->status;
    case 0x18: return virtio->model->refuse_queue ? 0 : queue->size;
    case 0x1c: return queue->enabled;
    case 0x1e: return virtio->queue_select;
    default: return 0;
    }
}

static uint32_t read_device(struct virtio *virtio, uint32_t offset) {
    if (offset < 6) return virtio->model->no_address ? 0 : model_mac[offset];
    if (offset == 6) return virtio->model->link ? 1 : 0;
    if (offset == 10) return 9000;
    return 0;
}

static uint32_t read_it(void *context, uint32_t offset, unsigned bytes) {
    (void)bytes;
    if (offset >= DEVICE) return read_device(context, offset - DEVICE);
    return read_common(context, offset);
}

static void reset(struct virtio *virtio) {
    for (unsigned at = 0; at < 2; at++) virtio->queue[at] = (struct queue){.size = QUEUE_SIZE};
    virtio->driver_features[0] = virtio->driver_features[1] = 0;
    virtio->model->reset_count++;
}

static void write_status(struct virtio *virtio, uint8_t value) {
    if (value == 0) {
        reset(virtio);
    } else {
        CHECK((value & virtio->status) == virtio->status); /* bits are only added */
    }
    if ((value & 8) != 0) CHECK_EQUAL(1, virtio->driver_features[1]);
    /* Offload, mergeable buffers and indirect descriptors were not asked for. */
    if ((value & 8) != 0)
        CHECK_EQUAL(0, virtio->driver_features[0] & ~(1u << 3 | 1u << 5 | 1u << 16));
    virtio->status = value;
}

static void write_half(uint64_t *to, bool high, uint32_t value) {
    *to = high ? (*to & 0xffffffffu) | (uint64_t)value << 32 : (*to & ~0xffffffffull) | value;
}

static void write_common(struct virtio *virtio, uint32_t offset, uint32_t value) {
    struct queue *queue = &virtio->queue[virtio->queue_select & 1];
    switch (offset) {
    case 0x00: virtio->device_select = value; break;
    case 0x08: virtio->driver_select = value; break;
    case 0x0c: virtio->driver_features[virtio->driver_select & 1] = value; break;
    case 0x10: virtio->config_vector = (uint16_t)value; break;
    case 0x14: write_status(virtio, (uint8_t)value); break;
    case 0x16: virtio->queue_select = (uint16_t)value; break;
    case 0x18:
        CHECK(value != 0 && (value & (value - 1)) == 0 && value <= QUEUE_SIZE);
        queue->size = (uint16_t)value;
        break;
    case 0x1a: CHECK_EQUAL(0xffff, value); break; /* no interrupt */
    case 0x1c:
        CHECK((virtio->status & 4) == 0); /* queues before DRIVER_OK */
        queue->enabled = (uint16_t)value;
        queue->taken = 0;
        break;
    case 0x20:
    case 0x24: write_half(&queue->descriptors, offset == 0x24, value); break;
    case 0x28:
    case 0x2c: write_half(&queue->available, offset == 0x2c, value); break;
    case 0x30:
    case 0x34: write_half(&queue->used, offset == 0x34, value); break;
    default: CHECK(!"a register that does not exist");
    }
}

static void write_it(void *context, uint32_t offset, unsigned bytes, uint32_t value) {
    struct virtio *virtio = context;
    (void)bytes;
    if (offset >= NOTIFY) {
        CHECK_EQUAL(NOTIFY + 4u * value, offset);
        CHECK((virtio->status & 4) != 0);
        if (value == 1) run(virtio->model);
        return;
    }
    CHECK(offset < DEVICE);
    write_common(virtio, offset, value);
}

static void add_block(struct machine_device *device, uint8_t at, uint8_t type, uint32_t offset,
                      uint32_t length) {
    machine_capability(device, at, PCI_CAPABILITY_VENDOR);
    device->config[at + 2] = 20;
    device->config[at + 3] = type;
    device->config[at + 4] = 4; /* BAR */
    memcpy(device->config + at + 8, &offset, 4);
    memcpy(device->config + at + 12, &length, 4);
}

static bool never(void) { return false; }
static bool saves_energy(struct model *model) { return model == NULL; }

void model_virtio(struct model *model, uint8_t slot) {
    struct virtio *virtio = calloc(1, sizeof *virtio);
    *model = (struct model){.name = "virtio-net", .link = true, .mbps = 10000, .own = virtio};
    virtio->model = model;
    reset(virtio);
    model->device = machine_plug(0, slot, 0, 0x1af4, 0x1000, 0x0200);
    const uint32_t multiplier = 4;
    add_block(model->device, 0x40, 1, COMMON, 0x38);
    add_block(model->device, 0x54, 4, DEVICE, 0x1000);
    add_block(model->device, 0x68, 2, NOTIFY, 0x1000);
    memcpy(model->device->config + 0x68 + 16, &multiplier, 4);
    machine_registers(model->device, 4, WINDOW, true);
    set_config16(model->device, 4, 6);
    model->device->context = virtio;
    model->device->read = read_it;
    model->device->write = write_it;
    model->inject = inject;
    model->run = run;
    model->counts_missed = never; /* the device has no such counter */
    model->saves_energy = model->offers_2500 = saves_energy;
    model->probe = virtio_net_probe;
}
