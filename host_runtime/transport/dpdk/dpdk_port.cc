// SPDX-License-Identifier: Apache-2.0
//
// One port = one device with one receive and one transmit queue, polled by its domain's thread.
// Packets are built in mbufs behind room for the headers; what the NIC has sent it frees. ARP is
// answered and asked here, since no kernel stands behind the device.
#include "dpdk_port.h"

#include "neighbours.h"

#include <rte_bus_pci.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace duckhost {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr uint32_t kMbufs = 4095; // of one port: both rings, what is queued here, caches
constexpr uint32_t kMbufCache = 128;
constexpr size_t kQueueMax = 512; // packets queued here for the NIC
// One transmit() queues at most: a packet to each duck, and a question for its MAC.
constexpr size_t kQueuedAtOnce = 2 * DUCKHOST_DUCKS_MAX;
constexpr uint64_t kNap = 50 * kMicrosecond; // wait(): a NIC queue has no bell here
constexpr uint64_t kLinkLook = 20 * kMillisecond;
constexpr uint64_t kStatsPeriod = 500 * kMillisecond;
constexpr uint16_t kBurst = 32;
constexpr uint32_t kEthernetOverhead = kEthernetBytes + 4; // with its check sequence

// ---- EAL ----------------------------------------------------------------------------------------

bool has_huge_pages() {
    unsigned long pages = 0;
    for (const char *path : {"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                             "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages"}) {
        std::unique_ptr<FILE, int (*)(FILE *)> file(fopen(path, "re"), fclose);
        unsigned long count = 0;
        if (file != nullptr && fscanf(file.get(), "%lu", &count) == 1) pages += count;
    }
    return pages > 0;
}

// Once per process, in a thread of its own: EAL binds its main thread to one CPU.
int start_eal() {
    static std::mutex mutex;
    static bool is_started = false;
    static int result = -1, reason = 0;
    std::lock_guard<std::mutex> guard(mutex);
    if (is_started) {
        rte_errno = reason;
        return result;
    }
    is_started = true;
    std::thread([] {
        std::vector<const char *> words = {"duckhost", "--no-telemetry", "--log-level=*:error",
                                           "-l", "0"};
        // Without huge pages only virtual devices work: no NIC can reach scattered memory.
        if (has_huge_pages())
            words.push_back("--in-memory");
        else
            words.insert(words.end(), {"--no-huge", "--no-shconf", "-m", "512", "--no-pci"});
        std::vector<char *> arguments;
        for (const char *word : words) arguments.push_back(const_cast<char *>(word));
        result = rte_eal_init(static_cast<int>(arguments.size()), arguments.data());
        reason = rte_errno;
    }).join();
    return result;
}

// ---- the port -----------------------------------------------------------------------------------

class DpdkPort final : public Port {
  public:
    DpdkPort(const DpdkPortOptions &options, const std::string &bus, const std::string &name);
    ~DpdkPort() override;
    int open(const DpdkPortOptions &options, const std::string &arguments, duckhost_error *error);

    void enter() override { is_registered_ = rte_thread_register() == 0; }
    void leave() override {
        if (is_registered_) rte_thread_unregister();
        is_registered_ = false;
    }
    uint8_t *transmit_buffer() override;
    void transmit(uint32_t bytes, const Peer *peers, size_t count) override;
    void flush() override;
    size_t receive(ReceivedPacket *out, size_t count_max) override;
    unsigned wait(uint64_t timeout_ns, unsigned watched) override;
    void wake() override {
        const uint64_t one = 1;
        if (write(event_, &one, sizeof one) < 0) return; // full counter: awake anyway
    }
    bool refused(Peer *) override { return false; } // ICMP is not read
    const PortCounters &counters() const override { return counters_; }

  private:
    int configure(const DpdkPortOptions &options, duckhost_error *error);
    void await_link(uint32_t limit_ms) const;
    const MacAddress *resolve(uint32_t address, uint64_t now);
    void send_arp(uint32_t address, const MacAddress *to);
    void enqueue(rte_mbuf *packet, uint32_t bytes, const Peer &peer, const MacAddress &mac);
    void read_stats(uint64_t now);

    const std::string bus_, name_;
    const uint32_t broadcast_;
    Peer self_;
    MacAddress mac_{};
    uint16_t port_ = RTE_MAX_ETHPORTS;
    bool is_attached_ = false, is_registered_ = false;
    int event_ = -1;
    rte_mempool *pool_ = nullptr;
    rte_mbuf *current_ = nullptr;
    rte_mbuf *queue_[kQueueMax] = {};
    size_t queued_ = 0;
    rte_mbuf *received_[kBurst] = {};
    uint16_t received_count_ = 0;
    Neighbours neighbours_;
    uint64_t stats_ns_ = 0;
    PortCounters counters_;
};

DpdkPort::DpdkPort(const DpdkPortOptions &options, const std::string &bus, const std::string &name)
    : bus_(bus), name_(name), broadcast_(options.broadcast) {
    self_.address = options.own_address;
}

DpdkPort::~DpdkPort() {
    if (current_ != nullptr) rte_pktmbuf_free(current_);
    if (queued_ > 0) rte_pktmbuf_free_bulk(queue_, static_cast<unsigned>(queued_));
    if (received_count_ > 0) rte_pktmbuf_free_bulk(received_, received_count_);
    if (port_ != RTE_MAX_ETHPORTS) {
        rte_eth_dev_stop(port_);
        rte_eth_dev_close(port_);
    }
    if (is_attached_) rte_eal_hotplug_remove(bus_.c_str(), name_.c_str());
    if (pool_ != nullptr) rte_mempool_free(pool_);
    if (event_ >= 0) close(event_);
}

int DpdkPort::open(const DpdkPortOptions &options, const std::string &arguments,
                   duckhost_error *error) {
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_ < 0)
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "eventfd: %s", std::strerror(errno));
    int code = rte_eal_hotplug_add(bus_.c_str(), name_.c_str(), arguments.c_str());
    is_attached_ = code == 0;
    if (code != 0 || rte_eth_dev_get_port_by_name(name_.c_str(), &port_) != 0) {
        port_ = RTE_MAX_ETHPORTS;
        fail(error, DUCKHOST_ERR_SYSTEM, -1, "device %s: DPDK has no driver that takes it: %s",
             options.device, rte_strerror(-code));
        set_hint(error, bus_ == "pci" ? "bind it to vfio-pci (dpdk-devbind.py), give huge pages, "
                                        "and for Intel's ice install its DDP package (ice.pkg)"
                                      : "is the interface there, in this network namespace?");
        return DUCKHOST_ERR_SYSTEM;
    }
    if (configure(options, error) != DUCKHOST_OK) return DUCKHOST_ERR_SYSTEM;
    uint16_t port = 0;
    if (getrandom(&port, sizeof port, 0) != sizeof port)
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "the system gives no random bytes");
    self_.port = htons(static_cast<uint16_t>(49152 + port % 16384));
    await_link(options.link_wait_ms);
    return DUCKHOST_OK;
}

int DpdkPort::configure(const DpdkPortOptions &options, duckhost_error *error) {
    rte_eth_dev_info info;
    rte_eth_conf settings{};
    rte_ether_addr address;
    const std::string pool = "duck" + std::to_string(port_);
    const int socket = rte_eth_dev_socket_id(port_);
    auto failed = [&](const char *what, int code) {
        return fail(error, DUCKHOST_ERR_SYSTEM, -1, "device %s: %s: %s", options.device, what,
                    rte_strerror(code < 0 ? -code : code));
    };
    pool_ = rte_pktmbuf_pool_create(pool.c_str(), kMbufs, kMbufCache, 0,
                                    RTE_PKTMBUF_HEADROOM + kFrameHeaderBytes + kPacketRoom, socket);
    if (pool_ == nullptr) return failed("no memory for packets", rte_errno);
    if (int code = rte_eth_dev_info_get(port_, &info)) return failed("no information", code);
    // Virtual devices tell an Ethernet frame of 1518 bytes and take what their interface takes.
    const bool can_set = options.mtu + kEthernetOverhead <= info.max_rx_pktlen;
    if (can_set) settings.rxmode.mtu = options.mtu;
    if (int code = rte_eth_dev_configure(port_, 1, 1, &settings)) return failed("configure", code);
    uint16_t receive = kDescriptors, transmit = kDescriptors;
    if (int code = rte_eth_dev_adjust_nb_rx_tx_desc(port_, &receive, &transmit))
        return failed("descriptors", code);
    const auto node = static_cast<unsigned>(socket);
    if (int code = rte_eth_rx_queue_setup(port_, 0, receive, node, nullptr, pool_))
        return failed("receive queue", code);
    if (int code = rte_eth_tx_queue_setup(port_, 0, transmit, node, nullptr))
        return failed("transmit queue", code);
    const int code =
        can_set ? rte_eth_dev_set_mtu(port_, static_cast<uint16_t>(options.mtu)) : -EINVAL;
    if (code != 0 && code != -ENOTSUP && bus_ == "pci") {
        failed("MTU", code);
        set_hint(error, "the card's largest MTU is %u, the domain's is %u", info.max_mtu,
                 options.mtu);
        return DUCKHOST_ERR_SYSTEM;
    }
    if (int started = rte_eth_dev_start(port_)) return failed("start", started);
    if (int told = rte_eth_macaddr_get(port_, &address)) return failed("MAC address", told);
    std::memcpy(mac_.data(), address.addr_bytes, mac_.size());
    return DUCKHOST_OK;
}

// Some NICs take most of a second. A link that stays down is the ducks' silence later.
void DpdkPort::await_link(uint32_t limit_ms) const {
    const uint64_t end = now_ns() + limit_ms * kMillisecond;
    rte_eth_link link;
    do {
        if (rte_eth_link_get_nowait(port_, &link) != 0 || link.link_status == RTE_ETH_LINK_UP)
            return;
        const timespec pause = {0, static_cast<long>(kLinkLook)};
        nanosleep(&pause, nullptr);
    } while (now_ns() < end);
}

// ---- neighbours ---------------------------------------------------------------------------------

// Null: not known yet, and asked for; the packet is lost and its repetition will find the answer.
const MacAddress *DpdkPort::resolve(uint32_t address, uint64_t now) {
    if (address == broadcast_ && broadcast_ != 0) return &kBroadcastMac;
    bool asks = false;
    const MacAddress *mac = neighbours_.find(address, now, &asks);
    if (asks) send_arp(address, nullptr);
    return mac;
}

void DpdkPort::send_arp(uint32_t address, const MacAddress *to) {
    rte_mbuf *packet = queued_ < kQueueMax ? rte_pktmbuf_alloc(pool_) : nullptr;
    if (packet == nullptr) return;
    auto *frame = rte_pktmbuf_mtod(packet, uint8_t *);
    if (to == nullptr)
        build_arp_request(frame, mac_, self_.address, address);
    else
        build_arp_reply(frame, mac_, self_.address, *to, address);
    packet->data_len = kArpFrameBytes;
    packet->pkt_len = kArpFrameBytes;
    queue_[queued_++] = packet;
}

// ---- sending ------------------------------------------------------------------------------------

uint8_t *DpdkPort::transmit_buffer() {
    if (queued_ + kQueuedAtOnce > kQueueMax) flush();
    if (queued_ + kQueuedAtOnce > kQueueMax) return nullptr;
    if (current_ == nullptr) current_ = rte_pktmbuf_alloc(pool_);
    if (current_ == nullptr) return nullptr;
    return rte_pktmbuf_mtod_offset(current_, uint8_t *, kFrameHeaderBytes);
}

void DpdkPort::enqueue(rte_mbuf *packet, uint32_t bytes, const Peer &peer, const MacAddress &mac) {
    if (queued_ == kQueueMax) { // filled by ARP meanwhile
        rte_pktmbuf_free(packet);
        return;
    }
    build_udp_frame(rte_pktmbuf_mtod(packet, uint8_t *), mac_, mac, self_, peer, bytes);
    packet->data_len = static_cast<uint16_t>(kFrameHeaderBytes + bytes);
    packet->pkt_len = packet->data_len;
    queue_[queued_++] = packet;
}

// The last peer gets the buffer itself, the others a copy each.
void DpdkPort::transmit(uint32_t bytes, const Peer *peers, size_t count) {
    const uint64_t now = now_ns();
    const uint8_t *payload = rte_pktmbuf_mtod_offset(current_, uint8_t *, kFrameHeaderBytes);
    for (size_t i = 0; i < count; i++) {
        const MacAddress *mac = resolve(peers[i].address, now);
        if (mac == nullptr) continue;
        rte_mbuf *packet = i + 1 == count ? current_ : rte_pktmbuf_alloc(pool_);
        if (packet == nullptr) continue;
        if (packet == current_)
            current_ = nullptr;
        else
            std::memcpy(rte_pktmbuf_mtod_offset(packet, uint8_t *, kFrameHeaderBytes), payload,
                        bytes);
        enqueue(packet, bytes, peers[i], *mac);
    }
    if (queued_ >= kBurst) flush();
}

void DpdkPort::flush() {
    size_t done = 0;
    while (done < queued_) {
        const auto left = static_cast<uint16_t>(queued_ - done);
        uint64_t bytes = 0;
        // The driver may free what it takes: count before.
        uint32_t sizes[kQueueMax];
        for (uint16_t i = 0; i < left; i++) sizes[i] = queue_[done + i]->pkt_len;
        const uint16_t sent = rte_eth_tx_burst(port_, 0, queue_ + done, left);
        if (sent == 0) break;
        for (uint16_t i = 0; i < sent; i++) bytes += sizes[i];
        counters_.packets_sent.add(sent);
        counters_.bytes_sent.add(bytes);
        done += sent;
    }
    std::memmove(queue_, queue_ + done, (queued_ - done) * sizeof *queue_);
    queued_ -= done;
}

// ---- receiving ----------------------------------------------------------------------------------

size_t DpdkPort::receive(ReceivedPacket *out, size_t count_max) {
    if (received_count_ > 0) rte_pktmbuf_free_bulk(received_, received_count_);
    const uint16_t most = count_max < kBurst ? static_cast<uint16_t>(count_max) : kBurst;
    received_count_ = rte_eth_rx_burst(port_, 0, received_, most);
    size_t count = 0;
    uint64_t bytes = 0;
    for (uint16_t i = 0; i < received_count_; i++) {
        auto *frame = rte_pktmbuf_mtod(received_[i], uint8_t *);
        const bool is_whole = received_[i]->nb_segs == 1;
        const ParsedFrame parsed =
            is_whole ? parse_frame(frame, received_[i]->data_len, self_) : ParsedFrame();
        if (parsed.kind == Frame::arp_request) {
            neighbours_.learn(parsed.from.address, parsed.mac);
            send_arp(parsed.from.address, &parsed.mac);
        } else if (parsed.kind == Frame::arp_told) {
            neighbours_.learn(parsed.from.address, parsed.mac);
        } else if (parsed.kind == Frame::udp) {
            out[count++] = {frame + parsed.payload_offset, parsed.payload_bytes, parsed.from};
            bytes += parsed.payload_bytes;
        } else if (parsed.kind == Frame::damaged) {
            counters_.damaged.add();
        }
    }
    counters_.packets_received.add(count);
    counters_.bytes_received.add(bytes);
    read_stats(now_ns());
    return count;
}

void DpdkPort::read_stats(uint64_t now) {
    rte_eth_stats stats;
    if (elapsed_ns(now, stats_ns_) < kStatsPeriod) return;
    stats_ns_ = now;
    if (rte_eth_stats_get(port_, &stats) != 0) return;
    counters_.missed.set(stats.imissed + stats.rx_nombuf);
    counters_.send_errors.set(stats.oerrors);
}

unsigned DpdkPort::wait(uint64_t timeout_ns, unsigned) {
    const uint64_t nap_ns = timeout_ns < kNap ? timeout_ns : kNap;
    pollfd watched = {event_, POLLIN, 0};
    const timespec nap = {0, static_cast<long>(nap_ns)};
    uint64_t count;
    const bool is_woken =
        ppoll(&watched, 1, &nap, nullptr) > 0 && read(event_, &count, sizeof count) > 0;
    return is_woken ? unsigned{kWoken} : 0;
}

// ---- opening ------------------------------------------------------------------------------------

// "0000:41:00.0" is a PCI device, anything else a virtual one: driver, then its arguments.
void split_device(const char *device, std::string *bus, std::string *name, std::string *arguments) {
    static std::mutex mutex;
    static unsigned count = 0;
    std::string text = device;
    unsigned parts[4];
    if (sscanf(device, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) == 4) {
        *bus = "pci";
        *name = text;
        return;
    }
    const size_t comma = text.find(',');
    std::lock_guard<std::mutex> guard(mutex);
    *bus = "vdev";
    *name = text.substr(0, comma) + "_duck" + std::to_string(count++);
    *arguments = comma == std::string::npos ? "" : text.substr(comma + 1);
}

} // namespace

extern "C" DUCKHOST_EXPORT Port *duckdpdk_open(const DpdkPortOptions *options,
                                               duckhost_error *error);

extern "C" DUCKHOST_EXPORT Port *duckdpdk_open(const DpdkPortOptions *options,
                                               duckhost_error *error) {
    std::string bus, name, arguments;
    if (start_eal() < 0) {
        fail(error, DUCKHOST_ERR_SYSTEM, -1, "DPDK does not start: %s", rte_strerror(rte_errno));
        set_hint(error, "it needs root or CAP_NET_ADMIN and CAP_IPC_LOCK, and memory");
        return nullptr;
    }
    split_device(options->device, &bus, &name, &arguments);
    auto port = std::make_unique<DpdkPort>(*options, bus, name);
    if (port->open(*options, arguments, error) != DUCKHOST_OK) return nullptr;
    return port.release();
}

} // namespace duckhost
