/* SPDX-License-Identifier: Apache-2.0
 *
 * The compute session: who may open it, when it is ready, how it ends.
 */
#include "elf.h"
#include "parts.h"

bool compute_is_open(const struct duck_core *core) {
    return core->session.state == CORE_STARTING || core->session.state == CORE_SERVING;
}

/* ---- ownership ------------------------------------------------------------------------------- */

/* OK, or BUSY with how long the owner has been silent. */
static struct duck_done may_replace(struct duck_core *core, const struct core_association *from,
                                    bool takeover) {
    if (!compute_is_open(core)) return done_make(DUCK_OK, 0, "");
    const struct core_association *owner = association_owner(core);
    uint64_t silent = owner == NULL ? UINT64_MAX : plat_now_ns() - owner->heard_ns;
    bool allowed = owner == from || silent >= DUCK_OWNER_SILENT_MS * UINT64_C(1000000);
    if (takeover && allowed) return done_make(DUCK_OK, 0, "");
    if (owner == from)
        return done_make(
            DUCK_ERR_BUSY, silent,
            "this host session has a compute session open: CLOSE or DUCK_OPEN_TAKEOVER");
    return done_make(DUCK_ERR_BUSY, silent, "another host owns the compute session");
}

/* On the host's wish, not by a fault. An OPEN whose kernel is not ready yet gets its answer, else
 * its place in the reply cache would be lost. */
static void end_session(struct duck_core *core) {
    if (core->session.state == CORE_STARTING) {
        struct duck_done done =
            done_make(DUCK_ERR_NO_SESSION, 0, "closed or replaced while starting");
        reply_finish(core, core->session.opening, &done);
    }
    plat_session_stop();
    core->session.state = CORE_CLOSED;
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

static struct duck_done check_fields(const struct duck_core *core, const struct duck_open *request,
                                     const struct core_association *from) {
    uint32_t cores = plat_core_count();
    if ((request->flags & ~(DUCK_OPEN_TAKEOVER | DUCK_OPEN_ONE_SHOT)) != 0)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "OPEN: unknown flags");
    if (request->core_count > cores)
        return done_make(DUCK_ERR_BAD_REQUEST, cores, "OPEN: core_count; value = the duck's cores");
    if (request->call_bytes_max == 0 || request->call_bytes_max > DUCK_WIRE_CALL_BYTES_MAX)
        return done_make(DUCK_ERR_BAD_REQUEST, DUCK_WIRE_CALL_BYTES_MAX, "OPEN: call_bytes_max");
    if (request->result_bytes_max == 0 || request->result_bytes_max > DUCK_WIRE_CALL_BYTES_MAX)
        return done_make(DUCK_ERR_BAD_REQUEST, DUCK_WIRE_CALL_BYTES_MAX, "OPEN: result_bytes_max");
    if (request->scratch_bytes > CORE_SCRATCH_BYTES_MAX)
        return done_make(DUCK_ERR_BAD_REQUEST, CORE_SCRATCH_BYTES_MAX, "OPEN: scratch_bytes");
    if (request->call_time_limit_ms == 0 ||
        request->call_time_limit_ms > CORE_CALL_TIME_LIMIT_MS_MAX)
        return done_make(DUCK_ERR_BAD_REQUEST, CORE_CALL_TIME_LIMIT_MS_MAX,
                         "OPEN: call_time_limit_ms");
    if (request->domain_session != 0 && !domain_is_known(core, request->domain_session, from))
        return done_make(DUCK_ERR_BAD_REQUEST, 0,
                         "OPEN: domain_session has no key: DOMAIN_KEY comes first");
    return done_make(DUCK_OK, 0, "");
}

static struct duck_done lacks_features(uint32_t missing) {
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {{DUCK_CPU_AVX2, " AVX2"},     {DUCK_CPU_FMA, " FMA"},
                 {DUCK_CPU_F16C, " F16C"},     {DUCK_CPU_AESNI, " AES-NI"},
                 {DUCK_CPU_PCLMUL, " PCLMUL"}, {DUCK_CPU_AVXVNNI, " AVX-VNNI"}};
    struct duck_done done = {.status = DUCK_ERR_UNSUPPORTED, .value = missing};
    struct text text = text_start(done.text, sizeof done.text);
    text_add(&text, "the kernel needs what this CPU lacks:");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((missing & names[i].bit) != 0) text_add(&text, names[i].name);
    return done;
}

/* Zero = any. A region that is not there has the id zero. */
static bool is_wanted(const struct core_region *region, const uint8_t *id) {
    static const uint8_t any[DUCK_WIRE_DIGEST_BYTES];
    return memcmp(id, any, sizeof any) == 0 || memcmp(id, region->set_id, sizeof any) == 0;
}

static struct duck_done check_regions(const struct duck_core *core,
                                      const struct duck_open *request) {
    const struct core_region *kernel = &core->region[DUCK_REGION_KERNEL];
    const struct core_region *weights = &core->region[DUCK_REGION_WEIGHTS];
    if (!kernel->whole) return done_make(DUCK_ERR_NOT_COMMITTED, 0, "OPEN: kernel not committed");
    if (weights->bytes != 0 && !weights->whole)
        return done_make(DUCK_ERR_NOT_COMMITTED, 0, "OPEN: weights not committed as a whole");
    if (!is_wanted(weights, request->weights_id))
        return done_make(DUCK_ERR_NOT_COMMITTED, 0,
                         "OPEN: other weights than this host's were loaded meanwhile");
    if (!is_wanted(kernel, request->kernel_id))
        return done_make(DUCK_ERR_NOT_COMMITTED, 0,
                         "OPEN: another kernel than this host's was loaded meanwhile");
    return done_make(DUCK_OK, 0, "");
}

static struct duck_done check_kernel(const struct duck_core *core) {
    const struct core_region *kernel = &core->region[DUCK_REGION_KERNEL];
    struct elf_plan plan;
    enum elf_error error = elf_check(kernel->memory, kernel->bytes, &plan);
    if (error != ELF_OK) return done_make(DUCK_ERR_BAD_ELF, error, elf_error_text(error));
    if (plan.note.abi_version != DUCK_KERNEL_ABI_VERSION)
        return done_make(DUCK_ERR_ABI, DUCK_KERNEL_ABI_VERSION,
                         "the kernel is built for another ABI version; value = the duck's");
    uint32_t missing = plan.note.cpu_features & ~plat_cpu_features();
    if (missing != 0) return lacks_features(missing);
    return done_make(DUCK_OK, 0, "");
}

static uint64_t whole_pages(uint64_t bytes) { return (bytes + 4095) & ~UINT64_C(4095); }

/* Fresh state; the calls of an earlier session are forgotten with their results. */
static void prepare(struct duck_core *core, const struct core_received *received,
                    const struct duck_open *request) {
    struct core_session *session = &core->session;
    memset(session, 0, sizeof *session);
    session->owner = association_index(core, received->from);
    session->owner_generation = received->from->generation;
    session->takes_domain_calls = request->domain_session != 0;
    session->floor_epoch = received->epoch;
    session->floor_counter = received->header->counter;
    domain_set_floors(core, received->from);
    session->call_bytes_max = request->call_bytes_max;
    session->result_bytes_max = request->result_bytes_max;
    session->input_stride = whole_pages(request->call_bytes_max);
    session->output_stride = whole_pages(request->result_bytes_max);
    session->call_time_limit_ns = request->call_time_limit_ms * UINT64_C(1000000);
    session->started_ns = plat_now_ns();
    session->is_one_shot = (request->flags & DUCK_OPEN_ONE_SHOT) != 0;
    session->opening = reply_ticket(core, received);
}

static struct duck_done start(struct duck_core *core, const struct core_received *received,
                              const struct duck_open *request) {
    end_session(core);
    commit_recall(core); /* the session wants all cores */
    prepare(core, received, request);
    struct core_session *session = &core->session;
    struct plat_session_request wanted = {
        .elf_bytes = core->region[DUCK_REGION_KERNEL].bytes,
        .weights_bytes = core->region[DUCK_REGION_WEIGHTS].bytes,
        .calls_bytes = DUCK_KERNEL_SLOTS * (session->input_stride + session->output_stride),
        .scratch_bytes = request->scratch_bytes,
        .core_count = request->core_count != 0 ? request->core_count : plat_core_count(),
        .run_mode = session->is_one_shot ? DUCK_KERNEL_ONE_SHOT : DUCK_KERNEL_PERSISTENT,
    };
    uint64_t available = plat_session_bytes_max();
    if (wanted.calls_bytes + wanted.scratch_bytes > available)
        return done_make(DUCK_ERR_NO_MEMORY, available,
                         "OPEN: not enough memory for call buffers and scratch");
    struct duck_done done = {0};
    done.status = plat_session_start(&wanted, &session->shared, done.text);
    if (done.status == DUCK_OK) session->state = CORE_STARTING;
    /* A one-shot kernel starts when its input is there, so OPEN is answered now. */
    if (done.status == DUCK_OK && session->is_one_shot) {
        session->state = CORE_SERVING;
        core->stats.sessions_opened++;
        core_say(core, "one-shot run prepared");
    }
    return done;
}

void compute_open(struct duck_core *core, const struct core_received *received) {
    struct duck_open request;
    if (!reply_begin(core, received)) return;
    memcpy(&request, received->payload, sizeof request);
    struct duck_done done =
        may_replace(core, received->from, (request.flags & DUCK_OPEN_TAKEOVER) != 0);
    if (done.status == DUCK_OK) done = check_fields(core, &request, received->from);
    if (done.status == DUCK_OK) done = check_regions(core, &request);
    if (done.status == DUCK_OK) done = check_kernel(core);
    if (done.status == DUCK_OK) done = start(core, received, &request);
    if (done.status != DUCK_OK || core->session.is_one_shot)
        reply_finish(core, reply_ticket(core, received), &done);
}

/* ---- CLOSE ----------------------------------------------------------------------------------- */

void compute_close(struct duck_core *core, const struct core_received *received) {
    if (!reply_begin(core, received)) return;
    struct duck_done done = may_replace(core, received->from, true);
    if (done.status == DUCK_OK) {
        if (compute_is_open(core)) core_say(core, "compute session closed");
        end_session(core);
    }
    reply_finish(core, reply_ticket(core, received), &done);
}

/* ---- the end by a fault ---------------------------------------------------------------------- */

static void say_fault(struct duck_core *core, const struct duck_fault *fault) {
    char buffer[CORE_LOG_LINE_BYTES - 32];
    struct text line = text_start(buffer, sizeof buffer);
    text_add(&line, "compute session ended: status ");
    text_add_u64(&line, fault->status);
    text_add(&line, " kind ");
    text_add_u64(&line, fault->fault_kind);
    text_add(&line, " address ");
    text_add_hex(&line, fault->address);
    text_add(&line, " instruction ");
    text_add_hex(&line, fault->instruction);
    text_add(&line, ": ");
    text_add_foreign(&line, fault->text, sizeof fault->text);
    core_say_text(core, &line);
}

void compute_fault(struct duck_core *core, const struct duck_fault *fault) {
    struct core_session *session = &core->session;
    bool was_starting = session->state == CORE_STARTING;
    plat_session_stop();
    session->fault = *fault;
    struct text text = text_start(session->fault.text, sizeof session->fault.text);
    text_add_foreign(&text, fault->text, sizeof fault->text);
    session->fault.call = session->published != session->completed ? session->completed + 1 : 0;
    session->state = CORE_FAULTED;
    core->stats.sessions_faulted++;
    say_fault(core, &session->fault);
    if (was_starting) {
        struct duck_done done =
            done_make(session->fault.status, session->fault.address, session->fault.text);
        done.detail = session->fault.fault_kind;
        reply_finish(core, session->opening, &done);
        return;
    }
    struct core_association *owner = association_owner(core);
    if (owner != NULL)
        packet_send_fault(core, owner, session->fault.call, &session->fault, UINT64_MAX);
}

void compute_fault_named(struct duck_core *core, enum duck_status status, const char *text) {
    struct duck_fault fault = {
        .status = status,
        .fault_kind = status == DUCK_ERR_TIME_LIMIT ? DUCK_FAULT_KILLED : DUCK_FAULT_NONE,
        .core = UINT32_MAX,
        .instruction = UINT64_MAX,
    };
    struct text out = text_start(fault.text, sizeof fault.text);
    text_add(&out, text);
    compute_fault(core, &fault);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* What the kernel said about its start; it may still be changing the words. */
static struct duck_done kernel_words(const struct duck_core *core, enum duck_status status) {
    struct duck_done done = {.status = status};
    struct text text = text_start(done.text, sizeof done.text);
    const struct duck_kernel_mailbox *mailbox = core->session.shared.mailbox;
    char words[sizeof mailbox->init_text];
    memcpy(words, mailbox->init_text, sizeof words);
    text_add_foreign(&text, words, sizeof words);
    return done;
}

/* The kernel is not ready and says why: its own code and words go to the host. */
static void refused(struct duck_core *core, int32_t code) {
    struct duck_done done = kernel_words(core, DUCK_ERR_KERNEL_REFUSED);
    done.detail = (uint32_t)code;
    plat_session_stop();
    core->session.state = CORE_CLOSED;
    core_say(core, "kernel refused to start");
    reply_finish(core, core->session.opening, &done);
}

static void starting_tick(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    int32_t status = __atomic_load_n(&session->shared.mailbox->init_status, __ATOMIC_ACQUIRE);
    if (status == DUCK_KERNEL_INIT_PENDING) {
        if (now - session->started_ns >= CORE_START_LIMIT_NS)
            compute_fault_named(core, DUCK_ERR_TIME_LIMIT, "the kernel did not get ready in time");
        return;
    }
    if (status != 0) {
        refused(core, status);
        return;
    }
    session->state = CORE_SERVING;
    core->stats.sessions_opened++;
    core_say(core, "compute session open");
    struct duck_done done = kernel_words(core, DUCK_OK);
    memcpy(session->kernel_words, done.text, sizeof session->kernel_words);
    reply_finish(core, session->opening, &done);
}

/* Every entry has returned, or a fault ended the run. */
static void one_shot_ended(struct duck_core *core, const struct duck_fault *end, uint64_t now) {
    const struct duck_kernel_mailbox *mailbox = core->session.shared.mailbox;
    if (end->fault_kind != DUCK_FAULT_EXITED || end->address != 0) {
        compute_fault(core, end);
        return;
    }
    int32_t init_status = __atomic_load_n(&mailbox->init_status, __ATOMIC_ACQUIRE);
    if (init_status > 0) {
        struct duck_done words = kernel_words(core, DUCK_ERR_KERNEL_REFUSED);
        compute_fault_named(core, DUCK_ERR_KERNEL_REFUSED, words.text);
        return;
    }
    calls_complete(core, now);
    if (core->session.state != CORE_SERVING) return;
    core->session.is_over = core->session.completed == 1;
    if (!core->session.is_over)
        compute_fault_named(core, DUCK_ERR_KERNEL_FAULT, "the kernel returned without a result");
    else
        core_say(core, "one-shot run finished");
}

static uint64_t one_shot_tick(struct duck_core *core, uint64_t now) {
    struct duck_fault end;
    if (core->session.is_over) return UINT64_MAX;
    if (plat_session_ended(&end)) one_shot_ended(core, &end, now);
    return core->session.state == CORE_SERVING ? calls_tick(core, now) : UINT64_MAX;
}

uint64_t compute_tick(struct duck_core *core, uint64_t now) {
    struct core_session *session = &core->session;
    struct duck_fault fault;
    if (!compute_is_open(core)) return UINT64_MAX;
    if (session->is_one_shot) return one_shot_tick(core, now);
    bool ended = plat_session_ended(&fault);
    if (session->state == CORE_STARTING) starting_tick(core, now);
    if (session->state == CORE_SERVING) calls_complete(core, now);
    if (ended && compute_is_open(core)) compute_fault(core, &fault);
    if (session->state == CORE_STARTING) return now + CORE_START_LOOK_NS;
    return session->state == CORE_SERVING ? calls_tick(core, now) : UINT64_MAX;
}
