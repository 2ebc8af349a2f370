/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends back what came in. Some inputs ask for more, by their first four bytes:
 *   "SLOW"  the next 4 bytes are how many million pauses to make before the answer
 *   "BAD!"  the call is refused with status 7
 *   "WGHT"  the answer is the first 64 bytes of the weights and as many of the read-ahead behind
 * them "BIG!"  the next 4 bytes are how many bytes to answer, byte i = i * 7 "CORE"  the answer is
 * core_count, run_mode and MXCSR "SCRA"  the answer is 1 when all of scratch is zero
 */
#include "echo.h"

#ifdef REFUSE_START
static int prepare(context_pointer context) {
    static const char words[] = "weights have the wrong colour";
    for (unsigned i = 0; i < sizeof words; i++) context->mailbox->init_text[i] = words[i];
    return 42;
}
#else
static int prepare(context_pointer context) {
    (void)context;
    return 0;
}
#endif

static int is(const uint8_t *input, uint32_t bytes, const char *word) {
    if (bytes < 8) return 0;
    for (int i = 0; i < 4; i++)
        if (input[i] != (uint8_t)word[i]) return 0;
    return 1;
}

static void refuse(struct duck_kernel_slot *slot) {
    static const char words[] = "bad call";
    for (unsigned i = 0; i < sizeof words; i++) slot->text[i] = words[i];
    slot->status = 7;
    slot->output_bytes = 0;
}

static void work(context_pointer context, struct duck_kernel_slot *slot, const uint8_t *input,
                 uint8_t *output) {
    uint32_t bytes = slot->input_bytes;
    uint32_t *words = (uint32_t *)(void *)output;
    const uint32_t argument = bytes >= 8 ? ((const uint32_t *)(const void *)input)[1] : 0;
    if (is(input, bytes, "BAD!")) {
        refuse(slot);
        return;
    }
    if (is(input, bytes, "SLOW"))
        for (uint64_t i = 0; i < argument * 1000000ull; i++) __builtin_ia32_pause();
    slot->output_bytes = bytes;
    for (uint32_t i = 0; i < bytes; i++) output[i] = input[i];
    if (is(input, bytes, "WGHT")) {
        for (uint32_t i = 0; i < 64; i++) output[i] = context->weights[i];
        for (uint32_t i = 0; i < 64; i++)
            output[64 + i] = context->weights[context->weights_bytes + i];
        slot->output_bytes = 128;
    } else if (is(input, bytes, "BIG!")) {
        for (uint32_t i = 0; i < argument && i < slot->output_bytes_max; i++)
            output[i] = (uint8_t)(i * 7);
        slot->output_bytes = argument;
    } else if (is(input, bytes, "CORE")) {
        words[0] = context->core_count;
        words[1] = context->run_mode;
        words[2] = __builtin_ia32_stmxcsr();
        slot->output_bytes = 12;
    } else if (is(input, bytes, "SCRA")) {
        words[0] = 1;
        for (uint64_t i = 0; i < context->scratch_bytes; i++)
            if (context->scratch[i] != 0) words[0] = 0;
        slot->output_bytes = 4;
    }
}
