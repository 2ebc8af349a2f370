/* SPDX-License-Identifier: Apache-2.0
 *
 * Has everything a loader must get right: constants, relocated pointers, written data, zeroed data.
 */
#include "echo.h"

static const char *volatile names[] = {"one", "two", "three"};
static volatile uint32_t which = 1;
static volatile uint8_t zeros[5000];

static int prepare(context_pointer context) {
    (void)context;
    return 0;
}

static void work(context_pointer context, struct duck_kernel_slot *slot, const uint8_t *input,
                 uint8_t *output) {
    (void)context;
    (void)input;
    slot->output_bytes = 4096;
    for (uint32_t i = 0; i < 4096; i++) output[i] = zeros[i];
    const char *name = names[which];
    for (uint32_t i = 0; name[i] != 0; i++) output[i] = (uint8_t)name[i];
}
