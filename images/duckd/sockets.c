/* SPDX-License-Identifier: Apache-2.0
 *
 * UDP sockets: one per listening address, and one for the broadcast address of its network, on
 * which calls to a whole domain arrive. Answers always leave from the socket of the listening
 * address.
 */
#include "duckd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 16
#define SEND_BATCH 64
/* One message: packets of one sender that the system put together (UDP_GRO, udp(7)), at most an IP
 * packet; so too long packets show their length as well. */
#define ROOM 65536
#define RECEIVE_BUFFER_BYTES (64 << 20)
#define SEND_BUFFER_BYTES (8 << 20)
#define SEND_WAIT_MS 2
/* The first packets of a message leave when this many bytes are queued, then twice as many, and so
 * on: the receiver opens them while the next ones are being sealed. */
#define FIRST_SLICE 7000u
/* Of one segmented message: below an IP packet's 64 KiB; the system takes 64 segments or more. */
#define SEGMENTED_BYTES_MAX 65000u
static_assert(SEND_BATCH <= 64, "a message may have all packets of a batch as segments");

struct udp_socket {
    int fd;
    struct sockaddr_in address;
    uint16_t answers_from; /* index of the socket that sends the answers */
};

static struct udp_socket udp[SOCKETS_MAX];
static int udp_count;

static _Alignas(64) uint8_t incoming[BATCH][ROOM];
/* A packet whose place in a message is not aligned as a header wants it. */
static _Alignas(64) uint8_t realigned[ROOM];
static uint8_t outgoing[SEND_BATCH][DUCK_WIRE_PACKET_BYTES_MAX];
static struct sockaddr_in outgoing_to[SEND_BATCH];
static struct iovec outgoing_part[SEND_BATCH];
static uint16_t outgoing_socket[SEND_BATCH];
static unsigned outgoing_count;
static size_t queued_bytes, slice_bytes = FIRST_SLICE;

/* ---- opening --------------------------------------------------------------------------------- */

/* Root may go beyond net.core.rmem_max; everyone else gets what the system allows. */
static void set_buffer(int fd, int forced, int option, int bytes) {
    if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
}

static int open_socket(struct sockaddr_in *address, bool shared) {
    const int on = 1;
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (shared) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)address, &length) != 0) {
        int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, RECEIVE_BUFFER_BYTES);
    set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, SEND_BUFFER_BYTES);
    /* Where the system can't, every message is one packet. */
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    return fd;
}

static void add_broadcast(uint16_t listener) {
    struct sockaddr_in address = udp[listener].address;
    address.sin_addr = machine_broadcast(address.sin_addr);
    if (address.sin_addr.s_addr == 0 || udp_count == SOCKETS_MAX) return;
    /* Several ducks of one machine may share a broadcast address. */
    int fd = open_socket(&address, true);
    if (fd < 0) return;
    udp[udp_count++] = (struct udp_socket){fd, address, listener};
}

void sockets_open(struct options *options) {
    for (int i = 0; i < options->listen_count; i++) {
        struct sockaddr_in *address = &options->listen[i];
        int fd = open_socket(address, false);
        if (fd < 0)
            fail("can't listen on %s:%u: %s", inet_ntoa(address->sin_addr),
                 ntohs(address->sin_port), strerror(errno));
        udp[udp_count++] = (struct udp_socket){fd, *address, (uint16_t)i};
        machine_read_link((uint16_t)i, address->sin_addr);
    }
    for (int i = 0; i < options->listen_count; i++) add_broadcast((uint16_t)i);
}

struct sockaddr_in sockets_address(int index) { return udp[index].address; }

int sockets_poll_set(struct pollfd *set) {
    for (int i = 0; i < udp_count; i++) set[i] = (struct pollfd){.fd = udp[i].fd, .events = POLLIN};
    return udp_count;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Bytes of each packet of a message but its last; the whole message when it is one packet. */
static size_t segment_bytes(struct msghdr *head, size_t bytes) {
    for (struct cmsghdr *control = CMSG_FIRSTHDR(head); control != NULL;
         control = CMSG_NXTHDR(head, control)) {
        if (control->cmsg_level != IPPROTO_UDP || control->cmsg_type != UDP_GRO) continue;
        int size;
        memcpy(&size, CMSG_DATA(control), sizeof size);
        if (size > 0) return (size_t)size;
    }
    return bytes;
}

static int take_message(struct duck_core *core, const struct plat_peer *peer, uint8_t *message,
                        size_t bytes, size_t segment) {
    int packets = 1;
    if (segment >= bytes) {
        core_packet(core, peer, message, bytes);
        return packets;
    }
    packets = 0;
    for (size_t at = 0; at < bytes; at += segment) {
        size_t length = bytes - at < segment ? bytes - at : segment;
        uint8_t *packet = message + at;
        if (at % sizeof(uint64_t) != 0) packet = memcpy(realigned, packet, length);
        core_packet(core, peer, packet, length);
        packets++;
    }
    return packets;
}

static int receive_batch(struct duck_core *core, const struct udp_socket *from) {
    static struct mmsghdr message[BATCH];
    static struct iovec part[BATCH];
    static struct sockaddr_in sender[BATCH];
    static _Alignas(struct cmsghdr) uint8_t control[BATCH][CMSG_SPACE(sizeof(int))];
    for (int i = 0; i < BATCH; i++) {
        part[i] = (struct iovec){incoming[i], ROOM};
        message[i].msg_hdr = (struct msghdr){.msg_name = &sender[i],
                                             .msg_namelen = sizeof sender[i],
                                             .msg_iov = &part[i],
                                             .msg_iovlen = 1,
                                             .msg_control = control[i],
                                             .msg_controllen = sizeof control[i]};
    }
    int count = recvmmsg(from->fd, message, BATCH, MSG_DONTWAIT, NULL);
    int packets = 0;
    for (int i = 0; i < count; i++) {
        struct plat_peer peer = {sender[i].sin_addr.s_addr, sender[i].sin_port, from->answers_from};
        size_t bytes = message[i].msg_len;
        packets += take_message(core, &peer, incoming[i], bytes,
                                segment_bytes(&message[i].msg_hdr, bytes));
    }
    return packets;
}

int sockets_receive(struct duck_core *core) {
    int total = 0;
    for (int i = 0; i < udp_count; i++) total += receive_batch(core, &udp[i]);
    return total;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void send_queue(void);

uint8_t *plat_packet_buffer(void) {
    if (outgoing_count == SEND_BATCH) send_queue();
    return outgoing[outgoing_count];
}

void plat_packet_send(const struct plat_peer *to, size_t bytes) {
    unsigned i = outgoing_count++;
    outgoing_to[i] = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = to->port, .sin_addr = {to->address}};
    outgoing_part[i] = (struct iovec){outgoing[i], bytes};
    outgoing_socket[i] = to->interface;
    queued_bytes += bytes;
    if (queued_bytes < slice_bytes) return;
    send_queue();
    slice_bytes *= 2;
}

static bool has_segmentation = true; /* until the system, or a route, shows that it has not */

/* A link that is down is something else. */
static bool is_refused_segmentation(int error) {
    return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP;
}

/* Packets from `first` that may leave as one message, which the system cuts again (UDP_SEGMENT,
 * udp(7)): one peer, all equally long but the last, which may be shorter. */
static unsigned packets_of_message(unsigned first, unsigned end) {
    const size_t segment = outgoing_part[first].iov_len;
    size_t total = segment;
    unsigned next = first + 1;
    while (has_segmentation && next < end && outgoing_part[next - 1].iov_len == segment) {
        const struct sockaddr_in *to = &outgoing_to[next], *before = &outgoing_to[first];
        total += outgoing_part[next].iov_len;
        if (to->sin_addr.s_addr != before->sin_addr.s_addr || to->sin_port != before->sin_port ||
            outgoing_part[next].iov_len > segment || total > SEGMENTED_BYTES_MAX)
            break;
        next++;
    }
    return next - first;
}

/* Packets [first, end) as messages; returns how many messages. */
static unsigned make_messages(struct mmsghdr *message, unsigned first, unsigned end) {
    static struct {
        _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control[SEND_BATCH];
    unsigned count = 0;
    while (first < end) {
        const unsigned packets = packets_of_message(first, end);
        const uint16_t segment = (uint16_t)outgoing_part[first].iov_len;
        struct msghdr *head = &message[count].msg_hdr;
        *head = (struct msghdr){.msg_name = &outgoing_to[first],
                                .msg_namelen = sizeof outgoing_to[first],
                                .msg_iov = &outgoing_part[first],
                                .msg_iovlen = packets};
        if (packets > 1) {
            head->msg_control = control[count].bytes;
            head->msg_controllen = sizeof control[count].bytes;
            struct cmsghdr *part = CMSG_FIRSTHDR(head);
            part->cmsg_level = IPPROTO_UDP;
            part->cmsg_type = UDP_SEGMENT;
            part->cmsg_len = CMSG_LEN(sizeof segment);
            memcpy(CMSG_DATA(part), &segment, sizeof segment);
        }
        first += packets;
        count++;
    }
    return count;
}

/* Packets [first, end) leave by one socket. What can't be sent soon is dropped; the protocol
 * repairs it. */
static void send_run(unsigned first, unsigned end) {
    static struct mmsghdr message[SEND_BATCH];
    int fd = udp[outgoing_socket[first]].fd;
    while (first < end) {
        const unsigned count = make_messages(message, first, end);
        const int sent = sendmmsg(fd, message, count, MSG_DONTWAIT);
        for (int i = 0; i < sent; i++) first += (unsigned)message[i].msg_hdr.msg_iovlen;
        if (sent > 0) continue;
        if (errno == EAGAIN) {
            struct pollfd writable = {.fd = fd, .events = POLLOUT};
            if (poll(&writable, 1, SEND_WAIT_MS) <= 0) return;
        } else if (message[0].msg_hdr.msg_iovlen > 1 && is_refused_segmentation(errno)) {
            has_segmentation = false; /* each packet by itself */
        } else {
            /* this one is refused (no route, an ICMP answer to an earlier one): go on */
            first += (unsigned)message[0].msg_hdr.msg_iovlen;
        }
    }
}

static void send_queue(void) {
    for (unsigned first = 0; first < outgoing_count;) {
        unsigned end = first + 1;
        while (end < outgoing_count && outgoing_socket[end] == outgoing_socket[first]) end++;
        send_run(first, end);
        first = end;
    }
    outgoing_count = 0;
    queued_bytes = 0;
}

void sockets_flush(void) {
    send_queue();
    slice_bytes = FIRST_SLICE;
}
