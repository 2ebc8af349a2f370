/* SPDX-License-Identifier: Apache-2.0
 *
 * Page tables (Intel SDM volume 3, 4.5): four levels, pages of 4 KiB, 2 MiB and, where the CPU has
 * them, 1 GiB. The OS lives in PML4 slots 0..127 (identity) and 256..511 (window, stacks, image); a
 * session's own mappings belong to slots PAGING_USER_FIRST_SLOT..255 of its own space.
 */
#ifndef DUCKOS_PAGING_H
#define DUCKOS_PAGING_H

#include <stdbool.h>
#include <stdint.h>

#define PAGE_BYTES 4096ull
#define PAGE_2M_BYTES (2ull << 20)
#define PAGE_1G_BYTES (1ull << 30)

#define PAGING_USER_FIRST_SLOT 128u
#define PAGING_USER_FIRST (0x0000400000000000ull) /* slot 128 */
#define PAGING_USER_END (0x0000800000000000ull)   /* behind slot 255 */

enum paging_flags {
    PAGE_READ = 0, /* supervisor, read-only, not executable */
    PAGE_WRITE = 1,
    PAGE_EXECUTE = 2, /* never together with PAGE_WRITE: refused */
    PAGE_USER = 4,
    PAGE_UNCACHED = 8,
    PAGE_COMBINE = 16, /* write-combining: PAT entry 1, see cpu_allow_page_rights */
};

enum paging_result {
    PAGING_OK = 0,
    PAGING_NO_TABLES = 1, /* the pool of page-table pages is empty */
    PAGING_OCCUPIED = 2,  /* something is mapped there */
    PAGING_REFUSED = 3,   /* bad alignment, range or flags */
};
#define PAGING_MUST_CHECK __attribute__((warn_unused_result))

struct paging_space {
    uint64_t root;        /* physical address of the PML4; 0 = no space */
    uint32_t table_count; /* page-table pages taken from the pool, the PML4 included */
};

/* A space for a session: the OS's mappings plus nothing. Spaces come from a pool of pages that
 * paging_free_space fills again: no leak over any number of sessions. */
enum paging_result paging_new_space(struct paging_space *space) PAGING_MUST_CHECK;
void paging_free_space(struct paging_space *space); /* no core may be using it */

/* `virtual`, `physical` and `bytes` are multiples of 4 KiB. Sessions' spaces take addresses in
 * PAGING_USER_FIRST..PAGING_USER_END only. Picks the largest pages that alignment allows. */
enum paging_result paging_map(struct paging_space *space, uint64_t virtual, uint64_t physical,
                              uint64_t bytes, uint32_t flags) PAGING_MUST_CHECK;
/* Removes the mapping of whole pages; the caller flushes other cores. */
enum paging_result paging_unmap(struct paging_space *space, uint64_t virtual,
                                uint64_t bytes) PAGING_MUST_CHECK;

/* What a virtual address leads to in a space: false when nothing is mapped there. */
bool paging_look(const struct paging_space *space, uint64_t virtual, uint64_t *physical,
                 uint32_t *flags);

struct paging_space *paging_kernel_space(void);
void paging_switch(const struct paging_space *space); /* on this core */
uint32_t paging_pool_left(void);
bool paging_has_1g(void);

#endif
