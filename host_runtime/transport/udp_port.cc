// SPDX-License-Identifier: Apache-2.0
//
// The port on plain UDP sockets: sendmmsg and recvmmsg, no privileges.
#include "port.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <linux/errqueue.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace duckhost {
namespace {

constexpr size_t kTransmitBuffers = 256;
constexpr size_t kTransmitEntries = 1024; // (buffer, peer) pairs queued at most
constexpr size_t kTransmitBatch = 64;     // packets per sendmmsg
// The first packets of a message leave when this many bytes are queued, then twice as many, and so
// on: the receiver opens them while the next ones are being sealed. (With more domains than CPUs
// all are busy anyway, and fewer system calls count.)
constexpr size_t kFirstSlice = 7000;
constexpr int kErrorQueueReads = 8;
// Packets of one sender that the system put together (UDP_GRO, udp(7)) come as one message, at most
// an IP packet long.
constexpr size_t kReceiveMessages = 16;
constexpr size_t kReceiveRoom = 65536;
// Of one segmented message: below the 64 KiB of an IP packet; the system takes 64 segments or more,
// which is a batch.
constexpr uint32_t kSegmentedBytesMax = 65000;
static_assert(kTransmitBatch <= 64, "a message may have all packets of a batch as segments");

class Descriptor {
  public:
    explicit Descriptor(int value) : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0) close(value_);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    int get() const { return value_; }

  private:
    int value_;
};

sockaddr_in socket_address(const Peer &peer) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = peer.address;
    address.sin_port = peer.port;
    return address;
}

bool same_peer(const Peer &a, const Peer &b) { return a.address == b.address && a.port == b.port; }

// Not on this system, or not by this route; a link that is down is something else.
bool is_refused_segmentation(int error) {
    return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP;
}

class UdpPort final : public Port {
  public:
    UdpPort(int socket, int event, bool sends_slices)
        : first_slice_(sends_slices ? kFirstSlice : SIZE_MAX), socket_(socket), event_(event) {
        transmit_room_.resize(kTransmitBuffers * kPacketRoom);
        receive_room_.resize(kReceiveMessages * kReceiveRoom);
        for (size_t i = 0; i < kReceiveMessages; i++) {
            receive_part_[i] = {receive_room_.data() + i * kReceiveRoom, kReceiveRoom};
            receive_head_[i] = {};
            receive_head_[i].msg_hdr.msg_iov = &receive_part_[i];
            receive_head_[i].msg_hdr.msg_iovlen = 1;
            receive_head_[i].msg_hdr.msg_name = &receive_from_[i];
            receive_head_[i].msg_hdr.msg_control = receive_control_[i].bytes;
        }
    }

    uint8_t *transmit_buffer() override {
        if (buffers_used_ == kTransmitBuffers ||
            entries_used_ + DUCKHOST_DUCKS_MAX > kTransmitEntries)
            flush();
        if (buffers_used_ == kTransmitBuffers ||
            entries_used_ + DUCKHOST_DUCKS_MAX > kTransmitEntries)
            return nullptr;
        return transmit_room_.data() + buffers_used_ * kPacketRoom;
    }

    void transmit(uint32_t bytes, const Peer *peers, size_t count) override {
        uint8_t *data = transmit_room_.data() + buffers_used_++ * kPacketRoom;
        for (size_t i = 0; i < count; i++) entry_[entries_used_++] = {data, bytes, peers[i]};
        queued_bytes_ += bytes;
        if (queued_bytes_ >= slice_bytes_) {
            send_queue();
            slice_bytes_ *= 2;
        } else if (entries_used_ - entries_sent_ >= kTransmitBatch) {
            send_queue();
        }
    }

    void flush() override {
        send_queue();
        slice_bytes_ = first_slice_;
    }

    void send_queue() {
        queued_bytes_ = 0;
        while (entries_sent_ < entries_used_) {
            int sent = send_batch();
            if (sent < 0) return; // the socket is full: the queue stays, wait() watches it
            entries_sent_ += static_cast<size_t>(sent);
        }
        entries_sent_ = entries_used_ = buffers_used_ = 0;
    }

    size_t receive(ReceivedPacket *out, size_t count_max) override {
        if (message_at_ == message_count_) receive_messages();
        size_t count = 0;
        uint64_t bytes = 0;
        while (count < count_max && message_at_ < message_count_) {
            out[count] = next_packet();
            bytes += out[count++].bytes;
        }
        counters_.packets_received.add(count);
        counters_.bytes_received.add(bytes);
        return count;
    }

    uint64_t due_ns() const override { return message_at_ < message_count_ ? 0 : kNever; }
    bool is_congested() const override { return entries_sent_ < entries_used_; }
    bool is_shareable() const override { return true; }
    void read_errors() override { read_error_queue(); }

    unsigned wait(uint64_t timeout_ns, unsigned watched) override {
        pollfd set[2] = {{event_.get(), POLLIN, 0}, {socket_.get(), 0, 0}};
        if ((watched & kPacket) != 0) set[1].events |= POLLIN;
        if ((watched & kRoom) != 0) set[1].events |= POLLOUT;
        const nfds_t count = watched == 0 ? 1 : 2; // errors wake whoever watches the socket
        timespec timeout = {static_cast<time_t>(timeout_ns / 1000000000u),
                            static_cast<long>(timeout_ns % 1000000000u)};
        if (ppoll(set, count, &timeout, nullptr) <= 0) return 0;
        unsigned seen = 0;
        uint64_t rings;
        if ((set[0].revents & POLLIN) != 0 && read(event_.get(), &rings, sizeof rings) > 0)
            seen |= kWoken;
        if ((set[1].revents & POLLIN) != 0) seen |= kPacket;
        if ((set[1].revents & POLLOUT) != 0) seen |= kRoom;
        if ((set[1].revents & POLLERR) != 0) seen |= kError;
        return seen;
    }

    void wake() override {
        const uint64_t one = 1;
        if (write(event_.get(), &one, sizeof one) < 0) return; // full counter: awake anyway
    }

    bool refused(Peer *peer) override {
        if (!has_refused_) return false;
        has_refused_ = false;
        *peer = refused_;
        return true;
    }

    const PortCounters &counters() const override { return counters_; }

  private:
    struct Entry {
        uint8_t *data;
        uint32_t bytes;
        Peer peer;
    };

    void receive_messages() {
        for (size_t i = 0; i < kReceiveMessages; i++) {
            receive_head_[i].msg_hdr.msg_namelen = sizeof receive_from_[i];
            receive_head_[i].msg_hdr.msg_controllen = sizeof receive_control_[i].bytes;
        }
        message_at_ = message_count_ = 0;
        const int got =
            recvmmsg(socket_.get(), receive_head_, kReceiveMessages, MSG_DONTWAIT, nullptr);
        if (got > 0)
            message_count_ = static_cast<size_t>(got);
        else if (errno != EAGAIN && errno != EINTR)
            read_error_queue();
        byte_at_ = 0;
    }

    // Bytes of each packet of a message but its last; the whole message when it is one packet.
    uint32_t segment_bytes(mmsghdr &message) {
        for (cmsghdr *control = CMSG_FIRSTHDR(&message.msg_hdr); control != nullptr;
             control = CMSG_NXTHDR(&message.msg_hdr, control)) {
            if (control->cmsg_level != IPPROTO_UDP || control->cmsg_type != UDP_GRO) continue;
            int size;
            std::memcpy(&size, CMSG_DATA(control), sizeof size);
            if (size > 0) return static_cast<uint32_t>(size);
        }
        return message.msg_len;
    }

    ReceivedPacket next_packet() {
        const size_t i = message_at_;
        const uint32_t left = receive_head_[i].msg_len - byte_at_;
        const ReceivedPacket packet = {
            receive_room_.data() + i * kReceiveRoom + byte_at_,
            std::min(left, segment_bytes(receive_head_[i])),
            {receive_from_[i].sin_addr.s_addr, receive_from_[i].sin_port}};
        byte_at_ += packet.bytes;
        if (packet.bytes == left) {
            message_at_++;
            byte_at_ = 0;
        }
        return packet;
    }

    // Entries sent, or -1 when the socket takes no more now. Packets of one peer that are equally
    // long leave as one message, which the system cuts again (UDP_SEGMENT, udp(7)): a message costs
    // about as much as a packet.
    int send_batch() {
        const size_t count = std::min(entries_used_ - entries_sent_, kTransmitBatch);
        const size_t messages = make_messages(count);
        int sent =
            sendmmsg(socket_.get(), transmit_head_, static_cast<unsigned>(messages), MSG_DONTWAIT);
        if (sent < 0) return send_failed(count);
        uint64_t bytes = 0;
        size_t packets = 0;
        for (int i = 0; i < sent; i++) {
            const msghdr &head = transmit_head_[i].msg_hdr;
            for (size_t part = 0; part < head.msg_iovlen; part++)
                bytes += head.msg_iov[part].iov_len;
            packets += head.msg_iovlen;
        }
        keep_order(count);
        counters_.last_errno.set(0);
        counters_.packets_sent.add(packets);
        counters_.bytes_sent.add(bytes);
        return static_cast<int>(packets);
    }

    // Orders the next `count` entries into messages and parts; the number of messages.
    size_t make_messages(size_t count) {
        const Entry *entry = entry_ + entries_sent_;
        bool is_taken[kTransmitBatch] = {};
        size_t messages = 0, parts = 0;
        for (size_t first = 0; first < count; first++) {
            if (is_taken[first]) continue;
            const size_t begin = parts;
            const uint32_t segment = entry[first].bytes;
            uint32_t total = 0;
            bool is_full = false;
            for (size_t i = first; i < count && !is_full; i++) {
                if (is_taken[i] || !same_peer(entry[i].peer, entry[first].peer)) continue;
                if (entry[i].bytes > segment || total + entry[i].bytes > kSegmentedBytesMax) break;
                is_taken[i] = true;
                transmit_part_[parts] = {entry[i].data, entry[i].bytes};
                ordered_[parts++] = entry[i];
                total += entry[i].bytes;
                // A shorter packet can only be the last one.
                is_full = entry[i].bytes < segment || !has_segmentation_;
            }
            make_message(messages, begin, parts - begin, segment);
            messages++;
        }
        return messages;
    }

    void make_message(size_t index, size_t begin, size_t parts, uint32_t segment) {
        transmit_to_[index] = socket_address(ordered_[begin].peer);
        msghdr head{};
        head.msg_name = &transmit_to_[index];
        head.msg_namelen = sizeof transmit_to_[index];
        head.msg_iov = &transmit_part_[begin];
        head.msg_iovlen = parts;
        if (parts > 1) {
            head.msg_control = transmit_control_[index].bytes;
            head.msg_controllen = sizeof transmit_control_[index].bytes;
            cmsghdr *control = CMSG_FIRSTHDR(&head);
            control->cmsg_level = IPPROTO_UDP;
            control->cmsg_type = UDP_SEGMENT;
            control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
            const uint16_t size = static_cast<uint16_t>(segment);
            std::memcpy(CMSG_DATA(control), &size, sizeof size);
        }
        transmit_head_[index].msg_hdr = head;
    }

    // What was not sent stays in the queue, in the order in which it was made into messages.
    void keep_order(size_t count) { std::copy_n(ordered_, count, entry_ + entries_sent_); }

    int send_failed(size_t count) {
        const size_t parts = transmit_head_[0].msg_hdr.msg_iovlen;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return -1;
        if (errno == EINTR) return 0;
        // An error that belongs to this packet (or an ICMP note about an earlier one): the
        // packet counts as lost, its repetition timer repairs it.
        if (errno == ECONNREFUSED) {
            read_error_queue();
            return 0;
        }
        if (parts > 1 && is_refused_segmentation(errno)) {
            has_segmentation_ = false; // each packet by itself
            return 0;
        }
        counters_.send_errors.add(parts);
        if (errno == EMSGSIZE) counters_.too_large.add(parts);
        counters_.last_errno.set(static_cast<uint64_t>(errno));
        keep_order(count); // the refused message is first
        return static_cast<int>(parts);
    }

    void read_error_queue() {
        for (int i = 0; i < kErrorQueueReads; i++) {
            sockaddr_in to{};
            alignas(cmsghdr) char control[256];
            char byte;
            iovec part = {&byte, 1};
            msghdr head{};
            head.msg_name = &to;
            head.msg_namelen = sizeof to;
            head.msg_iov = &part;
            head.msg_iovlen = 1;
            head.msg_control = control;
            head.msg_controllen = sizeof control;
            if (recvmsg(socket_.get(), &head, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
            refused_ = {to.sin_addr.s_addr, to.sin_port};
            has_refused_ = true;
        }
    }

    const size_t first_slice_;
    Descriptor socket_, event_;
    std::vector<uint8_t> transmit_room_, receive_room_;
    size_t buffers_used_ = 0, entries_used_ = 0, entries_sent_ = 0;
    size_t queued_bytes_ = 0, slice_bytes_ = first_slice_;
    Entry entry_[kTransmitEntries];
    Entry ordered_[kTransmitBatch];
    struct SegmentControl {
        alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(uint16_t))];
    };
    SegmentControl transmit_control_[kTransmitBatch] = {};
    bool has_segmentation_ = true;
    struct ReceiveControl {
        alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))];
    };
    ReceiveControl receive_control_[kReceiveMessages];
    // Messages received, and the next packet that receive() hands out.
    size_t message_count_ = 0, message_at_ = 0;
    uint32_t byte_at_ = 0;
    mmsghdr transmit_head_[kTransmitBatch] = {}, receive_head_[kReceiveMessages];
    iovec transmit_part_[kTransmitBatch], receive_part_[kReceiveMessages];
    sockaddr_in transmit_to_[kTransmitBatch], receive_from_[kReceiveMessages];
    Peer refused_;
    bool has_refused_ = false;
    PortCounters counters_;
};

// Ask for large buffers; privileged processes get them beyond the system's limit.
void set_buffer(int socket, int forced_option, int option, uint32_t bytes) {
    int value = static_cast<int>(bytes);
    if (setsockopt(socket, SOL_SOCKET, forced_option, &value, sizeof value) == 0) return;
    setsockopt(socket, SOL_SOCKET, option, &value, sizeof value);
}

} // namespace

std::unique_ptr<Port> open_udp_port(const UdpPortOptions &options, duckhost_error *error) {
    int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (socket_fd < 0 || event_fd < 0) {
        fail(error, DUCKHOST_ERR_SYSTEM, -1, "cannot open a UDP socket: %s", std::strerror(errno));
        Descriptor close_socket(socket_fd), close_event(event_fd);
        return nullptr;
    }
    auto port = std::make_unique<UdpPort>(socket_fd, event_fd, options.sends_slices);
    const int on = 1, discover = IP_PMTUDISC_DO; // a packet larger than the MTU is an error
    setsockopt(socket_fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover);
    setsockopt(socket_fd, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
    // Where the system can't, every message is one packet.
    setsockopt(socket_fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    if (options.broadcast) setsockopt(socket_fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on);
    set_buffer(socket_fd, SO_SNDBUFFORCE, SO_SNDBUF, options.socket_buffer_bytes);
    set_buffer(socket_fd, SO_RCVBUFFORCE, SO_RCVBUF, options.socket_buffer_bytes);
    sockaddr_in address = socket_address({options.bind_address, 0});
    if (bind(socket_fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) {
        char text[INET_ADDRSTRLEN] = "";
        const int reason = errno;
        inet_ntop(AF_INET, &options.bind_address, text, sizeof text);
        fail(error, DUCKHOST_ERR_SYSTEM, -1, "cannot bind a UDP socket to %s: %s", text,
             std::strerror(reason));
        set_hint(error, "is this address configured on this machine? See `ip address`");
        return nullptr;
    }
    return port;
}

} // namespace duckhost
