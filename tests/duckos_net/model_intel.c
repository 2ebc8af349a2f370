/* SPDX-License-Identifier: Apache-2.0
 *
 * 82574L and I219 (legacy descriptors), I210 and I226 (advanced descriptors).
 */
#include "model.h"

#define WORDS (0x20000u / 4u)
#define RING_MAX 4096u

enum { CTRL = 0x0, STATUS = 0x8, EECD = 0x10, MDIC = 0x20, RCTL = 0x100, TCTL = 0x400 };
enum { SWSM = 0x5b50, SYNC = 0x5b5c, EEER = 0xe30, OWNER = 0xf00, MPC = 0x4010 };

struct intel {
    struct model *model;
    uint32_t reg[WORDS];
    bool advanced, is_2500;
    uint32_t rx, tx; /* base of the queue's registers */
    uint16_t phy[32], mmd_select, mmd_control, eee_offer, multi_gigabit;
    uint64_t phy_ready_ns;
    uint8_t given[RING_MAX]
                 [16]; /* what the driver handed over, to see that it keeps its hands off */
};
enum {
    BASE_LOW = 0x0,
    BASE_HIGH = 0x4,
    BYTES = 0x8,
    SPLIT = 0xc,
    HEAD = 0x10,
    TAIL = 0x18,
    CONTROL = 0x28
};

static uint32_t *at(struct intel *intel, uint32_t offset) { return &intel->reg[offset / 4]; }

static void load_nvm(struct intel *intel) {
    uint32_t low, high;
    memcpy(&low, model_mac, 4);
    high = (uint32_t)(model_mac[4] | model_mac[5] << 8) | 0x80000000u;
    *at(intel, 0x5400) = intel->model->no_address ? 0 : low;
    *at(intel, 0x5404) = intel->model->no_address ? 0 : high;
    *at(intel, EECD) = 1u << 9;
}

static void reset(struct intel *intel) {
    uint32_t negotiated = *at(intel, EEER) & 1u << 29;
    memset(intel->reg, 0, sizeof intel->reg);
    load_nvm(intel);
    *at(intel, EEER) = 3u << 16 | negotiated; /* energy saving is on after a reset */
    *at(intel, 0x0e38) = intel->is_2500 ? 0x1c : 0x0c;
    *at(intel, 0x2508) = 1u << 31;
    intel->model->reset_count++;
}

static uint8_t *ring(struct intel *intel, uint32_t queue) {
    uint64_t base = *at(intel, queue + BASE_LOW) | (uint64_t)*at(intel, queue + BASE_HIGH) << 32;
    CHECK(base % 128 == 0);
    return machine_dma(intel->model->device, base);
}

static uint32_t count_of(struct intel *intel, uint32_t queue) {
    uint32_t bytes = *at(intel, queue + BYTES);
    CHECK(bytes % 128 == 0 && bytes / 16 <= RING_MAX);
    return bytes / 16;
}

static bool queue_on(struct intel *intel, uint32_t queue) {
    return !intel->advanced || (*at(intel, queue + CONTROL) & 1u << 25) != 0;
}

/* ---- PHY ------------------------------------------------------------------------------------- */
static uint16_t *phy_at(struct intel *intel, uint32_t number) {
    if (number != 14 || (intel->mmd_control >> 14) != 1) return &intel->phy[number];
    bool negotiation = (intel->mmd_control & 31) == 7;
    CHECK(negotiation && (intel->mmd_select == 60 || intel->mmd_select == 32));
    return intel->mmd_select == 60 ? &intel->eee_offer : &intel->multi_gigabit;
}

static void mdic(struct intel *intel, uint32_t command) {
    uint32_t number = command >> 16 & 31, operation = command >> 26 & 3;
    uint16_t value = (uint16_t)command;
    /* The PHY was claimed: by the semaphore, or in the register of the chipset's controllers. */
    CHECK((*at(intel, intel->advanced ? SYNC : OWNER) & (intel->advanced ? 2 : 32)) != 0);
    if (operation == 1 && number == 13)
        intel->mmd_control = value;
    else if (operation == 1 && number == 14 && (intel->mmd_control >> 14) == 0)
        intel->mmd_select = value;
    else if (operation == 1)
        *phy_at(intel, number) = value;
    if (operation == 1 && number == 0 && (value & 0x200) != 0) intel->model->negotiations++;
    if (operation == 1 && number == 0 && (value & 0x800) == 0) intel->model->phy_is_down = false;
    if (number == 0 && intel->model->phy_is_down) intel->phy[0] |= 0x800;
    uint16_t answer = operation == 2 ? *phy_at(intel, number) : value;
    *at(intel, MDIC) = (command & 0x03ff0000u) | answer | 1u << 28;
    intel->phy_ready_ns = machine_now_ns() + intel->model->phy_answers_ns;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void send_one(struct intel *intel, uint8_t *descriptor) {
    uint64_t buffer;
    uint32_t word2, word3;
    memcpy(&buffer, descriptor, 8);
    memcpy(&word2, descriptor + 8, 4);
    memcpy(&word3, descriptor + 12, 4);
    uint32_t size = word2 & 0xffff;
    if (intel->advanced) {
        CHECK_EQUAL(0x2b300000u, word2 & 0xffff0000u); /* EOP, IFCS, RS, DEXT, data */
        CHECK_EQUAL(size, word3 >> 14);
        CHECK_EQUAL(0, word3 & 1);
        memset(descriptor, 0xee, 12); /* the write-back leaves nothing of the address */
        descriptor[12] = 1;
    } else {
        CHECK_EQUAL(0x0b, descriptor[11]); /* EOP, IFCS, RS */
        CHECK_EQUAL(0, descriptor[12] & 1);
        descriptor[12] = 1;
    }
    model_sent(intel->model, machine_dma(intel->model->device, buffer), size);
}

static void run(struct model *model) {
    struct intel *intel = model->own;
    if ((*at(intel, TCTL) & 2) == 0 || !model->link || model->hold_sends) return;
    uint32_t *head = at(intel, intel->tx + HEAD), tail = *at(intel, intel->tx + TAIL);
    if (*head == tail || !queue_on(intel, intel->tx)) return;
    while (*head != tail) {
        send_one(intel, ring(intel, intel->tx) + 16 * *head);
        *head = (*head + 1) % count_of(intel, intel->tx);
    }
}

/* ---- reception ------------------------------------------------------------------------------- */
static void remember_given(struct intel *intel, uint32_t new_tail) {
    uint32_t *tail = at(intel, intel->rx + TAIL), count = count_of(intel, intel->rx);
    CHECK(count == 0 ? new_tail == 0 : new_tail < count);
    if (new_tail == *tail) return; /* also before bus mastering is on */
    uint8_t *base = ring(intel, intel->rx);
    for (; *tail != new_tail; *tail = (*tail + 1) % count)
        memcpy(intel->given[*tail], base + 16 * *tail, 16);
}

static void write_back(struct intel *intel, uint8_t *descriptor, uint32_t size, bool last,
                       enum damage damage) {
    uint16_t length = damage == WILD_LENGTH ? 0xffff : (uint16_t)size;
    if (intel->advanced) {
        uint32_t status = 1u | (last ? 2u : 0u) | (damage == CRC_ERROR ? 1u << 31 : 0u);
        memset(descriptor, 0, 16);
        memcpy(descriptor + 8, &status, 4);
        memcpy(descriptor + 12, &length, 2);
    } else {
        memcpy(descriptor + 8, &length, 2);
        descriptor[12] = (uint8_t)(1u | (last ? 2u : 0u));
        descriptor[13] = damage == CRC_ERROR ? 1 : 0;
    }
}

static uint32_t buffer_bytes(struct intel *intel) {
    if (intel->advanced) return (*at(intel, intel->rx + SPLIT) & 0x7f) << 10;
    uint32_t flexible = *at(intel, RCTL) >> 27 & 15;
    return flexible != 0 ? flexible << 10 : 2048;
}

static bool passes(struct intel *intel, const uint8_t *frame, size_t size) {
    static const uint8_t everyone[6] = {255, 255, 255, 255, 255, 255};
    bool jumbo = (*at(intel, RCTL) & 1u << 5) != 0;
    uint8_t mac[6];
    memcpy(mac, at(intel, 0x5400), 4);
    memcpy(mac + 4, at(intel, 0x5404), 2);
    if (size > 1518 && !jumbo) return false;
    return memcmp(frame, mac, 6) == 0 || memcmp(frame, everyone, 6) == 0;
}

static bool inject(struct model *model, const uint8_t *frame, size_t size, enum damage damage) {
    struct intel *intel = model->own;
    bool on = (*at(intel, RCTL) & 2) != 0 && queue_on(intel, intel->rx);
    if (!on || !model->link || !passes(intel, frame, size)) return false;
    uint32_t count = count_of(intel, intel->rx), *head = at(intel, intel->rx + HEAD);
    for (size_t done = 0; done < size;) {
        if (*head == *at(intel, intel->rx + TAIL)) {
            model->missed++;
            ++*at(intel, MPC);
            return false;
        }
        uint8_t *descriptor = ring(intel, intel->rx) + 16 * *head;
        CHECK(memcmp(descriptor, intel->given[*head], 16) == 0); /* the driver kept off it */
        uint64_t buffer;
        memcpy(&buffer, descriptor, 8);
        size_t part = size - done < buffer_bytes(intel) ? size - done : buffer_bytes(intel);
        memcpy(machine_dma(model->device, buffer), frame + done, part);
        done += part;
        write_back(intel, descriptor, (uint32_t)part, done == size, damage);
        *head = (*head + 1) % count;
    }
    return true;
}

/* ---- registers ------------------------------------------------------------------------------- */
static uint32_t status_of(const struct intel *intel) {
    const struct model *model = intel->model;
    uint32_t value = (intel->reg[CTRL / 4] & 4) != 0 ? 0 : 1u << 19;
    if (model->phy_was_reset) value |= 1u << 10;
    if (!model->link) return value;
    uint32_t speed = model->mbps >= 1000 ? 2 : model->mbps == 100 ? 1 : 0;
    return value | 2u | speed << 6 | (model->mbps == 2500 ? 1u << 22 : 0);
}

static uint32_t read_it(void *context, uint32_t offset, unsigned bytes) {
    struct intel *intel = context;
    CHECK(bytes == 4 && offset % 4 == 0);
    uint32_t value = *at(intel, offset);
    if (offset == STATUS) return status_of(intel);
    if (offset == MDIC && machine_now_ns() < intel->phy_ready_ns) {
        machine_sleep_ns(10000); /* so that a wait takes few looks */
        return value & ~(1u << 28);
    }
    if (offset == SWSM) *at(intel, SWSM) |= 1; /* reading takes it */
    if (offset == MPC || offset == 0x40a0 || offset == 0x4000) *at(intel, offset) = 0;
    return value;
}

static void write_ctrl(struct intel *intel, uint32_t value) {
    CHECK((value & 1u << 29) == 0); /* "device reset": not everything is as after power-on */
    if ((value & 1u << 26) != 0) {
        CHECK((*at(intel, RCTL) & 2) == 0); /* quiet before a reset */
        CHECK((*at(intel, CTRL) & 4) != 0); /* and no bus transaction cut */
        reset(intel);
        *at(intel, CTRL) = intel->model->stuck_reset ? value : 0;
        return;
    }
    *at(intel, CTRL) = value;
}

static void write_it(void *context, uint32_t offset, unsigned bytes, uint32_t value) {
    struct intel *intel = context;
    CHECK(bytes == 4 && offset % 4 == 0);
    CHECK(offset != 0xd0 && offset != 0x1508 && offset != 0x1524); /* no interrupt is enabled */
    if (offset == CTRL) {
        write_ctrl(intel, value);
    } else if (offset == STATUS) {
        intel->model->phy_was_reset &= (value & 1u << 10) != 0;
    } else if (offset == MDIC) {
        mdic(intel, value);
    } else if (offset == intel->rx + TAIL) {
        CHECK((*at(intel, RCTL) & 2) != 0 || value == 0);
        remember_given(intel, value);
    } else if (offset == intel->rx + CONTROL || offset == intel->tx + CONTROL) {
        *at(intel, offset) = intel->model->refuse_queue ? value & ~(1u << 25) : value;
    } else {
        *at(intel, offset) = value;
    }
    if (offset == intel->tx + TAIL) run(intel->model);
}

static bool always(void) { return true; }

static bool saves_energy(struct model *model) {
    struct intel *intel = model->own;
    if (!intel->advanced) return (intel->phy[20] & 3 << 13) != 0;
    return (*at(intel, EEER) & 3u << 16) != 0 || (*at(intel, 0x0e38) & 0x1c) != 0 ||
           (*at(intel, 0x2508) & 1u << 31) != 0;
}
static bool wakes(struct model *model) {
    struct intel *intel = model->own;
    bool pci = (config16(model->device, 0x64) & 0x103) == 0x103; /* PME enabled, D3 */
    return pci && (*at(intel, 0x5800) & 3) == 3 && *at(intel, 0x5808) == 2 &&
           (*at(intel, CTRL) & 1u << 20) != 0;
}
static bool offers_2500(struct model *model) {
    return (((struct intel *)model->own)->multi_gigabit & 0x80) != 0;
}

static void plug(struct model *model, uint8_t slot, const char *name, uint16_t id, bool advanced) {
    struct intel *intel = calloc(1, sizeof *intel);
    *model = (struct model){.name = name, .link = true, .mbps = 1000, .own = intel};
    *intel = (struct intel){.model = model,
                            .advanced = advanced,
                            .is_2500 = id == 0x125c,
                            .rx = advanced ? 0xc000 : 0x2800,
                            .tx = advanced ? 0xe000 : 0x3800};
    intel->phy[0] = 0x1000;
    intel->phy[20] = id == 0x15b8 ? 3 << 13 : 0;
    load_nvm(intel);
    *at(intel, RCTL) = 2; /* the firmware's driver is still receiving */
    model->device = machine_plug(0, slot, 0, 0x8086, id, 0x0200);
    model_capabilities(model->device);
    machine_registers(model->device, 0, 0x20000, true);
    model->device->context = intel;
    model->device->read = read_it;
    model->device->write = write_it;
    model->inject = inject;
    model->run = run;
    model->counts_missed = always;
    model->saves_energy = saves_energy;
    model->offers_2500 = offers_2500;
    model->wakes = wakes;
}

void model_e1000e(struct model *model, uint8_t slot) {
    plug(model, slot, "e1000e", 0x10d3, false);
    model->probe = e1000e_probe;
}
void model_i219(struct model *model, uint8_t slot) {
    plug(model, slot, "i219", 0x15b8, false);
    model->probe = e1000e_probe;
}
void model_igb(struct model *model, uint8_t slot) {
    plug(model, slot, "igb", 0x1533, true);
    model->probe = igb_probe;
}
void model_82576(struct model *model, uint8_t slot) {
    plug(model, slot, "82576", 0x10c9, true);
    model->probe = igb_probe;
}
void model_igc(struct model *model, uint8_t slot) {
    plug(model, slot, "igc", 0x125c, true);
    model->probe = igc_probe;
    model->mbps = 2500;
    *at(model->own, EEER) = 1u << 29; /* the firmware had agreed on energy saving */
}
