/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_SESSION_CHECK_H
#define DUCK_SESSION_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
