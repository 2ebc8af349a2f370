/* SPDX-License-Identifier: Apache-2.0
 *
 * Region memory: memory files, so that a session child can map them. Weights lie in 2 MiB huge
 * pages when enough of them are free, which is a pool of its own beside the limit on normal memory.
 */
#include "duckd.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2ull << 20)
#define PAGE_BYTES 4096ull

struct block {
    int fd;
    uint8_t *memory;
    uint64_t map_bytes; /* 0 = not provided */
    bool huge;
};

static struct block block[DUCK_REGION_COUNT];
static uint64_t limit;         /* of normal memory */
static uint64_t session_bytes; /* call buffers and scratch of the session */
static bool may_use_huge_pages;

void memory_init(uint64_t memory_limit, bool huge_pages) {
    limit = memory_limit != 0 ? memory_limit : machine_memory_available() / 10 * 9;
    may_use_huge_pages = huge_pages;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

static uint64_t used_except(uint32_t region) {
    uint64_t used = session_bytes;
    for (uint32_t i = 0; i < DUCK_REGION_COUNT; i++)
        if (i != region && !block[i].huge) used += block[i].map_bytes;
    return used;
}

static uint64_t left(uint64_t used) { return used < limit ? limit - used : 0; }

static uint64_t huge_bytes_max(uint32_t region) {
    if (!may_use_huge_pages || region != DUCK_REGION_WEIGHTS) return 0;
    uint64_t bytes = machine_free_huge_pages() * HUGE_PAGE_BYTES;
    return block[region].huge ? bytes + block[region].map_bytes : bytes;
}

static uint64_t without_read_ahead(uint64_t bytes) {
    return bytes > DUCK_KERNEL_READ_AHEAD ? bytes - DUCK_KERNEL_READ_AHEAD : 0;
}

uint64_t plat_region_bytes_max(uint32_t region) {
    uint64_t normal = left(used_except(region)) / PAGE_BYTES * PAGE_BYTES;
    uint64_t huge = huge_bytes_max(region);
    return without_read_ahead(normal > huge ? normal : huge);
}

uint64_t plat_session_bytes_max(void) {
    return left(used_except(DUCK_REGION_COUNT) - session_bytes);
}

void memory_session_take(uint64_t bytes) { session_bytes = bytes; }
void memory_session_give_back(void) { session_bytes = 0; }

int memory_high_fd(int fd) {
    const int floor = 16;
    if (fd < 0) return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, floor);
    close(fd);
    return high;
}

/* True when the block is there. Mapping reserves huge pages, so a shortage shows here and not at
 * first use. */
static bool make(struct block *out, uint64_t map_bytes, bool huge) {
    unsigned flags = MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
    int fd = memory_high_fd((int)syscall(SYS_memfd_create, "duck-region", flags));
    if (fd < 0) return false;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)map_bytes) == 0)
        memory = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return false;
    }
    if (!huge) madvise(memory, map_bytes, MADV_HUGEPAGE);
    madvise(memory, map_bytes, MADV_DONTDUMP);
    *out = (struct block){.fd = fd, .memory = memory, .map_bytes = map_bytes, .huge = huge};
    return true;
}

uint8_t *plat_region_provide(uint32_t region, uint64_t bytes) {
    uint64_t needed = bytes + DUCK_KERNEL_READ_AHEAD;
    uint64_t huge = round_up(needed, HUGE_PAGE_BYTES);
    uint64_t normal = round_up(needed, PAGE_BYTES);
    if (huge <= huge_bytes_max(region) && make(&block[region], huge, true))
        return block[region].memory;
    if (normal <= left(used_except(region)) && make(&block[region], normal, false))
        return block[region].memory;
    return NULL;
}

void plat_region_release(uint32_t region) {
    if (block[region].map_bytes == 0) return;
    munmap(block[region].memory, block[region].map_bytes);
    close(block[region].fd);
    memset(&block[region], 0, sizeof block[region]);
}

int memory_region_fd(uint32_t region) { return block[region].fd; }
uint64_t memory_region_map_bytes(uint32_t region) { return block[region].map_bytes; }
bool memory_in_huge_pages(uint32_t region) { return block[region].huge; }
