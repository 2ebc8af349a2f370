/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

static void add_time(struct text *line, uint64_t ns) {
    uint64_t ms = ns / 1000000;
    text_add_u64(line, ms / 1000);
    text_add(line, ms % 1000 < 10 ? ".00" : ms % 1000 < 100 ? ".0" : ".");
    text_add_u64(line, ms % 1000);
    text_add(line, " ");
}

void core_say(struct duck_core *core, const char *words) {
    char buffer[CORE_LOG_LINE_BYTES];
    struct text line = text_start(buffer, sizeof buffer);
    add_time(&line, plat_now_ns() - core->start_ns);
    text_add(&line, words);
    log_line(&core->log, buffer, line.used);
}

void core_say_text(struct duck_core *core, const struct text *text) { core_say(core, text->at); }

void control_ping(struct duck_core *core, const struct core_received *received) {
    struct duck_ping ping;
    memcpy(&ping, received->payload, sizeof ping);
    struct duck_pong pong = {
        .host_time_ns = ping.host_time_ns,
        .duck_time_ns = plat_now_ns(),
        .state = core_state(core),
        .last_call = core->session.completed,
        .boot_id = core->boot_id,
    };
    packet_send(core, received->from, DUCK_MSG_PONG, received->header->sequence, &pong,
                sizeof pong);
}

void control_log(struct duck_core *core, const struct core_received *received) {
    uint8_t answer[sizeof(struct duck_log_request)];
    struct duck_log_request request;
    struct duck_log_reply reply = {0};
    memcpy(&request, received->payload, sizeof request);
    uint64_t since = request.since;
    size_t copied =
        log_read(&core->log, &since, (char *)answer + sizeof reply, sizeof answer - sizeof reply);
    reply.next = since + copied;
    reply.text_bytes = (uint32_t)copied;
    memcpy(answer, &reply, sizeof reply);
    packet_send(core, received->from, DUCK_MSG_LOG, received->header->sequence, answer,
                (uint32_t)(sizeof reply + copied));
}

void control_stats(struct duck_core *core, const struct core_received *received) {
    core->stats.uptime_ns = plat_now_ns() - core->start_ns;
    plat_stats(&core->stats);
    packet_send(core, received->from, DUCK_MSG_STATS, received->header->sequence, &core->stats,
                sizeof core->stats);
}

static uint32_t usage_state(const struct core_session *session) {
    switch (session->state) {
    case CORE_FAULTED: return DUCK_USAGE_FAULTED;
    case CORE_CLOSED: return session->started_ns != 0 ? DUCK_USAGE_ENDED : DUCK_USAGE_NONE;
    default: return session->is_over ? DUCK_USAGE_ENDED : DUCK_USAGE_RUNNING;
    }
}

void control_usage(struct duck_core *core, const struct core_received *received) {
    const struct core_session *session = &core->session;
    struct duck_usage usage = {.state = usage_state(session)};
    if (usage.state != DUCK_USAGE_NONE) plat_session_usage(&usage);
    if (usage.state == DUCK_USAGE_FAULTED) usage.fault = session->fault;
    packet_send(core, received->from, DUCK_MSG_USAGE, received->header->sequence, &usage,
                sizeof usage);
}

void control_reboot(struct duck_core *core, const struct core_received *received) {
    if (!reply_begin(core, received)) return;
    core_say(core, "reboot requested");
    core->reboot_at_ns = plat_now_ns() + CORE_REBOOT_DELAY_NS;
    struct duck_done done = done_make(DUCK_OK, 0, "");
    reply_finish(core, reply_ticket(core, received), &done);
}
