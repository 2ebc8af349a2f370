/* SPDX-License-Identifier: Apache-2.0 */
#include "areas.h"

#define PAGE_BYTES_SMALL 4096ull

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

static uint64_t unit_of(uint32_t region) {
    return region == DUCK_REGION_WEIGHTS ? PAGE_BYTES_SMALL : AREAS_UNIT_BYTES;
}

void areas_init(struct areas *areas, uint64_t window_bytes, uint64_t limit_bytes) {
    uint64_t bytes = limit_bytes != 0 && limit_bytes < window_bytes ? limit_bytes : window_bytes;
    *areas = (struct areas){.bytes = bytes / AREAS_UNIT_BYTES * AREAS_UNIT_BYTES};
}

/* What is left when everything but one region, and perhaps the session, stays. */
static uint64_t left(const struct areas *areas, uint32_t except, bool with_session) {
    uint64_t used = with_session ? areas->session_bytes : 0;
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++)
        if (i != except) used += areas->region_bytes[i];
    return used < areas->bytes ? areas->bytes - used : 0;
}

uint64_t areas_region_bytes_max(const struct areas *areas, uint32_t region) {
    uint64_t whole = left(areas, region, true) / unit_of(region) * unit_of(region);
    return whole > DUCK_KERNEL_READ_AHEAD ? whole - DUCK_KERNEL_READ_AHEAD : 0;
}

uint64_t areas_take_region(struct areas *areas, uint32_t region, uint64_t bytes) {
    if (areas->region_bytes[region] != 0 || bytes > areas_region_bytes_max(areas, region))
        return AREAS_NONE;
    uint64_t taken = round_up(bytes + DUCK_KERNEL_READ_AHEAD, unit_of(region));
    /* The session hangs below the ELF: that one can't come or go while it is there. */
    if (region == DUCK_REGION_KERNEL && areas->session_bytes != 0) return AREAS_NONE;
    areas->region_bytes[region] = taken;
    areas->taken_count++;
    return region == DUCK_REGION_WEIGHTS ? 0 : areas->bytes - taken;
}

void areas_give_region(struct areas *areas, uint32_t region) { areas->region_bytes[region] = 0; }

uint64_t areas_session_bytes_max(const struct areas *areas) {
    return left(areas, DUCK_REGION_COUNT, false) / AREAS_UNIT_BYTES * AREAS_UNIT_BYTES;
}

uint64_t areas_take_session(struct areas *areas, uint64_t bytes) {
    if (areas->session_bytes != 0 || bytes == 0 || bytes > areas_session_bytes_max(areas))
        return AREAS_NONE;
    areas->session_bytes = round_up(bytes, AREAS_UNIT_BYTES);
    areas->taken_count++;
    return areas->bytes - areas->region_bytes[DUCK_REGION_KERNEL] - areas->session_bytes;
}

void areas_give_session(struct areas *areas) { areas->session_bytes = 0; }
