/* SPDX-License-Identifier: Apache-2.0
 *
 * PCI Express: which devices exist, their configuration space, BARs and capabilities. Addresses
 * that the firmware gave are kept. Sections are those of the PCI Express Base Specification 4.0.
 */
#ifndef DUCKOS_PCI_H
#define DUCKOS_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PCI_DEVICE_COUNT_MAX 128u
#define PCI_NO_PARENT 0xffffu
#define PCI_CLASS_ETHERNET 0x0200u

#define PCI_CAPABILITY_POWER 0x01u
#define PCI_CAPABILITY_MSI 0x05u
#define PCI_CAPABILITY_VENDOR 0x09u
#define PCI_CAPABILITY_EXPRESS 0x10u
#define PCI_CAPABILITY_MSIX 0x11u
#define PCI_EXTENDED_L1_SUBSTATES 0x001eu

struct pci_device {
    uint8_t bus, slot, function;
    uint8_t revision;
    uint16_t vendor_id, device_id;
    uint16_t class_code; /* class << 8 | subclass */
    uint16_t parent;     /* index of the bridge above, or PCI_NO_PARENT */
    uint8_t secondary;   /* a bridge's bus below; 0 for other devices */
};

/* Find all devices. `ecam` is the base of the enhanced configuration space of segment 0 that ACPI's
 * MCFG names for buses bus_first..bus_last, or 0: then only the first 256 bytes can be reached. */
void pci_init(uint64_t ecam, uint8_t bus_first, uint8_t bus_last);
unsigned pci_count(void);
const struct pci_device *pci_at(unsigned index);

uint8_t pci_read8(const struct pci_device *device, uint16_t offset);
uint16_t pci_read16(const struct pci_device *device, uint16_t offset);
uint32_t pci_read32(const struct pci_device *device, uint16_t offset);
void pci_write16(const struct pci_device *device, uint16_t offset, uint16_t value);
void pci_write32(const struct pci_device *device, uint16_t offset, uint32_t value);

/* Offset of the next capability with this id behind `after` (0: the first); 0 = none. */
uint8_t pci_find_capability(const struct pci_device *device, uint8_t id, uint8_t after);
uint16_t pci_find_extended(const struct pci_device *device, uint16_t id);

/* Take the device over from the firmware: no bus mastering (a running ring of the firmware's driver
 * stops here), no interrupt of any kind, power state D0. */
void pci_take_over(const struct pci_device *device);

/* Let the device, and the bridges above it, read and write memory; only after its rings were reset.
 * */
void pci_bus_master_on(const struct pci_device *device);

/* Active-state power management off at both ends of the device's link, L1 substates too: waking a
 * link takes longer than a call, and the I226 loses its link in L1.2 (see nic/igc.c). */
void pci_link_always_on(const struct pci_device *device);

/* Let the device wake the machine: PME on, state D3. Its registers are gone afterwards. False: it
 * can't from that state, nothing was changed. */
bool pci_arm_wake(const struct pci_device *device);

/* Map a memory BAR, uncached. NULL: not a memory BAR, not assigned by the firmware, or shorter than
 * `bytes_min`. `bytes` (may be NULL) gets its size. */
volatile uint8_t *pci_map_bar(const struct pci_device *device, unsigned bar, uint64_t bytes_min,
                              uint64_t *bytes);

#endif
