/* SPDX-License-Identifier: Apache-2.0
 *
 * A core's life in an experts session: check the weights, wait for calls, compute, agree that a
 * call is finished. Nothing of a session is kept outside of the context's memory.
 */
#include <xmmintrin.h>

#include "kernel.h"

#define MXCSR_RULES 0x1F80u /* no DAZ, no FTZ, round to nearest, all exceptions masked */
#define MXCSR_FLAGS 0x003Fu /* sticky exception flags, no rule */
#define BARRIER_SPINS 2000u /* cores arrive at about the same time: about 50 us before waiting */

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void store(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Set the rules of IEEE arithmetic and see that subnormal numbers really survive. */
static bool keep_float_rules(void) {
    _mm_setcsr(MXCSR_RULES);
    volatile float tiny = 0x1p-130f;
    volatile float product = tiny * 0.5f;
    return (_mm_getcsr() & ~MXCSR_FLAGS) == MXCSR_RULES && product == 0x1p-131f;
}

/* Wait until *word differs from `seen`; false when the session stops. */
static bool wait_change(const struct duck_kernel_context *context, const uint32_t *word,
                        uint32_t seen, uint32_t spins) {
    for (uint32_t spin = 0; load(word) == seen; spin++) {
        if (load(&context->mailbox->stop) != 0) return false;
        if (spin < spins) {
            _mm_pause();
        } else {
            context->wait(context, word, seen);
        }
    }
    return true;
}

bool duck_barrier(const struct duck_core *core) {
    struct duck_shared *shared = core->shared;
    uint32_t cores = core->context->core_count;
    if (cores == 1) return true;
    uint32_t epoch = load(&shared->epoch.word);
    if (__atomic_add_fetch(&shared->arrived.word, 1, __ATOMIC_ACQ_REL) < cores) {
        return wait_change(core->context, &shared->epoch.word, epoch, BARRIER_SPINS);
    }
    store(&shared->arrived.word, 0);
    store(&shared->epoch.word, epoch + 1);
    core->context->wake(core->context, &shared->epoch.word);
    return true;
}

/* ---- init ------------------------------------------------------------------------------------ */

const struct duck_body *duck_find_body(uint32_t format, uint32_t number) {
    for (const struct duck_body *body = duck_bodies; body->name != NULL; body++) {
        if (body->format == format && --number == 0) return body;
    }
    return NULL;
}

static bool init(struct duck_core *core, struct duck_text *text) {
    const struct duck_kernel_context *context = core->context;
    if (context->abi_version != DUCK_KERNEL_ABI_VERSION) {
        duck_text_mismatch(text, "ABI version of the duck", context->abi_version, "1");
        return false;
    }
    if (context->core_count == 0 || context->core_count > DUCK_KERNEL_CORES_MAX) {
        duck_text_mismatch(text, "core_count", context->core_count, "1 to 64");
        return false;
    }
    if (context->scratch_bytes < sizeof(struct duck_shared) + 4 * DUCK_BLOCK) {
        duck_text_mismatch(text, "scratch_bytes", context->scratch_bytes,
                           "duck_experts_scratch_bytes() of experts.h");
        return false;
    }
    duck_text_append(text, "weights: ");
    core->directory = (const struct duck_directory *)context->weights;
    if (!duck_check_directory(core->directory, context->weights_bytes, text)) return false;
    if (duck_find_body(core->directory->format, 1) == NULL) {
        duck_text_mismatch(text, "format", core->directory->format, "one that this kernel has");
        return false;
    }
    text->used = 0;
    return true;
}

/* "body int, GEMM from 12 tokens; ticks: int 5290, cvt 7810" */
static void say_choice(const struct duck_core *core, const struct duck_choice *choice,
                       struct duck_text *text) {
    duck_text_append(text, "body ");
    duck_text_append(text, core->body->name);
    duck_text_append(text, ", GEMM from ");
    duck_text_number(text, choice->gemm_entries);
    duck_text_append(text, " tokens; ticks: ");
    for (uint32_t n = 1; n <= DUCK_BODIES_MAX; n++) {
        const struct duck_body *body = duck_find_body(core->directory->format, n);
        if (body == NULL) break;
        duck_text_append(text, n == 1 ? "" : ", ");
        duck_text_append(text, body->name);
        duck_text_append(text, " ");
        duck_text_number(text, choice->ticks[n - 1]);
    }
}

/* Core 0 chooses for all. False when the session stops before it has. */
static bool agree_on_choice(struct duck_core *core, struct duck_text *text) {
    struct duck_shared *shared = core->shared;
    if (core->index == 0) {
        struct duck_choice choice;
        duck_calibrate(core, &choice);
        store(&shared->chosen_gemm_entries.word, choice.gemm_entries);
        store(&shared->chosen_body.word, choice.body);
        core->context->wake(core->context, &shared->chosen_body.word);
        core->body = duck_find_body(core->directory->format, choice.body);
        core->gemm_entries = choice.gemm_entries;
        say_choice(core, &choice, text);
        return true;
    }
    if (!wait_change(core->context, &shared->chosen_body.word, 0, 0)) return false;
    core->body = duck_find_body(core->directory->format, load(&shared->chosen_body.word));
    core->gemm_entries = load(&shared->chosen_gemm_entries.word);
    return true;
}

static bool report_init(struct duck_core *core) {
    struct duck_kernel_mailbox *mailbox = core->context->mailbox;
    char own_text[sizeof(mailbox->init_text)];
    bool is_first = core->index == 0;
    struct duck_text text = {is_first ? mailbox->init_text : own_text, sizeof(own_text), 0};
    bool ready = init(core, &text) && agree_on_choice(core, &text);
    if (is_first) {
        __atomic_store_n(&mailbox->init_status, ready ? 0 : 1, __ATOMIC_RELEASE);
        core->context->wake(core->context, (const uint32_t *)&mailbox->init_status);
    }
    return ready;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* What a core knows of a call when its part is done. */
struct outcome {
    bool fine;
    bool is_read;
    uint32_t output_bytes;
    char text[sizeof(((struct duck_kernel_slot *)0)->text)];
};

static void fill_slot(const struct duck_core *core, struct duck_kernel_slot *slot,
                      const struct outcome *outcome) {
    struct duck_shared *shared = core->shared;
    struct duck_text text = {slot->text, sizeof(slot->text), 0};
    uint32_t bad_core = load(&shared->bad_mxcsr.word);
    bool fine = outcome->fine && bad_core == 0;
    duck_text_append(&text, outcome->fine ? "" : outcome->text);
    if (bad_core != 0) {
        text.used = 0;
        duck_text_append(&text, "MXCSR does not keep IEEE rules on core ");
        duck_text_number(&text, bad_core - 1);
    }
    if (fine && outcome->is_read) {
        struct duck_experts_read_result *result =
            (struct duck_experts_read_result *)(core->context->calls + slot->output_offset);
        result->sum = shared->read_sum;
    }
    slot->status = fine ? 0 : 1;
    slot->output_bytes = fine ? outcome->output_bytes : 0;
}

/* The last core to come here closes the call. */
static void finish_call(const struct duck_core *core, uint32_t number,
                        struct duck_kernel_slot *slot, const struct outcome *outcome) {
    struct duck_shared *shared = core->shared;
    uint32_t cores = core->context->core_count;
    if (__atomic_add_fetch(&shared->finished.word, 1, __ATOMIC_ACQ_REL) < cores) return;
    fill_slot(core, slot, outcome);
    shared->read_sum = 0;
    store(&shared->finished.word, 0);
    store(&shared->claimed[0].word, 0);
    store(&shared->claimed[1].word, 0);
    core->context->complete(core->context, number);
    store(&shared->done_call.word, number);
    if (cores > 1) core->context->wake(core->context, &shared->done_call.word);
}

static bool is_read_call(const struct duck_core *core, const struct duck_kernel_slot *slot) {
    const uint8_t *input = core->context->calls + slot->input_offset;
    return slot->input_bytes >= 4 && *(const uint32_t *)input == DUCK_EXPERTS_READ_MAGIC;
}

/* False when the session stops. */
static bool do_call(const struct duck_core *core, uint32_t number) {
    struct duck_shared *shared = core->shared;
    /* The call before may still be with another core, and with it the shared scratch. */
    uint32_t done;
    while ((done = load(&shared->done_call.word)) != number - 1) {
        if (!wait_change(core->context, &shared->done_call.word, done, BARRIER_SPINS)) return false;
    }
    if (!keep_float_rules()) store(&shared->bad_mxcsr.word, 1 + core->index);
    struct duck_kernel_slot *slot = &core->context->mailbox->slot[number % DUCK_KERNEL_SLOTS];
    struct outcome outcome;
    outcome.text[0] = '\0';
    outcome.output_bytes = 0;
    outcome.is_read = is_read_call(core, slot);
    struct duck_text text = {outcome.text, sizeof(outcome.text), 0};
    if (outcome.is_read) {
        outcome.fine = duck_run_read(core, slot, &outcome.output_bytes, &text);
    } else {
        struct duck_job job;
        outcome.fine = duck_check_call(core, slot, &job, &text);
        if (outcome.fine && !duck_run_experts(core, &job)) return false;
        if (outcome.fine) outcome.output_bytes = job.output_bytes;
    }
    finish_call(core, number, slot, &outcome);
    return true;
}

void duck_kernel_entry(uint32_t index, const struct duck_kernel_context *context);

void duck_kernel_entry(uint32_t index, const struct duck_kernel_context *context) {
    struct duck_core core = {
        .index = index, .context = context, .shared = (struct duck_shared *)context->scratch};
    keep_float_rules();
    if (!report_init(&core)) return;
    uint32_t number = 0;
    for (;;) {
        if (!wait_change(context, &context->mailbox->call_published, number, 0)) return;
        if (load(&context->mailbox->stop) != 0 || !do_call(&core, ++number)) return;
        if (context->run_mode == DUCK_KERNEL_ONE_SHOT) return;
    }
}
