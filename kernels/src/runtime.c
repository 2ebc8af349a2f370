/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that a freestanding compiler may call, and the note that names the kernel.
 */
#include <duck/kernel_abi.h>
#include <duck/wire.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

void *memcpy(void *to, const void *from, size_t bytes) {
    uint8_t *out = to;
    const uint8_t *in = from;
    for (size_t i = 0; i < bytes; i++) out[i] = in[i];
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    uint8_t *out = to;
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)value;
    return to;
}

struct elf_note {
    uint32_t name_bytes, content_bytes, type;
    char name[8];
    struct duck_kernel_note content;
};

__attribute__((section(".note.duck"), used, aligned(4))) static const struct elf_note note = {
    .name_bytes = 5,
    .content_bytes = sizeof(struct duck_kernel_note),
    .type = DUCK_KERNEL_NOTE_TYPE,
    .name = "duck",
    .content = {.abi_version = DUCK_KERNEL_ABI_VERSION,
                .cpu_features = DUCK_KERNEL_FEATURES,
                .name = DUCK_KERNEL_NAME},
};
