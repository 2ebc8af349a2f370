/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu/smp.c with cores that are only numbers. Usage: test_halt_others
 */
#define cpu_index cpu_index_of_the_task_register
#include "cpu/cpu.h"
#undef cpu_index
static uint32_t self;
static uint32_t cpu_index(void) { return self; }

#include "fakes.h"

#include "cpu/smp.c"

/* Four enabled cores; the third never answers. An APIC id says nothing of a core's index. */
static const struct acpi_facts facts = {.cpu_count = 4, .apic_id = {0x10, 0x12, 0x20, 0x22}};
#define SILENT 0x20u
static const uint32_t *expected;
static uint32_t expected_count;
static uint32_t wanted = CPU_MAX;

__asm__(".section .rodata\n.globl trampoline, trampoline_root, trampoline_end\n"
        "trampoline: .zero 8\ntrampoline_root: .zero 8\ntrampoline_end:\n.text\n");
static struct paging_space space;
static uint8_t page[4096] __attribute__((aligned(4096)));
static uint64_t now;

const struct acpi_facts *acpi_facts(void) { return &facts; }
uint64_t options_number(const char *key, uint64_t otherwise) {
    CHECK(strcmp(key, "cores") == 0 && otherwise == CPU_MAX);
    return wanted;
}
uint8_t *memory_take_stack(size_t bytes) { return page + bytes % sizeof page; }
uint8_t *memory_start_page(void) { return page; }
void memory_start_page_filled(void) {}
struct paging_space *paging_kernel_space(void) { return &space; }
void segments_init(uint32_t index) { CHECK(index == count); }
void cpu_init_this(uint32_t index) { (void)index; }
void timer_init_this(void) {}
uint64_t timer_now_ns(void) { return now += 1000000; }
void timer_wait_ns(uint64_t ns) { now += ns; }
uint32_t apic_id(void) { return facts.apic_id[0]; }
void apic_send(uint32_t id, uint32_t vector) { (void)id, (void)vector; }
void apic_send_init(uint32_t id) { CHECK(id != facts.apic_id[0]); }
void apic_send_start(uint32_t id, uint32_t start_page) {
    CHECK(start_page == (uint32_t)((uint64_t)page >> 12));
    if (id != SILENT) core[count].state = CORE_IDLE;
}
void apic_send_nmi(uint32_t id) {
    CHECK(cpu_is_halting()); /* the handler looks at it */
    CHECK(expected_count > 0 && id == *expected);
    expected++, expected_count--;
}

static void panic_on(uint32_t index, uint32_t others, const uint32_t *ids) {
    self = index;
    expected = ids;
    expected_count = others;
    cpu_halt_others();
    CHECK(expected_count == 0);
}

int main(void) {
    panic_on(UINT32_MAX, 0, NULL); /* before this core knows its own number */
    cpu_start_others();
    CHECK(cpu_count() == 3);
    panic_on(0, 2, (const uint32_t[]){0x12, 0x22});
    panic_on(2, 2, (const uint32_t[]){0x10, 0x12});
    panic_on(3, 3, (const uint32_t[]){0x10, 0x12, 0x22}); /* one that is only just starting */
    count = 1;
    wanted = 2;
    cpu_start_others();
    panic_on(1, 1, (const uint32_t[]){0x10});
    panic_on(0, 1, (const uint32_t[]){0x12});
    return 0;
}
