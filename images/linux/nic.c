/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* One socket for all questions about cards. */
static int control(void) {
    static int fd = -1;
    if (fd < 0) fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd;
}

static struct ifreq request_for(const char *name) {
    struct ifreq request;
    memset(&request, 0, sizeof request);
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    return request;
}

/* Ethernet with a device behind it: no bridges, tunnels or loopback. */
static bool is_card(const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/sys/class/net/%s/device", name);
    struct ifreq request = request_for(name);
    return access(path, F_OK) == 0 && ioctl(control(), SIOCGIFHWADDR, &request) == 0 &&
           request.ifr_hwaddr.sa_family == ARPHRD_ETHER;
}

int nics_find(struct nic *nics, int most) {
    int count = 0;
    DIR *folder = opendir("/sys/class/net");
    if (folder == NULL) return 0;
    for (struct dirent *entry = readdir(folder); entry != NULL && count < most;
         entry = readdir(folder)) {
        if (strlen(entry->d_name) >= IFNAMSIZ || !is_card(entry->d_name)) continue;
        struct nic *nic = &nics[count++];
        memset(nic, 0, sizeof *nic);
        memcpy(nic->name, entry->d_name, strlen(entry->d_name));
        struct ifreq request = request_for(nic->name);
        if (ioctl(control(), SIOCGIFHWADDR, &request) == 0)
            memcpy(nic->mac, request.ifr_hwaddr.sa_data, 6);
        nic->socket = -1;
    }
    closedir(folder);
    return count;
}

static int client_socket(const char *name) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(DHCP_CLIENT_PORT)};
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name)) != 0 ||
        bind(fd, (struct sockaddr *)&place, sizeof place) != 0) {
        say("%s: no socket for DHCP: %s", name, strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

bool nic_up(struct nic *nic) {
    struct ifreq request = request_for(nic->name);
    if (ioctl(control(), SIOCGIFFLAGS, &request) != 0) return false;
    request.ifr_flags = (short)(request.ifr_flags | IFF_UP);
    if (ioctl(control(), SIOCSIFFLAGS, &request) != 0) {
        say("%s does not come up: %s", nic->name, strerror(errno));
        return false;
    }
    nic->socket = client_socket(nic->name);
    return nic->socket >= 0;
}

bool nic_has_carrier(const struct nic *nic) {
    struct ifreq request = request_for(nic->name);
    return ioctl(control(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
}

static bool ethtool(const struct nic *nic, void *command) {
    struct ifreq request = request_for(nic->name);
    request.ifr_data = command;
    return ioctl(control(), SIOCETHTOOL, &request) == 0;
}

/* Energy-Efficient Ethernet costs up to hundreds of microseconds when a quiet link wakes, and makes
 * I226 links flap. Wake-on-LAN falls back to "off" at each start, so it is armed at each start. */
void nic_tune(const struct nic *nic) {
    struct ethtool_eee eee = {.cmd = ETHTOOL_GEEE};
    if (ethtool(nic, &eee) && eee.eee_enabled != 0) {
        eee.cmd = ETHTOOL_SEEE;
        eee.eee_enabled = 0;
        eee.tx_lpi_enabled = 0;
        say("%s: energy-efficient Ethernet %s", nic->name,
            ethtool(nic, &eee) ? "switched off" : "cannot be switched off");
    }
    struct ethtool_wolinfo wake = {.cmd = ETHTOOL_GWOL};
    if (ethtool(nic, &wake) && (wake.supported & WAKE_MAGIC) != 0) {
        wake.cmd = ETHTOOL_SWOL;
        wake.wolopts = WAKE_MAGIC;
        say("%s: wake on LAN %s", nic->name, ethtool(nic, &wake) ? "armed" : "cannot be armed");
    }
}

static bool set_one(const struct nic *nic, unsigned long what, uint32_t address) {
    struct ifreq request = request_for(nic->name);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    memcpy(&request.ifr_addr, &place, sizeof place);
    return ioctl(control(), what, &request) == 0;
}

bool nic_set_address(const struct nic *nic, uint32_t address, uint32_t mask) {
    return set_one(nic, SIOCSIFADDR, address) && set_one(nic, SIOCSIFNETMASK, mask) &&
           set_one(nic, SIOCSIFBRDADDR, address | ~mask);
}

void nic_set_mtu(const struct nic *nic, unsigned mtu) {
    struct ifreq request = request_for(nic->name);
    request.ifr_mtu = (int)mtu;
    if (ioctl(control(), SIOCSIFMTU, &request) != 0)
        say("%s takes no MTU of %u: %s", nic->name, mtu, strerror(errno));
}
