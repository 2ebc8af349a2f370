// SPDX-License-Identifier: Apache-2.0
//
// The port on a NIC queue through DPDK. The code lies in a module of its own (libduckdpdk.so), so
// that neither the library nor its users need DPDK until a domain names a device.
#pragma once

#include "../port.h"

namespace duckhost {

struct DpdkPortOptions {
    const char *device;    // "0000:41:00.0" or "net_af_packet,iface=nic0,..."
    uint32_t own_address;  // network byte order
    uint32_t broadcast;    // of the domain, 0 = none
    uint32_t mtu;          // IP
    uint32_t link_wait_ms; // a slow link is waited for
};

// Null on failure, with *error filled in.
std::unique_ptr<Port> open_dpdk_port(const DpdkPortOptions &options, duckhost_error *error);

// What the module exports.
using DpdkOpen = Port *(const DpdkPortOptions *options, duckhost_error *error);
constexpr const char *kDpdkOpenName = "duckdpdk_open";

} // namespace duckhost
