/* SPDX-License-Identifier: Apache-2.0 */
#include "body_avx2.h"

/* `int` needs activations times 2^86: its weights are times 2^-120 or less, and no sum may get
 * subnormal. */
const struct duck_body duck_bodies[] = {
    {"madd", DUCK_FORMAT_Q4, 0.0f, duck_run_q4, false},
    {"madd", DUCK_FORMAT_Q6, 0.0f, duck_run_q6, false},
    {"int", DUCK_FORMAT_FP7, 0x1p86f, duck_run_fp7_int, true},
    {"cvt", DUCK_FORMAT_FP7, 1.0f, duck_run_fp7_cvt, true},
    {"int", DUCK_FORMAT_FP8, 0x1p86f, duck_run_fp8_int, true},
    {"cvt", DUCK_FORMAT_FP8, 1.0f, duck_run_fp8_cvt, true},
    {"wide", DUCK_FORMAT_FP9, 1.0f, duck_run_fp9_wide, true},
    {"narrow", DUCK_FORMAT_FP9, 1.0f, duck_run_fp9_narrow, true},
    {NULL, 0, 0.0f, NULL, false},
};
