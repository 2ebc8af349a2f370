/* SPDX-License-Identifier: Apache-2.0
 *
 * When the main loop may rest beside a session: cores_are_quiet, in every state that core 0 can be
 * in. Nothing else of cores.c runs here; what it needs of the machine is not even linked.
 */
#include "check.h"
#include "session/session.h"

#include <string.h>

static struct duck_kernel_mailbox mailbox;
static uint32_t word;

static struct session_core *entered(uint32_t cpu, enum session_core_state state) {
    memset(&session, 0, sizeof session);
    memset(&mailbox, 0, sizeof mailbox);
    word = 0;
    session.exists = session.entered = true;
    session.core_count = 2;
    session.mailbox = &mailbox;
    session.core[0].cpu = cpu;
    session.core[0].state = state;
    return &session.core[0];
}

static void without_a_session_it_is_quiet(void) {
    memset(&session, 0, sizeof session);
    CHECK(cores_are_quiet());
    session.exists = true; /* one-shot, before its input */
    CHECK(cores_are_quiet());
}

/* Core 0 was sent to work and has not waited for anything yet. */
static void work_before_the_first_wait_is_not_quiet(void) {
    CHECK(entered(0, SESSION_CORE_READY)->word == NULL);
    CHECK(!cores_are_quiet());
}

/* Another core's fault ends the session before core 0 has ever waited. */
static void an_end_before_the_first_wait_is_told_once(void) {
    CHECK(entered(0, SESSION_CORE_READY)->word == NULL);
    session.ended = session.verdict_ready = 1;
    CHECK(!cores_are_quiet());
    session.verdict_told = true;
    CHECK(cores_are_quiet());
}

static void a_wait_is_quiet_until_the_word_changes(void) {
    struct session_core *core = entered(0, SESSION_CORE_WAITING);
    core->word = &word;
    CHECK(cores_are_quiet());
    word = 1;
    CHECK(!cores_are_quiet());
    core->seen = 1;
    CHECK(cores_are_quiet());
    mailbox.stop = 1;
    CHECK(!cores_are_quiet());
    mailbox.stop = 0;
    session.ended = 1;
    CHECK(!cores_are_quiet());
    core->state = SESSION_CORE_READY; /* a slice ended behind the wait */
    core->seen = word;
    session.ended = 0;
    CHECK(!cores_are_quiet());
}

static void without_core_0_only_news_count(void) {
    enum session_core_state states[] = {SESSION_CORE_READY, SESSION_CORE_DONE};
    for (uint32_t cpu = 0; cpu < 2; cpu++) {
        (void)entered(cpu, states[1 - cpu]);
        CHECK(cores_are_quiet());
        mailbox.call_completed = 1;
        CHECK(!cores_are_quiet());
        CHECK(cores_are_quiet());
        session.ended = 1;
        CHECK(!cores_are_quiet());
        session.verdict_told = true;
        CHECK(cores_are_quiet());
    }
}

int main(void) {
    without_a_session_it_is_quiet();
    work_before_the_first_wait_is_not_quiet();
    an_end_before_the_first_wait_is_told_once();
    a_wait_is_quiet_until_the_word_changes();
    without_core_0_only_news_count();
    printf("fine\n");
    return 0;
}
