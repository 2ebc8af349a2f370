/* SPDX-License-Identifier: Apache-2.0 */
#include "console/console.h"
#include "panic/panic.h"

#include <stdio.h>
#include <stdlib.h>

void klog(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

void panic(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    abort();
}
