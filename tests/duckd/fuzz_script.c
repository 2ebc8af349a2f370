/* SPDX-License-Identifier: Apache-2.0
 *
 * A libFuzzer target: the input is a script of packets, time and deeds of the kernel (see
 * fuzz_script.h) for a duck core that three hosts have joined and one has opened a session on.
 * Sealed packets get right seals, so that inputs reach what lies behind the MAC. After each step
 * the rules of fuzz_rules.h are checked. Linked with replay_inputs.c it runs inputs from files.
 */
#include "fuzz_script.h"
#include "check.h"
#include "fuzz_rules.h"
#include <string.h>

struct input {
    const uint8_t *next;
    size_t left;
};

/* False at the input's end. */
static bool take(struct input *from, void *out, size_t bytes) {
    if (from->left < bytes) return false;
    memcpy(out, from->next, bytes);
    from->next += bytes;
    from->left -= bytes;
    return true;
}

/* ---- the state that every script begins in --------------------------------------------------- */

/* Handshakes take milliseconds: they are made once, and what they leave behind is copied. */
static void begin(void) {
    static struct duck_core joined_core;
    static struct fake_host joined_hosts[FUZZ_HOSTS];
    static uint8_t joined_fake[offsetof(struct fake_platform, sent)];
    static bool is_joined;
    if (!is_joined) {
        fuzz_join(1);
        fake_forget_sent();
        joined_core = core;
        memcpy(joined_hosts, hosts, sizeof hosts);
        memcpy(joined_fake, &fake, sizeof joined_fake);
        is_joined = true;
    }
    fake_free();
    core = joined_core;
    memcpy(hosts, joined_hosts, sizeof hosts);
    memcpy(&fake, joined_fake, sizeof joined_fake);
    fuzz_open();
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool send_raw(struct input *from, struct fake_host *host) {
    uint16_t bytes;
    if (!take(from, &bytes, sizeof bytes)) return false;
    if (bytes > from->left) bytes = (uint16_t)from->left;
    fuzz_deliver(&host->peer, from->next, bytes);
    from->next += bytes;
    from->left -= bytes;
    return true;
}

static bool send_sealed(struct input *from, struct fake_host *host, bool by_domain) {
    static uint8_t packet[sizeof(struct duck_packet_header) + UINT16_MAX];
    struct script_packet told;
    if (!take(from, &told, sizeof told)) return false;
    uint16_t bytes = told.payload_bytes;
    if (bytes > from->left) bytes = (uint16_t)from->left;
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = told.type,
        .key = by_domain ? DUCK_KEY_DOMAIN : DUCK_KEY_SESSION,
        .epoch = by_domain ? 0 : (uint8_t)host->epoch,
        .session = by_domain ? host->domain_session : host->session,
        .sequence =
            told.is_relative % 2 != 0 ? core.session.completed + told.sequence : told.sequence,
        .message_bytes = told.message_bytes,
        .fragment_index = told.fragment_index,
        .fragment_bytes = told.fragment_bytes,
        .payload_bytes = bytes,
        .start = told.start,
    };
    memcpy(packet, &header, sizeof header);
    CHECK(take(from, packet + sizeof header, bytes));
    duck_seal(by_domain ? &host->domain_key : &host->send_key, packet, sizeof header + bytes);
    fuzz_deliver(&host->peer, packet, sizeof header + bytes);
    return true;
}

static bool pass_time(struct input *from) {
    uint32_t microseconds;
    if (!take(from, &microseconds, sizeof microseconds)) return false;
    fake.now_ns += (uint64_t)microseconds * 1000u;
    return true;
}

static bool act_as_kernel(struct input *from) {
    struct duck_kernel_mailbox *mailbox = fake.session.mailbox;
    struct script_kernel told;
    if (!take(from, &told, sizeof told)) return false;
    if (!fake.session_runs) return true;
    switch (told.act % KERNEL_ACTS) {
    case KERNEL_COMPLETES:
        if (mailbox->call_completed == mailbox->call_published) break;
        mailbox->call_completed++;
        mailbox->slot[mailbox->call_completed % DUCK_KERNEL_SLOTS].output_bytes = told.value;
        mailbox->slot[mailbox->call_completed % DUCK_KERNEL_SLOTS].status = (int32_t)told.other;
        break;
    case KERNEL_STARTS: mailbox->init_status = (int32_t)told.value; break;
    case KERNEL_WRITES:
        memcpy((uint8_t *)mailbox + told.other % (sizeof *mailbox - sizeof told.value), &told.value,
               sizeof told.value);
        break;
    default:
        fake.session_dies = true;
        fake.verdict.status = told.value;
        fake.verdict.fault_kind = told.other % 9;
    }
    return true;
}

static bool one_step(struct input *from) {
    uint8_t step;
    if (!take(from, &step, sizeof step)) return false;
    struct fake_host *host = &hosts[step / SCRIPT_STEPS % FUZZ_HOSTS];
    switch (step % SCRIPT_STEPS) {
    case SCRIPT_RAW: return send_raw(from, host);
    case SCRIPT_SEALED: return send_sealed(from, host, false);
    case SCRIPT_DOMAIN: return send_sealed(from, host, true);
    case SCRIPT_TIME: return pass_time(from);
    case SCRIPT_KERNEL: return act_as_kernel(from);
    default: fuzz_hello(host); return true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input input = {data, bytes < SCRIPT_BYTES_MAX ? bytes : SCRIPT_BYTES_MAX};
    begin();
    for (uint32_t i = 0; i < SCRIPT_STEPS_MAX && one_step(&input); i++) {
        core_tick(&core);
        fuzz_check_rules();
    }
    core_settle();
    fuzz_check_rules();
    return 0;
}
