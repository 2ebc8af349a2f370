/* SPDX-License-Identifier: Apache-2.0
 *
 * COMMIT: the duck hashes its own memory, a step between two looks at the network, and compares.
 */
#include "parts.h"

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
    struct core_commit_job *job = &core->commit[core->commit_count++];
    job->ticket = reply_ticket(core, received);
    job->request = request;
    job->done_bytes = 0;
    job->generation = core->region[request.region].generation;
    duck_sha256_start(&job->hash);
}

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
    if (memcmp(found, request->sha256, sizeof found) != 0) return digest_differs(found);
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

static void drop_first(struct duck_core *core) {
    core->commit_count--;
    memmove(&core->commit[0], &core->commit[1], core->commit_count * sizeof core->commit[0]);
}

bool commit_step(struct duck_core *core) {
    if (core->commit_count == 0) return false;
    struct core_commit_job *job = &core->commit[0];
    const struct core_region *region = &core->region[job->request.region];
    struct duck_done done;
    if (job->generation != region->generation) {
        done = done_make(DUCK_ERR_BAD_REQUEST, 0, "COMMIT: the region was reserved anew");
    } else {
        uint64_t left = job->request.bytes - job->done_bytes;
        size_t step = left < CORE_HASH_STEP_BYTES ? (size_t)left : CORE_HASH_STEP_BYTES;
        duck_sha256_add(&job->hash, region->memory + job->request.offset + job->done_bytes, step);
        job->done_bytes += step;
        if (job->done_bytes < job->request.bytes) return true;
        done = finish(core, job);
    }
    struct core_ticket ticket = job->ticket;
    drop_first(core);
    reply_finish(core, ticket, &done);
    return core->commit_count != 0;
}
