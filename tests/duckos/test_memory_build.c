/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c and paging.c as they are, with a firmware's map of 32 GB. The arena is real memory of
 * this process at the address that the planner chooses, so that the page tables are really built;
 * everything else is only looked up in them. Usage: test_memory_build [1g]
 */
#include "boot/handover.h"
#include "cpu/cpu.h"
#include "fakes.h"
#include "memory/arena.h"
#include "memory/image.h"
#include "memory/memory.h"

#include <string.h>
#include <sys/mman.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define ARENA_AT (1024 * MIB) /* the smallest range that holds an arena */
#define ARENA_BYTES (48 * MIB)
#define IMAGE_AT (2 * MIB)

/* Offsets only: the image itself is not there. */
__asm__(".globl image_start, _text_end, _rodata_end, _file_end, _image_end\n"
        "image_start = 0x10000000\n_text_end = 0x10020000\n_rodata_end = 0x10024000\n"
        "_file_end = 0x10026000\n_image_end = 0x10050000\n");

struct handover handover;
static bool has_1g;

bool cpu_has_1g_pages(void) { return has_1g; }
void cpu_flush_page(uint64_t virtual) { (void)virtual; }
void cpu_use_tables(uint64_t root) { (void)root; }

static void fill_map(void) {
    static const struct memory_range usable[] = {
        {0x1000, 0x9d000},
        {MIB, 1000 * MIB},
        {ARENA_AT, 60 * MIB},
        {1100 * MIB, 900 * MIB + 0x3000},
        {4 * GIB, 30 * GIB - 700 * MIB},
    };
    for (size_t i = 0; i < sizeof usable / sizeof usable[0]; i++)
        memory_ranges_add(&handover.usable, usable[i].base, usable[i].bytes);
    memory_ranges_add(&handover.reserved, 512 * MIB, 4 * MIB);
    handover.image_physical = IMAGE_AT;
}

static bool looks(uint64_t virtual, uint64_t *physical, uint32_t *flags) {
    return paging_look(paging_kernel_space(), virtual, physical, flags);
}

/* Every page of the window leads to memory of its own that nothing else uses. */
static void check_window(void) {
    uint64_t physical, first = (uint64_t)memory_window();
    uint32_t flags;
    CHECK(memory_window_bytes() >= 305 * GIB / 10);
    CHECK(memory_window_contiguous_bytes() == 30 * GIB - 700 * MIB);
    for (uint64_t at = 0; at < memory_window_bytes(); at += 2 * MIB) {
        CHECK(looks(first + at, &physical, &flags));
        CHECK(flags == PAGE_WRITE);
        CHECK(physical % (2 * MIB) == 0);
        CHECK(physical != IMAGE_AT && physical != 512 * MIB && physical != 514 * MIB);
        CHECK(physical < ARENA_AT || physical >= ARENA_AT + ARENA_BYTES);
        if (at < memory_window_contiguous_bytes()) CHECK(physical == 4 * GIB + at);
    }
    CHECK(!looks(first + memory_window_bytes(), &physical, &flags));
    CHECK(looks(first + 5, &physical, &flags) && physical == 4 * GIB + 5);
}

/* Nothing is both writable and executable, through whatever address. */
static void check_rights(void) {
    uint64_t physical;
    uint32_t flags;
    CHECK(looks(IMAGE_BASE + 0x1000, &physical, &flags));
    CHECK(flags == PAGE_EXECUTE && physical == IMAGE_AT + 0x1000);
    CHECK(looks(IMAGE_BASE + 0x20000, &physical, &flags) && flags == PAGE_READ);
    CHECK(looks(IMAGE_BASE + 0x24000, &physical, &flags) && flags == PAGE_WRITE);
    CHECK(looks(IMAGE_BASE + 0x4f000, &physical, &flags) && flags == PAGE_WRITE);
    CHECK(!looks(IMAGE_BASE, &physical, &flags));
    CHECK(!looks(IMAGE_BASE + 0x50000, &physical, &flags));
    CHECK(looks(IMAGE_AT + 0x1000, &physical, &flags) && flags == PAGE_EXECUTE);
    memory_init(); /* takes the first mapping away */
    CHECK(!looks(IMAGE_AT + 0x1000, &physical, &flags));
    CHECK(!looks(0, &physical, &flags));
    CHECK(!looks(IMAGE_AT, &physical, &flags));
    CHECK(!looks(4 * GIB, &physical, &flags)); /* free memory: only through the window */
    CHECK(looks(ARENA_AT, &physical, &flags) && flags == PAGE_WRITE && physical == ARENA_AT);
}

static void check_stacks(const uint8_t *first_stack) {
    uint64_t physical;
    uint32_t flags;
    const uint8_t *second = memory_take_stack(8192);
    CHECK(!looks((uint64_t)first_stack, &physical, &flags)); /* guard between the two */
    CHECK(looks((uint64_t)first_stack - 1, &physical, &flags) && flags == PAGE_WRITE);
    CHECK(looks((uint64_t)second - 8192, &physical, &flags));
    CHECK(!looks((uint64_t)second - 8193, &physical, &flags));
}

static void check_devices(void) {
    uint64_t physical;
    uint32_t flags;
    memory_map_device(0xfee00000, 0x400);
    memory_map_device(0xfee00800, 0x1000); /* shares the first page */
    CHECK(looks(0xfee01000, &physical, &flags) && flags == (PAGE_WRITE | PAGE_UNCACHED));
    memory_map_frame_buffer(0xd0000000, 0x1000);
    CHECK(looks(0xd0000000, &physical, &flags) && flags == (PAGE_WRITE | PAGE_COMBINE));
    memory_map_firmware(0x7fe00ff0, 0x20);
    CHECK(looks(0x7fe01000, &physical, &flags) && flags == PAGE_READ);
    uint8_t *page = memory_start_page();
    CHECK((uint64_t)page == 0x8000);
    CHECK(looks(0x8000, &physical, &flags) && flags == PAGE_WRITE);
    memory_start_page_filled();
    CHECK(looks(0x8000, &physical, &flags) && flags == PAGE_EXECUTE);
}

static void check_refusals(struct paging_space *space) {
    const uint64_t user = PAGING_USER_FIRST;
    CHECK(paging_map(space, user, 0, 4096, PAGE_WRITE | PAGE_EXECUTE) == PAGING_REFUSED);
    CHECK(paging_map(space, 0x200000, 0, 4096, PAGE_USER) == PAGING_REFUSED);
    CHECK(paging_map(space, PAGING_USER_END - 4096, 0, 8192, PAGE_USER) == PAGING_REFUSED);
    CHECK(paging_map(space, user + 1, 0, 4096, PAGE_USER) == PAGING_REFUSED);
    CHECK(paging_map(space, user, 0, 0, PAGE_USER) == PAGING_REFUSED);
    CHECK(paging_map(paging_kernel_space(), user, 0, 4096, PAGE_USER) == PAGING_REFUSED);
    CHECK(memory_map_window(space, user, memory_window_bytes() - 4096, 8192, PAGE_USER) ==
          PAGING_REFUSED);
}

/* A session's space: weights over all parts of the window, read-only for ring 3. */
static void check_session(uint32_t pool) {
    const uint64_t weights = PAGING_USER_FIRST + (uint64_t)memory_window() % GIB;
    struct paging_space space;
    uint64_t physical, behind;
    uint32_t flags;
    CHECK(paging_new_space(&space) == PAGING_OK);
    CHECK(memory_map_window(&space, weights, 0, memory_window_bytes(), PAGE_USER) == PAGING_OK);
    for (uint64_t at = 0; at < memory_window_bytes(); at += 2 * MIB) {
        CHECK(paging_look(&space, weights + at, &physical, &flags) && flags == PAGE_USER);
        CHECK(looks((uint64_t)memory_window() + at, &behind, &flags) && behind == physical);
    }
    CHECK(paging_map(&space, weights + 4096, ARENA_AT, 4096, PAGE_USER) == PAGING_OCCUPIED);
    CHECK(paging_look(&space, IMAGE_BASE + 0x1000, &physical, &flags) && flags == PAGE_EXECUTE);
    CHECK(space.table_count <= (has_1g ? 10 : 40));
    check_refusals(&space);
    paging_free_space(&space);
    CHECK(space.root == 0 && paging_pool_left() == pool);
}

/* A pool that runs empty is an answer, and everything comes back. */
static void check_exhaustion(uint32_t pool) {
    struct paging_space space;
    CHECK(paging_new_space(&space) == PAGING_OK);
    enum paging_result result = PAGING_OK;
    for (uint64_t i = 0; result == PAGING_OK; i++)
        result = paging_map(&space, PAGING_USER_FIRST + i * GIB, ARENA_AT, 4096, PAGE_USER);
    CHECK(result == PAGING_NO_TABLES);
    struct paging_space second;
    CHECK(paging_new_space(&second) == PAGING_NO_TABLES);
    paging_free_space(&space);
    CHECK(paging_pool_left() == pool);
}

int main(int count, char **arguments) {
    has_1g = count > 1 && strcmp(arguments[1], "1g") == 0;
    void *arena = mmap((void *)ARENA_AT, ARENA_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(arena == (void *)ARENA_AT);
    fill_map();
    uint64_t root;
    uint8_t *stack;
    const char *problem = memory_build(&root, &stack);
    CHECK(problem == NULL);
    CHECK(root == paging_kernel_space()->root);
    uint32_t pool = paging_pool_left();
    check_rights();
    check_window();
    check_stacks(stack);
    check_devices();
    for (int i = 0; i < 1000; i++) check_exhaustion(pool);
    for (int i = 0; i < 20; i++) check_session(pool);
    uint8_t *taken = memory_take(100, 64);
    CHECK((uint64_t)taken % 64 == 0 && taken[99] == 0);
    printf("window %llu MB, kernel tables %u\n", (unsigned long long)(memory_window_bytes() / MIB),
           paging_kernel_space()->table_count);
    return 0;
}
