/* SPDX-License-Identifier: Apache-2.0
 *
 * Every driver against the model of its registers; the rules are the same for all of them.
 */
#include "model.h"

#include "memory/memory.h"

static struct model model;
static struct nic nic;

struct family {
    const char *name;
    void (*plug)(struct model *model, uint8_t slot);
    bool jumbo, unproven;
};
static const struct family families[] = {
    {"virtio-net", model_virtio, true, false},
    {"e1000e", model_e1000e, true, false},
    {"i219", model_i219, false, true},
    {"82576", model_82576, true, false},
    {"igb", model_igb, true, true},
    {"igc", model_igc, true, true},
    {"rtl8168h", model_rtl8168, true, true},
    {"rtl8168c", model_rtl8168_old, false, true},
    {"rtl8125", model_rtl8125, true, true},
};
static const struct family *family;

static bool is_realtek(void) {
    return family->plug == model_rtl8168 || family->plug == model_rtl8168_old ||
           family->plug == model_rtl8125;
}

static void put_on_bus(uint64_t arena_bytes) {
    model_free(&model);
    machine_reset();
    machine_arena_bytes = arena_bytes;
    family->plug(&model, 3);
    pci_init(MACHINE_ECAM, 0, 255);
    CHECK_EQUAL(1, pci_count());
    nic = (struct nic){.device = pci_at(0)};
}

static void start_with(uint64_t arena_bytes) {
    put_on_bus(arena_bytes);
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
}
static void start(void) { start_with(10u << 20); } /* the smallest rings */

static uint32_t receive_count(void) { return 128; }

static size_t make_frame(uint8_t *frame, size_t size, uint32_t number) {
    memcpy(frame, model_mac, 6);
    memset(frame + 6, 0x04, 6);
    for (size_t at = 12; at < size; at++) frame[at] = (uint8_t)(number * 31 + at * 7 + (at >> 8));
    return size;
}

static bool put(size_t size, uint32_t number, enum damage damage) {
    static uint8_t frame[MODEL_FRAME_BYTES_MAX];
    return model.inject(&model, frame, make_frame(frame, size, number), damage);
}

static void expect(size_t size, uint32_t number) {
    static uint8_t frame[MODEL_FRAME_BYTES_MAX];
    struct nic_frame got;
    make_frame(frame, size, number);
    CHECK(nic.receive(&nic, &got));
    CHECK_EQUAL(size, got.size);
    CHECK(memcmp(frame, got.bytes, size) == 0);
    memset(got.bytes, 0x55, got.size); /* it is ours to write until the release */
    nic.release(&nic);
}

static void expect_nothing(void) {
    struct nic_frame got;
    CHECK(!nic.receive(&nic, &got));
}

static bool send(size_t size, uint32_t number) {
    uint8_t *buffer = nic.send_buffer(&nic);
    if (buffer == NULL) return false;
    CHECK(buffer == nic.send_buffer(&nic)); /* the same until it is sent */
    nic.send(&nic, make_frame(buffer, size, number));
    return true;
}

static void expect_sent(size_t size, uint32_t number) {
    static uint8_t frame[MODEL_FRAME_BYTES_MAX];
    const uint8_t *got;
    make_frame(frame, size, number);
    CHECK_EQUAL(size, model_take(&model, &got));
    CHECK(memcmp(frame, got, size) == 0);
}

/* ---- take-over ------------------------------------------------------------------------------- */
static void takes_over_and_says_what_it_is(void) {
    start();
    const uint8_t *config = model.device->config;
    CHECK(memcmp(model_mac, nic.mac, 6) == 0);
    CHECK_EQUAL(family->jumbo ? NIC_MTU_JUMBO : NIC_MTU_PLAIN, nic.mtu_bytes_max);
    CHECK_EQUAL(family->unproven, nic.unproven);
    CHECK(nic.link && nic.link_mbps == model.mbps && model.reset_count >= 1);
    CHECK((config16(model.device, 4) & 0x406) == 0x406); /* memory, master, no INTx */
    if (family->plug == model_virtio) return;
    CHECK_EQUAL(0, config[0x64] & 3);    /* D0 */
    CHECK_EQUAL(0, config[0x72] & 1);    /* MSI */
    CHECK_EQUAL(0, config[0x83] & 0x80); /* MSI-X */
    CHECK_EQUAL(0, config[0xb0] & 3);    /* ASPM */
    CHECK_EQUAL(0, config[0x108] & 15);  /* L1 substates */
}

/* Off in the MAC and no longer offered; the link is negotiated anew, which costs seconds, only
 * where something had been agreed on that must go. */
static void energy_saving_is_off(void) {
    start();
    if (family->plug != model_82576) CHECK(!model.saves_energy(&model)); /* it has none */
    bool had_agreed = is_realtek() || family->plug == model_igc;
    CHECK_EQUAL(had_agreed ? 1 : 0, model.negotiations);
    if (family->plug == model_igc) CHECK(model.offers_2500(&model));
}

static bool is_shared_phy(void) {
    return family->plug == model_82576 || family->plug == model_igb || family->plug == model_igc;
}

/* Somebody reset the PHY or switched it off: without a new negotiation there would be no link. */
static void a_phy_that_waits_is_woken(void) {
    if (!is_shared_phy()) return;
    start();
    uint32_t before = model.negotiations;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    uint32_t usual = model.negotiations - before;
    model.phy_was_reset = true;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!model.phy_was_reset && model.negotiations > before + usual);
    before = model.negotiations;
    model.phy_is_down = true;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!model.phy_is_down && model.negotiations > before);
}

/* One that never answers does not keep the NIC from starting. */
static void a_slow_phy_is_waited_for(void) {
    if (!is_shared_phy() && family->plug != model_i219) return;
    put_on_bus(10u << 20);
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    model.phy_answers_ns = 90000000u;
    model.phy_is_down = is_shared_phy();
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!model.phy_is_down);
    if (family->plug == model_i219) CHECK(!model.saves_energy(&model));
    model.phy_answers_ns = UINT32_MAX;
    uint64_t began = machine_now_ns();
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(machine_now_ns() - began < 500000000u);
}

/* Nothing offers to save energy any more, and still the PHY is touched: once, not at each start. */
static void a_realtek_phy_that_is_down_is_woken(void) {
    if (!is_realtek()) return;
    start();
    uint32_t before = model.negotiations;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK_EQUAL(before, model.negotiations); /* the link is kept */
    model.phy_is_down = true;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!model.phy_is_down && nic.link);
    CHECK_EQUAL(before + 1, model.negotiations);
    model.phy_is_fixed = true;
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!model.phy_is_fixed);
    CHECK_EQUAL(before + 2, model.negotiations);
}

static void fails_by_name(void) {
    put_on_bus(10u << 20);
    model.no_address = true;
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    CHECK_EQUAL(NIC_NO_ADDRESS, nic.start(&nic));
    put_on_bus(10u << 20);
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    model.stuck_reset = true;
    CHECK_EQUAL(NIC_NO_ANSWER, nic.start(&nic));
    put_on_bus(10u << 20);
    model.device->bar_bytes[model.device->mapped_bar] = 0; /* not assigned */
    memset(model.device->config + 0x10, 0, 24);
    CHECK_EQUAL(NIC_NO_REGISTERS, model.probe(&nic, nic.device));
    model.device->window = NULL;
}

static void a_queue_that_stays_off_is_refused(void) {
    bool has_answer =
        family->plug == model_igb || family->plug == model_igc || family->plug == model_virtio;
    if (!has_answer) return;
    put_on_bus(10u << 20);
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    model.refuse_queue = true;
    CHECK_EQUAL(NIC_REFUSED, nic.start(&nic));
}

static void waits_have_limits(void) {
    put_on_bus(10u << 20);
    CHECK_EQUAL(NIC_OK, model.probe(&nic, nic.device));
    model.stuck_reset = true;
    uint64_t began = machine_now_ns();
    CHECK_EQUAL(NIC_NO_ANSWER, nic.start(&nic));
    CHECK(machine_now_ns() - began < 500000000u);
}

/* ---- rings ----------------------------------------------------------------------------------- */
static void ring_wraps(void) {
    start();
    size_t longest = nic.mtu_bytes_max + NIC_HEADER_BYTES;
    for (uint32_t number = 0; number < 5 * receive_count(); number++) {
        size_t size = number % 3 == 0 ? 60 : number % 3 == 1 ? longest : 60 + number;
        CHECK(put(size, number, NO_DAMAGE));
        expect(size, number);
        if (number % 7 == 0) nic.refill(&nic);
        CHECK(send(size, number));
        expect_sent(size, number);
    }
    expect_nothing();
    CHECK_EQUAL(0, nic.count.ring_full);
    CHECK(!nic.sending(&nic));
    CHECK_EQUAL(5 * receive_count(), nic.count.completed);
}

static void overrun_is_counted_and_over(void) {
    start();
    uint32_t taken = 0;
    while (put(100, taken, NO_DAMAGE)) taken++;
    CHECK(taken == receive_count() || taken == receive_count() - 1);
    for (uint32_t number = 0; number < 10; number++) CHECK(!put(100, 9, NO_DAMAGE));
    for (uint32_t number = 0; number < taken; number++) expect(100, number);
    expect_nothing();
    nic.refill(&nic);
    nic.poll_link(&nic);
    if (model.counts_missed()) CHECK_EQUAL(model.missed, nic.count.missed);
    for (uint32_t number = 0; number < taken; number++) CHECK(put(200, number, NO_DAMAGE));
    for (uint32_t number = 0; number < taken; number++) expect(200, number);
}

static void full_send_ring_refuses(void) {
    start();
    model.hold_sends = true;
    uint32_t queued = 0;
    while (send(300, queued)) queued++;
    CHECK(queued == receive_count() / 4 || queued == receive_count() / 4 - 1);
    CHECK_EQUAL(1, nic.count.ring_full);
    CHECK(nic.sending(&nic));
    model.hold_sends = false;
    model.run(&model);
    for (uint32_t number = 0; number < queued; number++) expect_sent(300, number);
    CHECK(!nic.sending(&nic));
    CHECK(send(300, 1));
    expect_sent(300, 1);
}

/* The device looked away while the doorbell rang. */
static void a_lost_doorbell_rings_again(void) {
    if (!is_realtek()) return;
    start();
    model.hold_sends = true;
    CHECK(send(300, 1));
    model.hold_sends = false;
    for (unsigned round = 0; round < 64; round++) nic.refill(&nic);
    expect_sent(300, 1);
}

static void bad_frames_are_dropped_one_by_one(void) {
    start();
    for (uint32_t round = 0; round < receive_count(); round++) {
        CHECK(put(100, round, NO_DAMAGE));
        expect(100, round);
        if (family->plug != model_virtio) { /* it has no such mark */
            CHECK(put(100, round, CRC_ERROR));
            expect_nothing();
        }
        CHECK(put(8, round, RUNT));
        expect_nothing();
        nic.refill(&nic);
    }
    CHECK_EQUAL(receive_count(), nic.count.runts);
    CHECK_EQUAL(family->plug == model_virtio ? 0 : receive_count(), nic.count.descriptor_errors);
    CHECK_EQUAL(0, nic.count.bad_descriptors);
}

static void longer_than_a_buffer_harms_nothing(void) {
    start();
    for (uint32_t round = 0; round < receive_count(); round++) {
        bool spread = put(15000, round, TOO_LONG);
        expect_nothing();
        CHECK(!spread || nic.count.oversized > 0);
        nic.refill(&nic);
        CHECK(put(700, round, NO_DAMAGE));
        expect(700, round);
        nic.refill(&nic);
    }
    CHECK_EQUAL(0, nic.count.bad_descriptors);
}

static void wild_lengths_are_not_believed(void) {
    start();
    CHECK(put(100, 1, WILD_LENGTH));
    expect_nothing();
    CHECK_EQUAL(1, nic.count.bad_descriptors);
    if (nic.broken) CHECK_EQUAL(NIC_OK, nic.start(&nic)); /* its place in the ring is lost */
    CHECK(put(100, 2, NO_DAMAGE));
    expect(100, 2);
}

/* ---- link and resets ------------------------------------------------------------------------- */
static void link_flaps(void) {
    start();
    model.hold_sends = true;
    CHECK(send(90, 1)); /* waits for the link */
    for (uint32_t flap = 0; flap < 20; flap++) {
        model.link = false;
        nic.poll_link(&nic);
        CHECK(!nic.link && nic.link_mbps == 0 && !nic.broken);
        CHECK(!put(100, flap, NO_DAMAGE));
        expect_nothing();
        model.link = true;
        nic.poll_link(&nic);
        CHECK(nic.link && nic.link_mbps == model.mbps);
        CHECK(put(100, flap, NO_DAMAGE));
        expect(100, flap);
    }
    CHECK_EQUAL(41, nic.count.link_changes); /* with the first one, up */
    model.hold_sends = false;
    model.run(&model);
    expect_sent(90, 1);
}

static void every_speed_is_told(void) {
    static const uint32_t speeds[] = {10, 100, 1000, 2500};
    start();
    for (unsigned at = 0; at < 4; at++) {
        if (speeds[at] > model.mbps || family->plug == model_virtio) continue;
        uint32_t most = model.mbps;
        model.mbps = speeds[at];
        nic.poll_link(&nic);
        CHECK_EQUAL(speeds[at], nic.link_mbps);
        model.mbps = most;
    }
}

static void reset_in_flight_loses_frames_not_the_ring(void) {
    start();
    for (uint32_t round = 0; round < 10; round++) {
        model.hold_sends = true;
        for (uint32_t number = 0; number < 5 + round; number++) {
            CHECK(put(400, number, NO_DAMAGE));
            CHECK(send(400, number));
        }
        expect(400, 0); /* some are taken, some wait, some are queued: start anew */
        CHECK_EQUAL(NIC_OK, nic.start(&nic));
        model.hold_sends = false;
        model.run(&model);
        expect_nothing();
        CHECK(!nic.sending(&nic));
        for (uint32_t number = 0; number < receive_count(); number++) {
            CHECK(put(500, number, NO_DAMAGE));
            expect(500, number);
            CHECK(send(64, number));
            expect_sent(64, number);
        }
    }
}

static void a_device_that_vanishes_is_broken(void) {
    start();
    model.device->vanished = true;
    nic.poll_link(&nic);
    CHECK(nic.broken);
    CHECK(nic.start(&nic) != NIC_OK);
    model.device->vanished = false;
    set_config16(model.device, 4, 2);
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(!nic.broken);
    CHECK(put(100, 2, NO_DAMAGE));
    expect(100, 2);
}

static void stopped_means_no_memory_access(void) {
    start();
    nic.stop(&nic);
    CHECK(!machine_is_master(model.device));
    CHECK(!put(100, 1, NO_DAMAGE));
    CHECK_EQUAL(NIC_OK, nic.start(&nic));
    CHECK(put(100, 1, NO_DAMAGE));
    expect(100, 1);
}

static uint32_t all_ones(void *context, uint32_t offset, unsigned bytes) {
    (void)context, (void)offset, (void)bytes;
    return UINT32_MAX;
}
static void keeps_the_gate(void *context, uint32_t offset, unsigned bytes, uint32_t value) {
    (void)context, (void)bytes, (void)value;
    CHECK(offset != 0xf0);
}

/* After a restart the boot ROM's driver finds what the last one left; it does not know the gate. */
static void a_stopped_realtek_hears_again(void) {
    if (!is_realtek()) return;
    start();
    nic.stop(&nic);
    CHECK(!model.deaf(&model));
    CHECK(!put(100, 1, NO_DAMAGE)); /* though it does not receive */
    model.device->read = all_ones;  /* fell off the bus */
    model.device->write = keeps_the_gate;
    nic.stop(&nic);
}

static void rings_grow_with_the_memory(void) {
    static const uint64_t arena[] = {8u << 20, 20u << 20, 40u << 20};
    static const uint32_t count[] = {128, 256, 512};
    for (unsigned at = 0; at < 3; at++) {
        start_with(arena[at]);
        uint32_t most = count[at];
        if (family->plug == model_virtio && most > 256) most = 256; /* what the device has */
        uint32_t taken = 0;
        while (put(100, taken, NO_DAMAGE)) taken++;
        CHECK(taken == most || taken == most - 1);
        for (uint32_t number = 0; number < taken; number++) expect(100, number);
    }
}

static void random_walk(uint32_t seed) {
    start();
    uint32_t in = 0, out = 0, sent = 0, seen = 0;
    srand(seed);
    for (uint32_t step = 0; step < 20000; step++) {
        size_t longest = nic.mtu_bytes_max + NIC_HEADER_BYTES;
        switch (rand() % 6) {
        case 0:
        case 1:
            if (put(60 + in % (longest - 60), in, NO_DAMAGE)) in++;
            break;
        case 2:
            if (out < in) {
                expect(60 + out % (longest - 60), out);
                out++;
            }
            break;
        case 3: nic.refill(&nic); break;
        case 4:
            if (send(60 + sent % (longest - 60), sent)) sent++;
            break;
        default:
            model.hold_sends = rand() % 2 == 0;
            model.run(&model);
            for (const uint8_t *frame; model_take(&model, &frame) != 0;) seen++;
        }
    }
    model.hold_sends = false;
    model.run(&model);
    for (const uint8_t *frame; model_take(&model, &frame) != 0;) seen++;
    CHECK_EQUAL(sent, seen);
    for (; out < in; out++) expect(60 + out % (nic.mtu_bytes_max + NIC_HEADER_BYTES - 60), out);
    expect_nothing();
}

int main(int count, char **words) {
    uint32_t seed = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : 1;
    for (unsigned at = 0; at < sizeof families / sizeof families[0]; at++) {
        family = &families[at];
        fprintf(stderr, "%s, seed %u\n", family->name, seed);
        takes_over_and_says_what_it_is();
        energy_saving_is_off();
        a_phy_that_waits_is_woken();
        a_slow_phy_is_waited_for();
        a_realtek_phy_that_is_down_is_woken();
        fails_by_name();
        a_queue_that_stays_off_is_refused();
        waits_have_limits();
        ring_wraps();
        overrun_is_counted_and_over();
        full_send_ring_refuses();
        a_lost_doorbell_rings_again();
        bad_frames_are_dropped_one_by_one();
        longer_than_a_buffer_harms_nothing();
        wild_lengths_are_not_believed();
        link_flaps();
        every_speed_is_told();
        reset_in_flight_loses_frames_not_the_ring();
        a_device_that_vanishes_is_broken();
        stopped_means_no_memory_access();
        a_stopped_realtek_hears_again();
        rings_grow_with_the_memory();
        random_walk(seed);
    }
    model_free(&model);
    machine_reset();
    return 0;
}
