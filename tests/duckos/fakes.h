/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tested parts of duckos call, for programs on this machine.
 */
#ifndef DUCKOS_FAKES_H
#define DUCKOS_FAKES_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
