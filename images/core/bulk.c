/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions and their bytes. WRITE goes straight into the region; a chunk's bitmap tells what is
 * missing. The host probes with the chunk's last fragment, so acknowledgements need no timer here.
 */
#include "parts.h"

/* Chunks and requests are numbered apart: DONE for a refused chunk carries the chunk's sequence
 * with this bit. */
#define WRITE_REFUSED_BIT 0x80000000u

/* ---- RESERVE --------------------------------------------------------------------------------- */

static void forget_contents(struct core_region *region) {
    region->whole = false;
    region->generation++;
    memset(region->set_id, 0, sizeof region->set_id);
    ranges_clear(&region->committed);
}

static struct duck_done provide(struct duck_core *core, struct core_region *region, uint32_t which,
                                uint64_t bytes) {
    uint64_t grantable = plat_region_bytes_max(which);
    if (bytes > grantable)
        return done_make(DUCK_ERR_NO_MEMORY, grantable, "the duck has not so much memory left");
    commit_recall(core);
    if (region->bytes != 0) plat_region_release(which);
    region->bytes = 0;
    region->memory = NULL;
    forget_contents(region);
    if (bytes == 0) return done_make(DUCK_OK, 0, "");
    region->memory = plat_region_provide(which, bytes);
    if (region->memory == NULL)
        return done_make(DUCK_ERR_NO_MEMORY, plat_region_bytes_max(which),
                         "the machine could not provide the memory");
    region->bytes = bytes;
    core_say(core, which == DUCK_REGION_KERNEL ? "kernel region reserved" : "weights reserved");
    return done_make(DUCK_OK, bytes, "");
}

static struct duck_done reserve(struct duck_core *core, const struct duck_reserve *request) {
    if (request->region >= DUCK_REGION_COUNT)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "RESERVE: unknown region");
    if ((request->flags & ~DUCK_RESERVE_FRESH) != 0)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "RESERVE: unknown flags");
    if (request->region == DUCK_REGION_KERNEL && request->bytes > DUCK_KERNEL_ELF_BYTES_MAX)
        return done_make(DUCK_ERR_BAD_REQUEST, DUCK_KERNEL_ELF_BYTES_MAX,
                         "RESERVE: a kernel is at most 4 MiB");
    struct core_region *region = &core->region[request->region];
    bool fresh = (request->flags & DUCK_RESERVE_FRESH) != 0;
    if (region->bytes == request->bytes && !fresh) return done_make(DUCK_OK, region->bytes, "");
    if (compute_is_open(core))
        return done_make(DUCK_ERR_BUSY, 0, "RESERVE: a compute session is open; CLOSE it first");
    if (region->bytes == request->bytes) {
        forget_contents(region);
        return done_make(DUCK_OK, region->bytes, "");
    }
    return provide(core, region, request->region, request->bytes);
}

void bulk_reserve(struct duck_core *core, const struct core_received *received) {
    struct duck_reserve request;
    if (!reply_begin(core, received)) return;
    memcpy(&request, received->payload, sizeof request);
    struct duck_done done = reserve(core, &request);
    reply_finish(core, reply_ticket(core, received), &done);
}

/* ---- WRITE ----------------------------------------------------------------------------------- */

/* Zero ranges: complete. The answer spends the bytes that the chunk's fragments brought. */
static void acknowledge(struct duck_core *core, struct core_association *to, uint32_t sequence,
                        struct core_chunk *chunk) {
    const uint32_t fixed = sizeof(struct duck_packet_header) + offsetof(struct duck_nack, range[0]);
    struct duck_nack ack = {.message_type = DUCK_MSG_WRITE};
    if (chunk->asked_bytes < fixed) return;
    uint64_t affordable = (chunk->asked_bytes - fixed) / sizeof ack.range[0];
    uint32_t ranges_max =
        affordable < DUCK_WIRE_NACK_RANGES_MAX ? (uint32_t)affordable : DUCK_WIRE_NACK_RANGES_MAX;
    /* An incomplete chunk is acknowledged when its last fragment comes, which brings at least one
     * byte of data: enough for one range, so that "nothing missing" is never said falsely. */
    static_assert(sizeof(struct duck_write_prefix) + 1 >=
                      offsetof(struct duck_nack, range[0]) + sizeof(struct duck_nack_range),
                  "the shortest last fragment pays for one range");
    if (chunk->sequence == sequence && chunk->received < chunk->fragments)
        ack.range_count = bits_missing(chunk->bits, chunk->fragments, ack.range, ranges_max);
    uint32_t bytes =
        (uint32_t)(offsetof(struct duck_nack, range[0]) + ack.range_count * sizeof ack.range[0]);
    chunk->asked_bytes -= sizeof(struct duck_packet_header) + bytes;
    packet_send(core, to, DUCK_MSG_WRITE_ACK, sequence, &ack, bytes);
}

static struct duck_done check_target(struct duck_core *core, const struct duck_write_prefix *prefix,
                                     uint32_t bytes) {
    if (prefix->region >= DUCK_REGION_COUNT || prefix->reserved != 0)
        return done_make(DUCK_ERR_BAD_REQUEST, 0, "WRITE: unknown region");
    const struct core_region *region = &core->region[prefix->region];
    if (region->bytes == 0)
        return done_make(DUCK_ERR_NOT_RESERVED, 0, "WRITE: region not reserved");
    if (bytes > DUCK_WIRE_WRITE_CHUNK_BYTES)
        return done_make(DUCK_ERR_BAD_REQUEST, DUCK_WIRE_WRITE_CHUNK_BYTES,
                         "WRITE: chunk is too large");
    if (prefix->chunk_offset > region->bytes || bytes > region->bytes - prefix->chunk_offset)
        return done_make(DUCK_ERR_BAD_RANGE, region->bytes, "WRITE: leaves the region");
    if (compute_is_open(core))
        return done_make(DUCK_ERR_BUSY, 0, "WRITE: a compute session is open; CLOSE it first");
    return done_make(DUCK_OK, 0, "");
}

/* Bytes are about to change: they are no longer committed, and hashes over them begin again. Cheap
 * where nothing is committed: this is done for a whole chunk when it begins, and for each fragment,
 * which may come long after that. */
static void uncommit(struct duck_core *core, uint32_t which, uint64_t begin, uint64_t end) {
    struct core_region *region = &core->region[which];
    if (ranges_touch(&region->committed, begin, end)) {
        ranges_remove(&region->committed, begin, end);
        region->whole = false;
    }
    commit_forget(core, which, begin, end);
}

static void begin_chunk(struct duck_core *core, struct core_chunk *chunk,
                        const struct duck_packet_header *header,
                        const struct duck_write_prefix *prefix) {
    chunk->sequence = header->sequence;
    chunk->region = prefix->region;
    chunk->generation = core->region[prefix->region].generation;
    chunk->offset = prefix->chunk_offset;
    chunk->message_bytes = header->message_bytes;
    chunk->stride = header->fragment_bytes;
    chunk->fragments = duck_fragment_count(header->message_bytes, header->fragment_bytes);
    chunk->received = 0;
    chunk->asked_bytes = 0;
    bits_clear(chunk->bits, chunk->fragments);
    uncommit(core, prefix->region, chunk->offset, chunk->offset + chunk->message_bytes);
}

static bool same_chunk(const struct core_chunk *chunk, const struct duck_packet_header *header,
                       const struct duck_write_prefix *prefix) {
    return chunk->region == prefix->region && chunk->offset == prefix->chunk_offset &&
           chunk->message_bytes == header->message_bytes && chunk->stride == header->fragment_bytes;
}

static void take_fragment(struct duck_core *core, struct core_chunk *chunk,
                          const struct duck_packet_header *header, const uint8_t *data) {
    if (bits_test(chunk->bits, header->fragment_index)) return;
    bits_set(chunk->bits, header->fragment_index);
    uint32_t bytes = header->payload_bytes - (uint32_t)sizeof(struct duck_write_prefix);
    uint64_t at = chunk->offset + (uint64_t)header->fragment_index * chunk->stride;
    if (bytes != 0) {
        uncommit(core, chunk->region, at, at + bytes);
        memcpy(core->region[chunk->region].memory + at, data, bytes);
    }
    chunk->received++;
    core->stats.write_bytes += bytes;
}

void bulk_write(struct duck_core *core, const struct core_received *received) {
    const struct duck_packet_header *header = received->header;
    struct core_association *from = received->from;
    struct duck_write_prefix prefix;
    memcpy(&prefix, received->payload, sizeof prefix);
    bool last = packet_is_last_fragment(header);
    struct core_chunk *chunk = &from->chunk[header->sequence % DUCK_WIRE_WRITES_IN_FLIGHT_MAX];
    if (header->sequence <
        chunk->sequence) { /* long complete, or its newer neighbour would not exist */
        struct core_chunk past = {.asked_bytes = received->packet_bytes};
        if (last) acknowledge(core, from, header->sequence, &past);
        return;
    }
    struct duck_done done = check_target(core, &prefix, header->message_bytes);
    if (done.status != DUCK_OK || header->sequence == 0) {
        if (last)
            packet_send_done(core, from, header->sequence | WRITE_REFUSED_BIT, &done,
                             received->packet_bytes);
        return;
    }
    if (header->sequence > chunk->sequence ||
        chunk->generation != core->region[prefix.region].generation)
        begin_chunk(core, chunk, header, &prefix);
    if (!same_chunk(chunk, header, &prefix)) {
        core->stats.dropped_size++;
        return;
    }
    bool was_complete = chunk->received == chunk->fragments;
    chunk->asked_bytes += received->packet_bytes;
    take_fragment(core, chunk, header, received->payload + sizeof prefix);
    bool completes = !was_complete && chunk->received == chunk->fragments;
    if (completes || last) acknowledge(core, from, header->sequence, chunk);
}

/* ---- READ ------------------------------------------------------------------------------------ */

void bulk_read(struct duck_core *core, const struct core_received *received) {
    struct duck_read request;
    struct duck_done done = {0};
    memcpy(&request, received->payload, sizeof request);
    const struct core_region *region =
        request.region < DUCK_REGION_COUNT ? &core->region[request.region] : NULL;
    if (region == NULL || request.bytes > sizeof request)
        done = done_make(DUCK_ERR_BAD_REQUEST, 0, "READ: unknown region or more than 1024 bytes");
    else if (region->bytes == 0)
        done = done_make(DUCK_ERR_NOT_RESERVED, 0, "READ: region not reserved");
    else if (request.offset > region->bytes || request.bytes > region->bytes - request.offset)
        done = done_make(DUCK_ERR_BAD_RANGE, region->bytes, "READ: leaves the region");
    if (done.status != DUCK_OK)
        packet_send_done(core, received->from, received->header->sequence, &done,
                         received->packet_bytes);
    else
        packet_send(core, received->from, DUCK_MSG_READ_DATA, received->header->sequence,
                    region->memory + request.offset, request.bytes);
}
