// SPDX-License-Identifier: Apache-2.0
//
// Finds the DPDK module beside this library.
#include "dpdk/dpdk_port.h"

#include <dlfcn.h>
#include <string>

namespace duckhost {

std::unique_ptr<Port> open_dpdk_port(const DpdkPortOptions &options, duckhost_error *error) {
    Dl_info self;
    if (dladdr(reinterpret_cast<void *>(&open_dpdk_port), &self) == 0) self.dli_fname = "";
    std::string path = self.dli_fname;
    path = path.substr(0, path.find_last_of('/') + 1) + "libduckdpdk.so";
    // Global: the drivers are plugins that look for DPDK's own symbols.
    void *module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void *open = module != nullptr ? dlsym(module, kDpdkOpenName) : nullptr;
    if (open == nullptr) {
        fail(error, DUCKHOST_ERR_SYSTEM, -1, "device %s needs DPDK: %.300s", options.device,
             dlerror());
        set_hint(error, "this installation was built without DPDK, or DPDK was removed: install "
                        "libdpdk-dev, then duckctl again; or leave the device out (UDP sockets)");
        return nullptr;
    }
    return std::unique_ptr<Port>(reinterpret_cast<DpdkOpen *>(open)(&options, error));
}

} // namespace duckhost
