/* SPDX-License-Identifier: Apache-2.0
 *
 * RTL8168 (an early and a late one) and RTL8125.
 */
#include "model.h"

enum { OWN_BIT = 31, END_BIT = 30, FIRST_BIT = 29, LAST_BIT = 28 };
#define BIT(n) (1u << (n))
#define RING_MAX 4096u

struct realtek {
    struct model *model;
    uint8_t reg[256];
    bool late, is_8125;
    uint32_t revision;
    uint32_t receive_next, send_next; /* the device's places in its rings */
    uint16_t phy[32], mmd_select, mmd_control, eee_offer;
    uint16_t ocp_eee, ocp_eee_2500, ocp_control, list_control, send_format;
};

struct descriptor {
    uint32_t command, tag;
    uint64_t buffer;
};

static uint32_t get32(struct realtek *realtek, unsigned at) {
    uint32_t value;
    memcpy(&value, realtek->reg + at, 4);
    return value;
}
static void put32(struct realtek *realtek, unsigned at, uint32_t value) {
    memcpy(realtek->reg + at, &value, 4);
}

static void reset(struct realtek *realtek) {
    uint8_t mcu = realtek->reg[0xd3];
    memset(realtek->reg, 0, sizeof realtek->reg);
    if (!realtek->model->no_address) memcpy(realtek->reg, model_mac, 6);
    put32(realtek, 0x40, realtek->revision);
    put32(realtek, 0xf0, BIT(19)); /* received frames are held back */
    realtek->reg[0xd3] = mcu | 0x30;
    realtek->receive_next = realtek->send_next = 0;
    realtek->model->reset_count++;
}

static struct descriptor *descriptor_at(struct realtek *realtek, unsigned base, uint32_t index) {
    uint64_t ring = get32(realtek, base) | (uint64_t)get32(realtek, base + 4) << 32;
    CHECK(ring % 256 == 0 && index < RING_MAX);
    return (struct descriptor *)machine_dma(realtek->model->device, ring) + index;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void run(struct model *model) {
    struct realtek *realtek = model->own;
    if ((realtek->reg[0x37] & 4) == 0 || !model->link || model->hold_sends) return;
    if (realtek->is_8125) CHECK_EQUAL(0, realtek->send_format);
    if (realtek->late) CHECK_EQUAL(1 << 15, realtek->list_control); /* the driver's list */
    for (;;) {
        struct descriptor *at = descriptor_at(realtek, 0x20, realtek->send_next);
        if ((at->command & BIT(OWN_BIT)) == 0) return;
        CHECK((at->command & BIT(FIRST_BIT)) != 0 && (at->command & BIT(LAST_BIT)) != 0);
        CHECK_EQUAL(0, at->tag);
        uint32_t size = at->command & 0xffff;
        CHECK(size <= 9014);
        model_sent(model, machine_dma(model->device, at->buffer), size);
        realtek->send_next = (at->command & BIT(END_BIT)) != 0 ? 0 : realtek->send_next + 1;
        at->command &= BIT(END_BIT);
    }
}

/* ---- reception ------------------------------------------------------------------------------- */
static bool passes(struct realtek *realtek, const uint8_t *frame, size_t size) {
    static const uint8_t everyone[6] = {255, 255, 255, 255, 255, 255};
    uint32_t accept = get32(realtek, 0x44);
    uint16_t longest;
    memcpy(&longest, realtek->reg + 0xda, 2);
    CHECK((accept & 0x3f) == 0x0a); /* ours and broadcasts, neither runts nor damaged frames */
    (void)size;
    (void)longest;
    return memcmp(frame, model_mac, 6) == 0 || memcmp(frame, everyone, 6) == 0;
}

static bool deaf(struct model *model) {
    struct realtek *realtek = model->own;
    return realtek->late && (get32(realtek, 0xf0) & BIT(19)) != 0;
}

static bool inject(struct model *model, const uint8_t *frame, size_t size, enum damage damage) {
    struct realtek *realtek = model->own;
    bool off = (realtek->reg[0x37] & 8) == 0 || deaf(model);
    if (off || !model->link || !passes(realtek, frame, size)) return false;
    bool first = true;
    for (size_t done = 0; done < size + 4; first = false) { /* with the frame check sequence */
        struct descriptor *at = descriptor_at(realtek, 0xe4, realtek->receive_next);
        if ((at->command & BIT(OWN_BIT)) == 0) {
            model->missed++;
            if (!realtek->is_8125) put32(realtek, 0x4c, get32(realtek, 0x4c) + 1);
            return false;
        }
        size_t room = at->command & 0x3fff, part = size + 4 - done < room ? size + 4 - done : room;
        CHECK(room % 8 == 0 && at->buffer % 8 == 0);
        uint8_t *buffer = machine_dma(model->device, at->buffer);
        for (size_t byte = 0; byte < part; byte++)
            buffer[byte] = done + byte < size ? frame[done + byte] : 0xcc;
        done += part;
        uint32_t command = (at->command & BIT(END_BIT)) | (first ? BIT(FIRST_BIT) : 0) |
                           (done == size + 4 ? BIT(LAST_BIT) : 0);
        command |= damage == WILD_LENGTH ? 0x3fff : (uint32_t)part;
        if (damage == CRC_ERROR) command |= BIT(21) | BIT(19);
        if (part > 8191) command |= BIT(21) | BIT(22); /* "watchdog", though nothing is wrong */
        if (damage == RUNT) command |= BIT(21) | BIT(20);
        bool end = (at->command & BIT(END_BIT)) != 0;
        realtek->receive_next = end ? 0 : realtek->receive_next + 1;
        at->command = command;
    }
    return true;
}

/* ---- registers ------------------------------------------------------------------------------- */
static uint16_t *ocp_at(struct realtek *realtek, uint32_t address) {
    switch (address) {
    case 0xa5d0: return &realtek->ocp_eee;
    case 0xa6d4: return &realtek->ocp_eee_2500;
    case 0xa400: return &realtek->ocp_control;
    default: CHECK(!"an OCP register that the model does not know"); return NULL;
    }
}

/* IEEE 802.3, 22.2.4.1. */
static uint16_t phy_control(const struct model *model) {
    return (uint16_t)((model->phy_is_fixed ? 0 : 0x1000) | (model->phy_is_down ? 0x0800 : 0));
}

static void write_phy_control(struct model *model, uint16_t value) {
    model->phy_is_fixed = (value & 0x1000) == 0;
    model->phy_is_down = (value & 0x0800) != 0;
    if ((value & 0x1200) == 0x1200 && !model->phy_is_down) model->negotiations++;
}

static void ocp(struct realtek *realtek, uint32_t command) {
    uint32_t address = command >> 15 & 0xfffe;
    uint16_t *at = ocp_at(realtek, address);
    CHECK(realtek->late);
    realtek->ocp_control = phy_control(realtek->model);
    if ((command & BIT(31)) != 0) {
        *at = (uint16_t)command;
        if (address == 0xa400) write_phy_control(realtek->model, (uint16_t)command);
        put32(realtek, 0xb8, command & ~BIT(31));
    } else {
        put32(realtek, 0xb8, BIT(31) | (command & 0x7fff0000u) | *at);
    }
}

/* 0xe8de: the descriptor list of firmware or driver; 0xeb58: the format of descriptors to send. */
static void mac_ocp(struct realtek *realtek, uint32_t command) {
    uint32_t address = command >> 15 & 0xfffe;
    CHECK(realtek->late && (address == 0xe8de || address == 0xeb58));
    uint16_t *at = address == 0xe8de ? &realtek->list_control : &realtek->send_format;
    if ((command & BIT(31)) == 0) {
        put32(realtek, 0xb0, *at);
        return;
    }
    *at = (uint16_t)command;
    realtek->reg[0xd3] |= 2; /* the list is ready */
}

static void phy(struct realtek *realtek, uint32_t command) {
    uint32_t number = command >> 16 & 31;
    bool through_mmd = number == 14 && (realtek->mmd_control >> 14) == 1;
    uint16_t *at = through_mmd ? &realtek->eee_offer : &realtek->phy[number];
    CHECK(!realtek->late);
    realtek->phy[0] = phy_control(realtek->model);
    if ((command & BIT(31)) == 0) {
        put32(realtek, 0x60, BIT(31) | *at);
        return;
    }
    if (number == 13)
        realtek->mmd_control = (uint16_t)command;
    else if (number == 14 && !through_mmd)
        realtek->mmd_select = (uint16_t)command;
    else
        *at = (uint16_t)command;
    if (through_mmd) CHECK(realtek->mmd_select == 60 && (realtek->mmd_control & 31) == 7);
    if (number == 0) write_phy_control(realtek->model, (uint16_t)command);
    put32(realtek, 0x60, command & ~BIT(31));
}

static uint32_t phy_status(const struct realtek *realtek) {
    const struct model *model = realtek->model;
    if (!model->link || model->phy_is_down) return 0;
    uint32_t speed = model->mbps == 2500   ? BIT(10)
                     : model->mbps == 1000 ? BIT(4)
                     : model->mbps == 100  ? BIT(3)
                                           : BIT(2);
    return 1u | BIT(1) | speed;
}

static uint32_t read_it(void *context, uint32_t offset, unsigned bytes) {
    struct realtek *realtek = context;
    uint32_t value = 0;
    CHECK(offset + bytes <= 256 && offset % bytes == 0);
    if (offset == 0x6c) return phy_status(realtek) & (bytes == 1 ? 0xff : 0xffff);
    memcpy(&value, realtek->reg + offset, bytes);
    return value;
}

static void write_command(struct realtek *realtek, uint8_t value) {
    if ((value & 0x10) != 0) {
        CHECK((get32(realtek, 0x44) & 0x3f) == 0); /* deaf before the reset */
        reset(realtek);
        realtek->reg[0x37] = realtek->model->stuck_reset ? 0x10 : 0;
        return;
    }
    realtek->reg[0x37] = value;
}

static void write_it(void *context, uint32_t offset, unsigned bytes, uint32_t value) {
    struct realtek *realtek = context;
    CHECK(offset + bytes <= 256);
    bool mask = offset == (realtek->is_8125 ? 0x38u : 0x3cu);
    if (mask) CHECK_EQUAL(0, value); /* no interrupt is enabled */
    bool doorbell = offset == (realtek->is_8125 ? 0x90u : 0x38u);
    if (offset == 0x37) {
        write_command(realtek, (uint8_t)value);
    } else if (offset == 0xb8) {
        ocp(realtek, value);
    } else if (offset == 0xb0) {
        mac_ocp(realtek, value);
    } else if (offset == 0x60) {
        phy(realtek, value);
    } else if (offset == 0x40) {
        put32(realtek, 0x40, realtek->revision | (value & 0x03000780u));
    } else if (doorbell) {
        CHECK_EQUAL(realtek->is_8125 ? 1 : 0x40, value);
        run(realtek->model);
    } else {
        bool base = offset == 0x20 || offset == 0x24 || offset == 0xe4 || offset == 0xe8;
        if (base || offset == 0xda) CHECK_EQUAL(0xc0, realtek->reg[0x50]);
        memcpy(realtek->reg + offset, &value, bytes);
    }
}

static bool saves_energy(struct model *model) {
    struct realtek *realtek = model->own;
    if (!realtek->late) return realtek->eee_offer != 0;
    return (realtek->ocp_eee & 6) != 0 || (realtek->is_8125 && realtek->ocp_eee_2500 != 0);
}
static bool offers_2500(struct model *model) { return model->mbps == 2500; }
static bool yes(void) { return true; }
static bool no(void) { return false; }

static void plug(struct model *model, uint8_t slot, const char *name, uint16_t id,
                 uint32_t revision) {
    struct realtek *realtek = calloc(1, sizeof *realtek);
    *model = (struct model){.name = name, .link = true, .mbps = 1000, .own = realtek};
    *realtek = (struct realtek){.model = model,
                                .revision = revision,
                                .is_8125 = id == 0x8125,
                                .late = revision >= 0x4c000000u,
                                .eee_offer = 6,
                                .ocp_eee = 6,
                                .list_control = 1 << 14,
                                .send_format = 1,
                                .ocp_eee_2500 = 1};
    reset(realtek);
    realtek->reg[0xd3] |= 0x80; /* the management firmware runs the MAC */
    realtek->reg[0x37] = 0x0c;  /* and it is running */
    model->device = machine_plug(0, slot, 0, 0x10ec, id, 0x0200);
    model_capabilities(model->device);
    machine_registers(model->device, 2, 4096, true);
    model->device->context = realtek;
    model->device->read = read_it;
    model->device->write = write_it;
    model->inject = inject;
    model->run = run;
    model->counts_missed = id == 0x8125 ? no : yes;
    model->saves_energy = saves_energy;
    model->offers_2500 = offers_2500;
    model->deaf = deaf;
    model->probe = r8169_probe;
}

void model_rtl8168(struct model *model, uint8_t slot) {
    plug(model, slot, "rtl8168h", 0x8168, 0x54000000u);
}
void model_rtl8168_old(struct model *model, uint8_t slot) {
    plug(model, slot, "rtl8168c", 0x8168, 0x3c000000u);
}
void model_rtl8125(struct model *model, uint8_t slot) {
    plug(model, slot, "rtl8125", 0x8125, 0x64000000u);
    model->mbps = 2500;
}
