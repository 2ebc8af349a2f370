/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a libFuzzer target on files, for compilers without libFuzzer:
 *
 *     PROGRAM FILE...     says how many it ran; the target ends it when it finds something
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void run(const char *name) {
    FILE *file = fopen(name, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "cannot read %s\n", name);
        exit(2);
    }
    const size_t bytes = (size_t)ftell(file);
    uint8_t *data = malloc(bytes != 0 ? bytes : 1); /* of its exact size: a look beyond shows */
    rewind(file);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "cannot read %s\n", name);
        exit(2);
    }
    fclose(file);
    fprintf(stderr, "%s\n", name); /* the last one named is the one that ended it */
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
}

int main(int count, char **names) {
    for (int i = 1; i < count; i++) run(names[i]);
    printf("%d inputs\n", count - 1);
    return 0;
}
