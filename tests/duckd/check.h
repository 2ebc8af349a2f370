/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_TEST_CHECK_H
#define DUCK_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* Stop at the first thing that is not as expected and say where. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(expected, actual)                                                              \
    do {                                                                                           \
        unsigned long long expected_ = (unsigned long long)(expected);                             \
        unsigned long long actual_ = (unsigned long long)(actual);                                 \
        if (expected_ != actual_) {                                                                \
            fprintf(stderr, "%s:%d: %s is %llu, expected %llu\n", __FILE__, __LINE__, #actual,     \
                    actual_, expected_);                                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
