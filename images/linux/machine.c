/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODULE_LIST "/etc/duck/modules"
#define HUGE_PAGES "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define HUGE_PAGE_MIB 2
/* What is kept as normal memory: the kernel's, duckd's call buffers and scratch, page tables. */
#define NORMAL_MIB_MIN 640
#define NORMAL_SHARE 16 /* a sixteenth */
/* A guest of a lab this small keeps everything as normal memory. */
#define HUGE_MACHINE_MIB_MIN 4096

static int watchdog = -1;

static void mount_one(const char *type, const char *place, unsigned long flags, const char *data) {
    mkdir(place, 0755);
    if (mount(type, place, type, flags, data) != 0 && errno != EBUSY)
        say("cannot mount %s on %s: %s", type, place, strerror(errno));
}

void machine_mount(void) {
    mount_one("proc", "/proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    mount_one("sysfs", "/sys", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    mount_one("devtmpfs", "/dev", MS_NOSUID | MS_NOEXEC, "mode=0755");
    mount_one("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755,size=16m");
    mount_one("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
    mkdir("/run/duck", 0700);
}

static bool load_module(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/lib/modules/%s.ko", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    long failed = syscall(SYS_finit_module, file, "", 0);
    /* ENODEV: a driver without its device (a sensor, a watchdog); EEXIST: loaded already. */
    bool fine = failed == 0 || errno == EEXIST || errno == ENODEV;
    if (!fine) say("module %s: %s", name, strerror(errno));
    close(file);
    return fine;
}

void machine_load_modules(void) {
    char name[64];
    int loaded = 0;
    FILE *file = fopen(MODULE_LIST, "re");
    if (file == NULL) {
        say("there is no %s", MODULE_LIST);
        return;
    }
    while (fgets(name, sizeof name, file) != NULL) {
        name[strcspn(name, "\n")] = 0;
        loaded += load_module(name);
    }
    fclose(file);
    say("%d modules", loaded);
}

static long available_mib(void) {
    char line[128];
    long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %ld", &kib) == 1) break;
    fclose(file);
    return kib / 1024;
}

static bool write_number(const char *path, long value) {
    FILE *file = fopen(path, "we");
    if (file == NULL) return false;
    bool fine = fprintf(file, "%ld\n", value) > 0;
    return fclose(file) == 0 && fine;
}

static long read_number(const char *path) {
    long value = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld", &value) != 1) value = 0;
    fclose(file);
    return value;
}

/* The kernel grants fewer pages without an error, so what it gave is read back. */
void machine_reserve_huge_pages(long mib) {
    long available = available_mib();
    if (mib < 0) {
        long normal = available / NORMAL_SHARE;
        if (normal < NORMAL_MIB_MIN) normal = NORMAL_MIB_MIN;
        mib = available < HUGE_MACHINE_MIB_MIN ? 0 : available - normal;
    }
    if (mib == 0) return;
    long wanted = mib / HUGE_PAGE_MIB;
    if (!write_number(HUGE_PAGES, wanted)) say("cannot reserve huge pages: %s", strerror(errno));
    long got = read_number(HUGE_PAGES);
    say("%ld of %ld huge pages, %ld MiB available before", got, wanted, available);
}

void machine_open_watchdog(void) {
    watchdog = open("/dev/watchdog", O_WRONLY | O_CLOEXEC);
    if (watchdog >= 0) say("watchdog armed");
}

void machine_pet_watchdog(void) {
    if (watchdog >= 0 && write(watchdog, "1", 1) != 1) say("the watchdog takes no sign of life");
}

_Noreturn void machine_reboot(void) {
    sync();
    reboot(RB_AUTOBOOT);
    say("reboot failed: %s", strerror(errno));
    for (;;) pause(); /* process 1 must not end */
}
