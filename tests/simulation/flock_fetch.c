/* SPDX-License-Identifier: Apache-2.0
 *
 * The boot file: by TFTP (RFC 1350, 2348: block size) or, when the answer names a URL, by HTTP as
 * UEFI does it: HEAD for the length, then GET. Sockets are the kernel's, bound to the box's
 * address.
 */
#include "flock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK_BYTES 1468
#define LATE_NS UINT64_C(1000000000)
#define TRIES_MAX 20

static int open_from(struct box *box, int kind) {
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {box->address}};
    int fd = socket(AF_INET, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (bind(fd, (struct sockaddr *)&from, sizeof from) != 0) die("bind to the leased address");
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT,
                                .data = {.u32 = (uint32_t)(box - boxes)}};
    if (kind == SOCK_DGRAM) event.events = EPOLLIN;
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll");
    return fd;
}

static void close_socket(struct fetch *fetch) {
    if (fetch->fd >= 0) close(fetch->fd);
    fetch->fd = -1;
}

void fetch_end(struct box *box) {
    close_socket(&box->fetch);
    free(box->fetch.data);
    memset(&box->fetch, 0, sizeof box->fetch);
    box->fetch.fd = -1;
}

static void again(struct box *box) {
    unsigned tries = box->tries + 1;
    fetch_end(box);
    if (tries > TRIES_MAX) {
        box_enter(box, DISCOVER, 0);
        return;
    }
    fetch_start(box);
    box->tries = tries;
}

/* Not at once: a server that refuses would be asked a thousand times per second. */
static void again_later(struct box *box) {
    close_socket(&box->fetch);
    box->due_ns = plat_now_ns() + LATE_NS;
}

static void finish(struct box *box) {
    close_socket(&box->fetch);
    box_enter(box, STARTING, image_start_ns);
}

static bool keep(struct fetch *fetch, const uint8_t *data, size_t bytes) {
    if (fetch->size + bytes > IMAGE_BYTES_MAX) return false;
    if (fetch->size + bytes > fetch->capacity) {
        fetch->capacity = (fetch->size + bytes) * 2;
        fetch->data = realloc(fetch->data, fetch->capacity);
        if (fetch->data == NULL) die("memory");
    }
    memcpy(fetch->data + fetch->size, data, bytes);
    fetch->size += bytes;
    return true;
}

/* ---- TFTP ------------------------------------------------------------------------------------ */

static void tftp_ask(struct box *box) {
    uint8_t packet[FILE_NAME_BYTES + 64] = {0, 1};
    size_t bytes = 2;
    char size[8];
    snprintf(size, sizeof size, "%d", BLOCK_BYTES);
    const char *words[] = {box->file, "octet", "tsize", "0", "blksize", size};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]) + 1;
        memcpy(packet + bytes, words[i], length);
        bytes += length;
    }
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(69), .sin_addr = {box->server}};
    box->fetch.block_bytes = 512;
    sendto(box->fetch.fd, packet, bytes, 0, (struct sockaddr *)&to, sizeof to);
}

static void tftp_acknowledge(struct box *box) {
    struct fetch *fetch = &box->fetch;
    uint8_t packet[4] = {0, 4, (uint8_t)(fetch->block >> 8), (uint8_t)fetch->block};
    sendto(fetch->fd, packet, sizeof packet, 0, (struct sockaddr *)&fetch->peer,
           sizeof fetch->peer);
    box->due_ns = plat_now_ns() + LATE_NS;
}

static void tftp_options(struct box *box, const char *at, const char *end) {
    while (at < end) {
        const char *value = at + strnlen(at, (size_t)(end - at)) + 1;
        if (value >= end) break;
        if (strcasecmp(at, "blksize") == 0) box->fetch.block_bytes = (uint16_t)atoi(value);
        if (strcasecmp(at, "tsize") == 0) box->fetch.expected = strtoull(value, NULL, 10);
        at = value + strnlen(value, (size_t)(end - value)) + 1;
    }
    tftp_acknowledge(box);
}

static void tftp_data(struct box *box, const uint8_t *packet, size_t bytes) {
    struct fetch *fetch = &box->fetch;
    uint16_t block = (uint16_t)(packet[2] << 8 | packet[3]);
    if (block == (uint16_t)(fetch->block + 1)) {
        if (!keep(fetch, packet + 4, bytes - 4)) {
            again(box);
            return;
        }
        fetch->block = block;
    }
    tftp_acknowledge(box);
    if (block == fetch->block && bytes - 4 < fetch->block_bytes) {
        if (fetch->expected != 0 && fetch->size != fetch->expected)
            again(box);
        else
            finish(box);
    }
}

static void tftp_ready(struct box *box) {
    uint8_t packet[2048];
    while (box->phase == FETCH && box->fetch.fd >= 0) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t bytes = recvfrom(box->fetch.fd, packet, sizeof packet - 1, 0,
                                 (struct sockaddr *)&from, &length);
        if (bytes < 4) return;
        packet[bytes] = 0;
        if (box->fetch.peer.sin_port != 0 && from.sin_port != box->fetch.peer.sin_port) continue;
        box->fetch.peer = from;
        if (packet[1] == 6)
            tftp_options(box, (const char *)packet + 2, (const char *)packet + bytes);
        else if (packet[1] == 3)
            tftp_data(box, packet, (size_t)bytes);
        else if (packet[1] == 5)
            box->due_ns = plat_now_ns() + LATE_NS; /* refused for now: asked again later */
    }
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static void http_connect(struct box *box) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(80)};
    char host[64] = "", *colon;
    sscanf(box->file, "http://%63[^/]", host);
    colon = strchr(host, ':');
    if (colon != NULL) {
        to.sin_port = htons((uint16_t)atoi(colon + 1));
        *colon = 0;
    }
    inet_pton(AF_INET, host, &to.sin_addr);
    box->fetch.fd = open_from(box, SOCK_STREAM);
    connect(box->fetch.fd, (struct sockaddr *)&to, sizeof to);
}

static void http_ask(struct box *box) {
    char text[FILE_NAME_BYTES + 128];
    const char *path = strchr(box->file + 7, '/');
    int bytes =
        snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: boot\r\nConnection: close\r\n\r\n",
                 box->fetch.head_done ? "GET" : "HEAD", path == NULL ? "/" : path);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t)(box - boxes)}};
    epoll_ctl(poller, EPOLL_CTL_MOD, box->fetch.fd, &event);
    if (send(box->fetch.fd, text, (size_t)bytes, 0) == bytes) box->fetch.connected = true;
}

/* The end of one answer; false: it was not what it should be. */
static bool http_end(struct box *box) {
    struct fetch *fetch = &box->fetch;
    if (strncmp(fetch->header, "HTTP/1.", 7) != 0 || strstr(fetch->header, " 200") == NULL)
        return false;
    if (fetch->head_done) {
        if (fetch->expected == 0 || fetch->size != fetch->expected) return false;
        finish(box);
        return true;
    }
    const char *length = strcasestr(fetch->header, "\r\ncontent-length:");
    if (length == NULL) return false;
    fetch->expected = strtoull(length + 17, NULL, 10);
    close_socket(fetch);
    fetch->head_done = true;
    fetch->connected = fetch->in_body = false;
    fetch->header_bytes = 0;
    http_connect(box);
    return true;
}

static void http_take(struct box *box, const uint8_t *data, size_t bytes) {
    struct fetch *fetch = &box->fetch;
    while (bytes > 0 && !fetch->in_body && fetch->header_bytes + 1 < sizeof fetch->header) {
        fetch->header[fetch->header_bytes++] = (char)*data++;
        fetch->header[fetch->header_bytes] = 0;
        bytes--;
        fetch->in_body = fetch->header_bytes >= 4 &&
                         memcmp(fetch->header + fetch->header_bytes - 4, "\r\n\r\n", 4) == 0;
    }
    if (fetch->in_body) keep(fetch, data, bytes);
}

static void http_ready(struct box *box) {
    uint8_t data[65536];
    if (!box->fetch.connected) {
        http_ask(box);
        return;
    }
    for (;;) {
        ssize_t bytes = recv(box->fetch.fd, data, sizeof data, 0);
        if (bytes < 0 && errno == EAGAIN) return;
        if (bytes <= 0) {
            if (!http_end(box)) again_later(box);
            return;
        }
        http_take(box, data, (size_t)bytes);
        box->due_ns = plat_now_ns() + 5 * LATE_NS;
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

void fetch_start(struct box *box) {
    box->fetch.is_http = strncmp(box->file, "http://", 7) == 0;
    box->due_ns = plat_now_ns() + LATE_NS + random_below(LATE_NS);
    if (box->fetch.is_http) {
        box->due_ns += 5 * LATE_NS;
        http_connect(box);
        return;
    }
    box->fetch.fd = open_from(box, SOCK_DGRAM);
    tftp_ask(box);
}

void fetch_ready(struct box *box) {
    if (box->phase != FETCH || box->fetch.fd < 0) return;
    if (box->fetch.is_http)
        http_ready(box);
    else
        tftp_ready(box);
}

/* Nothing came for a while: the last acknowledgement again, or all from the beginning. */
void fetch_late(struct box *box) {
    if (box->fetch.fd >= 0 && !box->fetch.is_http && box->fetch.block > 0 &&
        box->tries < TRIES_MAX) {
        box->tries++;
        tftp_acknowledge(box);
    } else {
        again(box);
    }
}
