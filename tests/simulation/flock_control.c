/* SPDX-License-Identifier: Apache-2.0
 *
 * The power switches, and what a test may do to a box. One datagram is one command:
 *
 *   on BOX, off BOX, cycle BOX    the switch; BOX may be "all"
 *   status BOX                    "on" or "off"
 *   hang BOX                      answers nothing more until it is switched
 *   stop BOX PHASE                later boots hang in that phase (discover, fetch, starting)
 *   heal BOX                      takes that back
 *   count                         a line per box: name, boots, times switched, REBOOTs obeyed, its
 *                                 phase
 */
#include "flock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX (256 << 10)
#define ASK_SECONDS 10

static const char *const phase_names[] = {"off",   "firmware", "discover", "request",
                                          "fetch", "starting", "up",       "hung"};

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) die("the control socket's path is too long");
    strcpy(address.sun_path, path);
    return address;
}

int control_open(const char *path) {
    struct sockaddr_un address = address_of(path);
    int bytes = ANSWER_BYTES_MAX;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0) die(path);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    return fd;
}

static void count_boxes(char *answer, size_t room) {
    size_t used = 0;
    for (int i = 0; i < box_count && used < room; i++) {
        const struct box *box = &boxes[i];
        used += (size_t)snprintf(answer + used, room - used, "%s %u %u %u %s\n", box->name,
                                 box->boots, box->switched, box->obeyed, phase_names[box->phase]);
    }
}

static enum phase phase_called(const char *name) {
    for (unsigned i = 0; i < sizeof phase_names / sizeof *phase_names; i++)
        if (strcmp(phase_names[i], name) == 0) return (enum phase)i;
    return OFF;
}

static const char *switch_box(struct box *box, const char *verb) {
    if (strcmp(verb, "status") == 0) return box->phase == OFF ? "off" : "on";
    if (strcmp(verb, "on") == 0 && box->phase != OFF)
        return "done"; /* pressing it changes nothing */
    if (strcmp(verb, "off") != 0) box->switched++;
    box_power(box, strcmp(verb, "off") != 0);
    return "done";
}

static const char *obey(char *command, char *answer, size_t room) {
    char verb[16] = "", name[DUCK_WIRE_NAME_BYTES] = "", phase[16] = "";
    sscanf(command, "%15s %31s %15s", verb, name, phase);
    if (strcmp(verb, "count") == 0) {
        count_boxes(answer, room);
        return answer;
    }
    struct box *box = NULL;
    for (int i = 0; i < box_count; i++) {
        if (strcmp(name, "all") == 0) switch_box(&boxes[i], verb);
        if (strcmp(boxes[i].name, name) == 0) box = &boxes[i];
    }
    if (box == NULL) return strcmp(name, "all") == 0 ? "done" : "error: no such box";
    if (strcmp(verb, "hang") == 0) {
        box->phase = HUNG;
        box->due_ns = UINT64_MAX;
        return "done";
    }
    if (strcmp(verb, "stop") == 0 || strcmp(verb, "heal") == 0) {
        box->stops_in = phase_called(phase);
        return "done";
    }
    return switch_box(box, verb);
}

void control_receive(int fd) {
    static char answer[ANSWER_BYTES_MAX];
    char command[128];
    struct sockaddr_un from;
    socklen_t length = sizeof from;
    ssize_t bytes;
    while ((bytes = recvfrom(fd, command, sizeof command - 1, 0, (struct sockaddr *)&from,
                             &length)) > 0) {
        command[bytes] = 0;
        const char *said = obey(command, answer, sizeof answer);
        sendto(fd, said, strlen(said), 0, (struct sockaddr *)&from, length);
        length = sizeof from;
    }
}

/* The other side: asks and prints the answer. */
int control_ask(const char *path, int count, char **words) {
    static char answer[ANSWER_BYTES_MAX];
    struct sockaddr_un to = address_of(path), own = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = ASK_SECONDS};
    char command[128] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, "%s%s", i == 0 ? "" : " ", words[i]);
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* A file, because an abstract address belongs to one network namespace. */
    snprintf(own.sun_path, sizeof own.sun_path, "%.80s.%d", path, (int)getpid());
    if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own) != 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t bytes = sendto(fd, command, strlen(command), 0, (struct sockaddr *)&to, sizeof to);
    if (bytes > 0) bytes = recv(fd, answer, sizeof answer - 1, 0);
    unlink(own.sun_path);
    if (bytes < 0) die("no answer");
    answer[bytes] = 0;
    puts(answer);
    return strncmp(answer, "error", 5) == 0 ? 1 : 0;
}
