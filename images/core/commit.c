/* SPDX-License-Identifier: Apache-2.0
 *
 * COMMIT: the duck hashes its own memory and compares. Cores that have nothing to do hash one piece
 * each; without them it is done here, a step between two looks at the network. Pieces are answered
 * in the order in which they came.
 */
#include "parts.h"

static struct core_commit_job *job_at(struct duck_core *core, uint32_t place) {
    return &core->commit[(core->commit_first + place) % CORE_COMMITS];
}

static struct duck_done check(const struct duck_core *core, const struct duck_commit *request) {
    if (request->region >= DUCK_REGION_COUNT)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "COMMIT: unknown region");
    if ((request->flags & ~DUCK_COMMIT_LAST) != 0)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "COMMIT: unknown flags");
    const struct core_region *region = &core->region[request->region];
    if (region->bytes == 0)
        return done_make(DUCK_ERR_NOT_RESERVED, 0, "COMMIT: region not reserved");
    if (request->bytes == 0 || request->offset > region->bytes ||
        request->bytes > region->bytes - request->offset)
        return done_make(DUCK_ERR_BAD_RANGE, region->bytes, "COMMIT: empty or leaves the region");
    if (core->commit_count == CORE_COMMITS)
        return done_make(DUCK_ERR_LIMIT, CORE_COMMITS, "COMMIT: too many wait for their hash");
    return done_make(DUCK_OK, 0, "");
}

void commit_request(struct duck_core *core, const struct core_received *received) {
    struct duck_commit request;
    if (!reply_begin(core, received)) return;
    memcpy(&request, received->payload, sizeof request);
    struct duck_done done = check(core, &request);
    if (done.status != DUCK_OK) {
        reply_finish(core, reply_ticket(core, received), &done);
        return;
    }
    struct core_commit_job *job = job_at(core, core->commit_count++);
    memset(job, 0, sizeof *job);
    job->ticket = reply_ticket(core, received);
    job->request = request;
    job->generation = core->region[request.region].generation;
    job->memory = core->region[request.region].memory + request.offset;
    duck_sha256_start(&job->hash);
}

/* ---- hashing --------------------------------------------------------------------------------- */

static void hash_step(struct core_commit_job *job, size_t most) {
    uint64_t left = job->request.bytes - job->done_bytes;
    size_t step = left < most ? (size_t)left : most;
    duck_sha256_add(&job->hash, job->memory + job->done_bytes, step);
    job->done_bytes += step;
}

/* On a spare core. */
static void hash_away(void *argument) {
    struct core_commit_job *job = argument;
    while (job->done_bytes < job->request.bytes &&
           __atomic_load_n(&job->recall, __ATOMIC_ACQUIRE) == 0)
        hash_step(job, CORE_HASH_STEP_BYTES);
    __atomic_store_n(&job->is_back, 1, __ATOMIC_RELEASE);
}

static bool is_done(const struct core_commit_job *job) {
    return !job->is_away && job->done_bytes == job->request.bytes;
}

static void take_back(struct core_commit_job *job) {
    if (job->is_away && __atomic_load_n(&job->is_back, __ATOMIC_ACQUIRE) != 0) job->is_away = false;
}

/* Small pieces are not worth the way to another core. */
static void give_away(struct core_commit_job *job) {
    if (job->is_away || job->request.bytes - job->done_bytes <= CORE_HASH_STEP_BYTES) return;
    job->is_back = 0;
    job->recall = 0;
    job->is_away = plat_spare_core_run(hash_away, job);
}

static void recall(struct core_commit_job *job) {
    __atomic_store_n(&job->recall, 1, __ATOMIC_RELEASE);
    while (job->is_away) {
        __builtin_ia32_pause(); /* a step takes about a millisecond */
        take_back(job);
    }
}

void commit_recall(struct duck_core *core) {
    for (uint32_t i = 0; i < core->commit_count; i++) recall(job_at(core, i));
}

void commit_forget(struct duck_core *core, uint32_t region, uint64_t begin, uint64_t end) {
    for (uint32_t i = 0; i < core->commit_count; i++) {
        struct core_commit_job *job = job_at(core, i);
        const struct duck_commit *request = &job->request;
        if (request->region != region || request->offset >= end ||
            request->offset + request->bytes <= begin)
            continue;
        recall(job);
        job->done_bytes = 0;
        duck_sha256_start(&job->hash);
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

static struct duck_done digest_differs(const uint8_t found[DUCK_WIRE_DIGEST_BYTES]) {
    struct duck_done done = {.status = DUCK_ERR_DIGEST};
    struct text text = text_start(done.text, sizeof done.text);
    text_add(&text, "in memory: ");
    text_add_digest(&text, found, DUCK_WIRE_DIGEST_BYTES);
    return done;
}

static struct duck_done finish(struct duck_core *core, const struct core_commit_job *job) {
    uint8_t found[DUCK_WIRE_DIGEST_BYTES];
    const struct duck_commit *request = &job->request;
    struct core_region *region = &core->region[request->region];
    duck_sha256_end(&job->hash, found);
    if (memcmp(found, request->sha256, sizeof found) != 0) {
        /* Also of what was committed before: memory that changed by itself holds no weights now. */
        ranges_remove(&region->committed, request->offset, request->offset + request->bytes);
        region->whole = false;
        return digest_differs(found);
    }
    core->stats.commits++;
    if (!ranges_add(&region->committed, request->offset, request->offset + request->bytes))
        return done_make(DUCK_ERR_LIMIT, RANGES_MAX, "COMMIT: too many separate pieces");
    if ((request->flags & DUCK_COMMIT_LAST) == 0) return done_make(DUCK_OK, 0, "");
    uint64_t gap = ranges_first_gap(&region->committed, region->bytes);
    if (gap != region->bytes)
        return done_make(DUCK_ERR_NOT_COMMITTED, gap,
                         "COMMIT: last piece, but the region has a gap; value = its offset");
    region->whole = true;
    memcpy(region->set_id, request->set_id, sizeof region->set_id);
    core_say(core,
             request->region == DUCK_REGION_KERNEL ? "kernel committed" : "weights committed");
    return done_make(DUCK_OK, 0, "");
}

static void answer_first(struct duck_core *core, const struct duck_done *done) {
    struct core_ticket ticket = job_at(core, 0)->ticket;
    core->commit_first = (core->commit_first + 1) % CORE_COMMITS;
    core->commit_count--;
    reply_finish(core, ticket, done);
}

static bool is_outdated(const struct duck_core *core, const struct core_commit_job *job) {
    return job->generation != core->region[job->request.region].generation;
}

/* Calls go first: a serving duck hashes in the pauses between them. */
static bool call_is_running(const struct duck_core *core) {
    return compute_is_open(core) && core->session.published != core->session.completed;
}

uint64_t commit_step(struct duck_core *core, uint64_t now) {
    if (core->commit_count == 0) return UINT64_MAX;
    for (uint32_t i = 0; i < core->commit_count; i++) {
        struct core_commit_job *job = job_at(core, i);
        take_back(job);
        if (!is_outdated(core, job) && !compute_is_open(core)) give_away(job);
    }
    struct core_commit_job *first = job_at(core, 0);
    if (is_outdated(core, first)) {
        recall(first);
        struct duck_done done =
            done_make(DUCK_ERR_BAD_REQUEST, 0, "COMMIT: the region was reserved anew");
        answer_first(core, &done);
    } else if (first->is_away || call_is_running(core)) {
        return now + CORE_HASH_LOOK_NS;
    } else {
        size_t most = compute_is_open(core) ? CORE_HASH_SERVING_BYTES : CORE_HASH_STEP_BYTES;
        if (!is_done(first)) hash_step(first, most);
        if (is_done(first)) {
            struct duck_done done = finish(core, first);
            answer_first(core, &done);
        }
    }
    return core->commit_count != 0 ? 0 : UINT64_MAX;
}
