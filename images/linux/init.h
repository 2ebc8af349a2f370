/* SPDX-License-Identifier: Apache-2.0
 *
 * duck-init: process 1 of the Linux image. It brings the machine up, keeps its address, and keeps
 * duckd running. What its files offer each other.
 */
#ifndef DUCK_INIT_H
#define DUCK_INIT_H

#include "dhcp.h"
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#define NICS_MAX 16
#define NAME_BYTES 32 /* of a duck, with its zero: DUCK_WIRE_NAME_BYTES */

/* ---- options.c: words of the kernel's command line, all optional ----------------------------- */
struct options {
    char name[NAME_BYTES]; /* duck.name=; else DHCP's host name, else from the MAC */
    char poll[8];          /* duck.poll=spin|sleep|block */
    char memory_limit[24]; /* duck.memory=BYTES, for duckd */
    uint8_t boot_mac[6];   /* BOOTIF=01-aa-bb-...: the card that the firmware booted from */
    bool has_boot_mac;
    unsigned mtu;   /* duck.mtu=; else DHCP's */
    unsigned port;  /* duck.port= */
    unsigned cores; /* duck.cores=; 0: all that the poll policy leaves */
    long huge_mib;  /* duck.hugepages=MIB; -1: what memory allows */
};
void options_read(struct options *options, const char *path);
void options_parse(struct options *options, char *line); /* changes the line */

/* ---- log.c: the kernel's log, so that serial console and screen show it ---------------------- */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- machine.c ------------------------------------------------------------------------------- */
void machine_mount(void);
void machine_load_modules(void); /* /etc/duck/modules */
void machine_reserve_huge_pages(long mib);
void machine_open_watchdog(void);
void machine_pet_watchdog(void);
_Noreturn void machine_reboot(void);

/* ---- nic.c ----------------------------------------------------------------------------------- */
struct nic {
    char name[IFNAMSIZ];
    uint8_t mac[6];
    int socket; /* UDP port 68 of this card alone; -1: closed */
};
int nics_find(struct nic *nics, int most); /* all Ethernet cards with a device behind */
bool nic_up(struct nic *nic);              /* opens its socket too */
bool nic_has_carrier(const struct nic *nic);
void nic_tune(const struct nic *nic); /* energy saving off, wake on LAN armed */
bool nic_set_address(const struct nic *nic, uint32_t address, uint32_t mask);
void nic_set_mtu(const struct nic *nic, unsigned mtu);

/* ---- lease.c --------------------------------------------------------------------------------- */
struct lease {
    struct nic *nic;
    struct dhcp_answer given;
    uint64_t renew_at_ms, rebind_at_ms, ends_at_ms, next_ask_ms;
    uint32_t xid;
};
/* Without end, and petting the watchdog. */
void lease_acquire(struct lease *lease, struct nic *nics, int count, const struct options *options);
/* Renews in time; true when the address is another one than before. */
bool lease_keep(struct lease *lease, uint64_t now_ms);
uint64_t now_ms(void);

/* ---- duckd.c --------------------------------------------------------------------------------- */
#define DUCKD_EXIT_REBOOT 3 /* duckd was told to reboot the machine */
void duckd_start(const struct lease *lease, const struct options *options);
void duckd_stop(void);
void duckd_look(const struct lease *lease, const struct options *options); /* reaps, restarts */

#endif
