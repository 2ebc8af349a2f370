/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine says about itself: CPUID, /proc/meminfo, sysfs. What is not there is reported as
 * unknown, never guessed.
 */
#include "duckd.h"

#include <cpuid.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static uint32_t core_count;
static enum duck_poll_policy poll_policy;
static bool in_image;
static char interface_name[SOCKETS_MAX][IF_NAMESIZE]; /* empty = unknown */
static char temperature_path[280];                    /* empty = no sensor */

/* ---- small files ----------------------------------------------------------------------------- */

static bool read_text(const char *path, char *out, size_t room) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool got = fgets(out, (int)room, file) != NULL;
    fclose(file);
    if (got) out[strcspn(out, "\n")] = 0;
    return got;
}

static bool read_number(const char *path, int64_t *out) {
    char text[32], *end;
    if (!read_text(path, text, sizeof text)) return false;
    *out = strtoll(text, &end, 10);
    return end != text;
}

/* "MemAvailable:   123 kB" -> bytes; 0 when it is not there. */
static uint64_t meminfo(const char *key) {
    char line[128];
    uint64_t kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kilobytes = strtoull(line + strlen(key), NULL, 10);
    fclose(file);
    return kilobytes << 10;
}

/* What a cgroup (a container) leaves of the machine's memory. */
static uint64_t cgroup_available(void) {
    char line[512], path[600], text[32];
    int64_t used;
    if (!read_text("/proc/self/cgroup", line, sizeof line) || strncmp(line, "0::", 3) != 0)
        return UINT64_MAX;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
    if (!read_text(path, text, sizeof text) || strcmp(text, "max") == 0) return UINT64_MAX;
    uint64_t most = strtoull(text, NULL, 10);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
    if (!read_number(path, &used) || used < 0) return most;
    return most > (uint64_t)used ? most - (uint64_t)used : 0;
}

uint64_t machine_memory_available(void) {
    uint64_t system = meminfo("MemAvailable:"), cgroup = cgroup_available();
    return system < cgroup ? system : cgroup;
}

uint64_t machine_free_huge_pages(void) {
    int64_t free_pages, promised = 0;
    if (!read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", &free_pages))
        return 0;
    read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", &promised);
    return free_pages > promised ? (uint64_t)(free_pages - promised) : 0;
}

uint32_t machine_allowed_cpus(void) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    int count = CPU_COUNT(&allowed);
    if (count > (int)DUCK_KERNEL_CORES_MAX) return DUCK_KERNEL_CORES_MAX;
    return count > 0 ? (uint32_t)count : 1;
}

/* ---- CPU ------------------------------------------------------------------------------------- */

static void cpu_model(char out[48]) {
    unsigned words[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                    &words[4 * i + 3]);
    memcpy(out, words, 48);
    out[47] = 0;
}

/* The YMM state must be enabled by the operating system too. */
static bool avx_is_usable(unsigned leaf1_ecx) {
    if ((leaf1_ecx & bit_OSXSAVE) == 0 || (leaf1_ecx & bit_AVX) == 0) return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6u) == 6u;
}

uint32_t plat_cpu_features(void) {
    unsigned a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool avx = avx_is_usable(c);
    if (avx && (c & bit_FMA)) features |= DUCK_CPU_FMA;
    if (avx && (c & bit_F16C)) features |= DUCK_CPU_F16C;
    if (c & bit_AES) features |= DUCK_CPU_AESNI;
    if (c & bit_PCLMUL) features |= DUCK_CPU_PCLMUL;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && avx && (b & bit_AVX2)) features |= DUCK_CPU_AVX2;
    const unsigned avx_vnni = 1u << 4;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && avx && (a & avx_vnni))
        features |= DUCK_CPU_AVXVNNI;
    return features;
}

uint32_t plat_core_count(void) { return core_count; }

/* ---- NIC ------------------------------------------------------------------------------------- */

static const struct ifaddrs *find_address(const struct ifaddrs *list, struct in_addr address) {
    for (; list != NULL; list = list->ifa_next) {
        if (list->ifa_addr == NULL || list->ifa_addr->sa_family != AF_INET) continue;
        const struct sockaddr_in *own = (const struct sockaddr_in *)(const void *)list->ifa_addr;
        if (own->sin_addr.s_addr == address.s_addr) return list;
    }
    return NULL;
}

void machine_read_link(uint16_t interface, struct in_addr address) {
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0) return;
    const struct ifaddrs *found = find_address(list, address);
    if (found != NULL) {
        snprintf(interface_name[interface], IF_NAMESIZE, "%s", found->ifa_name);
        /* An alias label ("eth0:1") belongs to its device. */
        interface_name[interface][strcspn(interface_name[interface], ":")] = 0;
    }
    freeifaddrs(list);
}

struct in_addr machine_broadcast(struct in_addr address) {
    struct in_addr none = {0};
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0) return none;
    const struct ifaddrs *found = find_address(list, address);
    if (found != NULL && (found->ifa_flags & IFF_BROADCAST) != 0 && found->ifa_broadaddr != NULL)
        none = ((const struct sockaddr_in *)(const void *)found->ifa_broadaddr)->sin_addr;
    freeifaddrs(list);
    return none;
}

/* The driver's name is the last part of what a link in sysfs points to; virtual devices have none.
 */
static void read_driver(const char *name, char *out, size_t room) {
    char path[128], target[256];
    snprintf(path, sizeof path, "/sys/class/net/%s/device/driver", name);
    ssize_t bytes = readlink(path, target, sizeof target - 1);
    if (bytes <= 0) return;
    target[bytes] = 0;
    const char *last = strrchr(target, '/');
    snprintf(out, room, "%.*s", (int)room - 1, last == NULL ? target : last + 1);
}

static void describe_link(uint16_t interface, struct duck_info *info) {
    char path[128], text[32];
    int64_t value;
    const char *name = interface_name[interface];
    if (name[0] == 0) return;
    read_driver(name, info->nic_driver, sizeof info->nic_driver);
    snprintf(path, sizeof path, "/sys/class/net/%s/mtu", name);
    if (read_number(path, &value) && value > 0) info->mtu_bytes = (uint32_t)value;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    if (read_number(path, &value) && value > 0) info->link_mbps = (uint32_t)value;
    snprintf(path, sizeof path, "/sys/class/net/%s/address", name);
    if (!read_text(path, text, sizeof text)) return;
    unsigned byte[6];
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4],
               &byte[5]) != 6)
        return;
    for (int i = 0; i < 6; i++) info->mac_address[i] = (uint8_t)byte[i];
}

/* ---- temperature ----------------------------------------------------------------------------- */

/* Look through /sys/class/CLASS/PREFIX*: the first whose NAME file is one of the CPU sensors gives
 * its VALUE file. */
static bool find_sensor(const char *class, const char *prefix, const char *name_file,
                        const char *value_file) {
    static const char *const sensors[] = {"coretemp", "k10temp", "zenpower", "x86_pkg_temp",
                                          "cpu_thermal"};
    char path[sizeof temperature_path], text[64];
    int64_t value;
    DIR *folder = opendir(class);
    if (folder == NULL) return false;
    bool found = false;
    for (struct dirent *entry = readdir(folder); entry != NULL && !found; entry = readdir(folder)) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || strlen(entry->d_name) > 40)
            continue;
        snprintf(path, sizeof path, "%s/%.40s/%s", class, entry->d_name, name_file);
        if (!read_text(path, text, sizeof text)) continue;
        for (size_t i = 0; i < sizeof sensors / sizeof sensors[0] && !found; i++)
            found = strcmp(text, sensors[i]) == 0;
        snprintf(path, sizeof path, "%s/%.40s/%s", class, entry->d_name, value_file);
        found = found && read_number(path, &value);
    }
    closedir(folder);
    if (found) memcpy(temperature_path, path, sizeof path);
    return found;
}

static int32_t temperature(void) {
    int64_t value;
    if (temperature_path[0] == 0 || !read_number(temperature_path, &value)) return INT32_MIN;
    return value > INT32_MIN && value < INT32_MAX ? (int32_t)value : INT32_MIN;
}

/* ---- all together ---------------------------------------------------------------------------- */

void machine_init(const struct options *options) {
    core_count = options->core_count;
    poll_policy = options->poll;
    in_image = options->image;
    if (!find_sensor("/sys/class/hwmon", "hwmon", "name", "temp1_input"))
        find_sensor("/sys/class/thermal", "thermal_zone", "type", "temp");
}

void plat_describe(uint16_t interface, struct duck_info *info) {
    info->platform = in_image ? DUCK_PLATFORM_LINUX_IMAGE : DUCK_PLATFORM_LINUX_PROCESS;
    cpu_model(info->cpu_model);
    info->cpu_features = plat_cpu_features();
    info->core_count = core_count;
    info->memory_bytes = meminfo("MemTotal:");
    info->temperature_mc = temperature();
    info->huge_pages = memory_in_huge_pages(DUCK_REGION_WEIGHTS) ? 1 : 0;
    info->poll_policy = (uint8_t)poll_policy;
    describe_link(interface, info);
}
