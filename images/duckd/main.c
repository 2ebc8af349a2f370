/* SPDX-License-Identifier: Apache-2.0 */
#include "duckd.h"
#include "session_shared.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char **duckd_arguments;

/* REBOOT: become a fresh duckd on the same addresses, with a new boot id and empty memory. */
void restart_self(void) {
    static char place[LISTEN_MAX][INET_ADDRSTRLEN + 8];
    int count = 0, listener = 0;
    while (duckd_arguments[count] != NULL) count++;
    char **words = calloc((size_t)count + 2, sizeof *words);
    if (words == NULL) fail("no memory to restart");
    bool marked = false;
    for (int i = 0; i < count; i++) {
        words[i] = duckd_arguments[i];
        marked = marked || strcmp(words[i], "--restarted") == 0;
        if (i == 0 || strcmp(words[i - 1], "--listen") != 0) continue;
        /* Port 0 meant "any": keep the one that was given. */
        struct sockaddr_in address = sockets_address(listener);
        snprintf(place[listener], sizeof place[0], "%s:%u", inet_ntoa(address.sin_addr),
                 ntohs(address.sin_port));
        words[i] = place[listener++];
    }
    if (!marked) words[count] = (char *)(uintptr_t)"--restarted";
    execv("/proc/self/exe", words);
    fail("restart: %s", strerror(errno));
}

int main(int count, char **words) {
    static struct options options;
    duckd_arguments = words;
    if (count >= 2 && strcmp(words[1], SESSION_CHILD_ARGUMENT) == 0) return session_child_main();
    if (count >= 2 && strcmp(words[1], "--version") == 0) {
        printf("duckd protocol=%u abi=%u build=%s\n", DUCK_WIRE_VERSION, DUCK_KERNEL_ABI_VERSION,
               DUCK_BUILD_HASH);
        return 0;
    }
    if (count >= 2 && strcmp(words[1], "run") == 0) {
        options_parse_run(count, words, &options);
        return run_once_main(&options);
    }
    options_parse(count, words, &options);
    return daemon_main(&options);
}
