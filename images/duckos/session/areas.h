/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has which part of the window: weights at the bottom (where the pages are largest), the kernel
 * region's ELF at the top, the session between them, directly below the ELF. Three lengths are all
 * the state there is: nothing can leak or become fragmented. Pure arithmetic, tested on the host.
 */
#ifndef DUCKOS_AREAS_H
#define DUCKOS_AREAS_H

#include <duck/kernel_abi.h>
#include <duck/wire.h>
#include <stdbool.h>

#define AREAS_UNIT_BYTES (2ull << 20) /* kernel and session: whole large pages */

struct areas {
    uint64_t bytes;                           /* of the window, or what a limit leaves of it */
    uint64_t region_bytes[DUCK_REGION_COUNT]; /* taken, read-ahead included; 0 = not provided */
    uint64_t session_bytes;
    uint64_t taken_count; /* how often something was taken since boot */
};

#define AREAS_NONE UINT64_MAX

void areas_init(struct areas *areas, uint64_t window_bytes, uint64_t limit_bytes);

/* The largest region that fits once its present block is given back. */
uint64_t areas_region_bytes_max(const struct areas *areas, uint32_t region);
/* Offset in the window, or AREAS_NONE. The region must not be there. */
uint64_t areas_take_region(struct areas *areas, uint32_t region, uint64_t bytes);
void areas_give_region(struct areas *areas, uint32_t region);

/* The largest session that fits once the present one is given back. */
uint64_t areas_session_bytes_max(const struct areas *areas);
uint64_t areas_take_session(struct areas *areas, uint64_t bytes);
void areas_give_session(struct areas *areas);

#endif
