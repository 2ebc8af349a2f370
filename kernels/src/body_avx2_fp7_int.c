/* SPDX-License-Identifier: Apache-2.0 */
#include "body_avx2.h"

DUCK_DEFINE_RUN(duck_run_fp7_int, KIND_FP7_INT)
