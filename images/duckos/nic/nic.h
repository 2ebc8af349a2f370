/* SPDX-License-Identifier: Apache-2.0
 *
 * What a NIC driver is. One driver is one file; it finds its device, resets it fully, owns its two
 * rings, and lends frames out in place:
 *
 *   reception  receive() lends the oldest frame; it stays in the ring's buffer until release().
 *   sending    send_buffer() lends the buffer of the next free descriptor; send() queues it.
 *
 * Memory is taken at probe and never again; start() may be called any number of times, and each
 * call resets the hardware. All functions are called from one core and none of them waits longer
 * than its stated limit. The functions are filled in at run time, because the image has no
 * relocations.
 */
#ifndef DUCKOS_NIC_H
#define DUCKOS_NIC_H

#include "pci/pci.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NIC_COUNT_MAX 8u        /* usable ones; further Ethernet devices are only named */
#define NIC_HEADER_BYTES 14u    /* of Ethernet, untagged */
#define NIC_FRAME_BYTES_MIN 60u /* without the checksum; shorter ones are padded before sending */
#define NIC_MTU_JUMBO 9000u
#define NIC_MTU_PLAIN 1500u
#define NIC_FRAME_BYTES_MAX (NIC_HEADER_BYTES + NIC_MTU_JUMBO)
/* One frame fits one buffer: a multiple of 1024 because Intel counts in KB, with room for the frame
 * check sequence, one tag and virtio's header. */
#define NIC_BUFFER_BYTES 10240u
#define NIC_RING_COUNT_MAX 512u
#define NIC_RESET_LIMIT_US 100000u /* any reset, any start of a queue */
#define NIC_REFILL_FRAMES 16u      /* received frames per doorbell */

enum nic_status {
    NIC_OK = 0,
    NIC_OTHER_DEVICE, /* not one that this driver knows */
    NIC_NO_REGISTERS, /* the register BAR is missing or too small */
    NIC_NO_ANSWER,    /* registers read as all ones, or a reset did not end in time */
    NIC_NO_ADDRESS,   /* no valid MAC address: NVM broken */
    NIC_REFUSED,      /* the device turns down what the driver needs */
    NIC_TOO_MANY,     /* NIC_COUNT_MAX others are usable */
    NIC_NO_MEMORY     /* the arena has no room for rings */
};
#define NIC_MUST_CHECK __attribute__((warn_unused_result))

struct nic_frame {
    uint8_t *bytes; /* from the destination address on, without the frame check sequence */
    size_t size;
};

struct nic_counters {
    uint64_t descriptor_errors, oversized, runts, missed, bad_descriptors, resets, link_changes;
    uint64_t ring_full;
    uint64_t completed; /* sent frames that the NIC gave back */
};

struct nic {
    const struct pci_device *device;
    char driver[16];
    char model[16];
    bool unproven; /* has run neither on its hardware nor on an emulator of it */
    uint8_t mac[6];
    uint32_t mtu_bytes_max;     /* what the NIC can send and receive */
    uint32_t mtu_bytes_default; /* what a hypervisor says; 0 = nothing said */
    bool link;
    uint32_t link_mbps;
    bool broken; /* the device needs start() again */
    struct nic_counters count;
    void *state; /* the driver's own */

    enum nic_status (*start)(struct nic *nic) NIC_MUST_CHECK;
    void (*stop)(struct nic *nic);      /* no DMA any more when it returns */
    void (*poll_link)(struct nic *nic); /* now and then: link, link_mbps, missed, broken */
    bool (*receive)(struct nic *nic, struct nic_frame *frame);
    void (*release)(struct nic *nic);
    void (*refill)(struct nic *nic); /* every round: give released descriptors to the NIC */
    uint8_t *(*send_buffer)(struct nic *nic);    /* NULL: the ring is full */
    void (*send)(struct nic *nic, size_t bytes); /* the frame in the last send_buffer */
    bool (*sending)(struct nic *nic);            /* frames queued that have not left */
    void (*arm_wake)(struct nic *nic); /* after stop: a magic packet wakes. NULL: not known how */
};

/* One per driver file. Fills `nic` in and takes the memory; the device is quiet afterwards. */
enum nic_status virtio_net_probe(struct nic *nic, const struct pci_device *device) NIC_MUST_CHECK;
enum nic_status e1000e_probe(struct nic *nic, const struct pci_device *device) NIC_MUST_CHECK;
enum nic_status igb_probe(struct nic *nic, const struct pci_device *device) NIC_MUST_CHECK;
enum nic_status igc_probe(struct nic *nic, const struct pci_device *device) NIC_MUST_CHECK;
enum nic_status r8169_probe(struct nic *nic, const struct pci_device *device) NIC_MUST_CHECK;

/* Probe the Ethernet devices; returns how many of `nics` are usable. Failures are logged by name,
 * and so are devices that are left out. */
unsigned nic_find(struct nic nics[NIC_COUNT_MAX]);
const char *nic_status_text(enum nic_status status);

/* ---- shared by the drivers ------------------------------------------------------------------- */
struct nic_model {
    uint16_t device_id;
    char name[14];
};
/* A row of a table that ends with device_id 0, or NULL. */
const struct nic_model *nic_find_model(const struct nic_model *models, uint16_t device_id);
void nic_set_name(char to[16], const char *name);

/* Ring memory. Buffers lie NIC_BUFFER_BYTES apart. */
struct nic_memory {
    uint32_t receive_count, send_count; /* powers of two, by how much memory there is */
    uint8_t *receive_buffers, *send_buffers;
};
void nic_take_buffers(struct nic_memory *memory);

/* What the device must be told to find memory of memory_take: it is identity-mapped. */
static inline uint64_t nic_dma(const volatile void *memory) { return (uintptr_t)memory; }

/* Rings have a power of two of descriptors. */
static inline uint32_t nic_next(uint32_t index, uint32_t count) {
    return (index + 1) & (count - 1);
}

bool nic_mac_is_valid(const uint8_t mac[6]); /* unicast and not zero */

/* True when (register & mask) == expected within `limit_us`. */
bool nic_wait32(const volatile void *at, uint32_t mask, uint32_t expected, uint32_t limit_us);
void nic_pause_us(uint32_t us);

void nic_set_link(struct nic *nic, bool up, uint32_t mbps); /* counts changes */

#endif
