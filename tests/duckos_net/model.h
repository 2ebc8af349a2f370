/* SPDX-License-Identifier: Apache-2.0
 *
 * A NIC as its driver sees it: registers and rings, strict about every rule of the datasheet that a
 * driver could break. What a model finds wrong ends the test.
 */
#ifndef DUCKOS_TEST_MODEL_H
#define DUCKOS_TEST_MODEL_H

#include "machine.h"

#include "nic/nic.h"

#define MODEL_FRAME_BYTES_MAX 16000u
#define MODEL_SENT_MAX 1024u

extern const uint8_t model_mac[6];

enum damage {
    NO_DAMAGE,
    CRC_ERROR,   /* the NIC marks the frame */
    RUNT,        /* shorter than an Ethernet header */
    TOO_LONG,    /* longer than a buffer: the NIC spreads it over descriptors */
    WILD_LENGTH, /* a length that no buffer has */
};

struct model {
    const char *name;
    struct machine_device *device;
    enum nic_status (*probe)(struct nic *nic, const struct pci_device *device);
    bool link;
    uint32_t mbps;
    bool hold_sends;    /* queued frames stay in the ring */
    bool stuck_reset;   /* a reset never ends */
    bool no_address;    /* the NVM is broken */
    bool phy_was_reset; /* and waits to be told to negotiate */
    bool phy_is_down;
    bool phy_is_fixed;       /* negotiates nothing */
    uint64_t phy_answers_ns; /* after so long */
    bool refuse_queue;       /* a queue never says that it is on */
    uint64_t missed;
    uint64_t reset_count;
    uint32_t negotiations; /* how often the link was negotiated anew */
    void *own;
    /* A frame from the wire; false: no descriptor was free, or the receiver is off. */
    bool (*inject)(struct model *model, const uint8_t *frame, size_t size, enum damage damage);
    void (*run)(struct model *model); /* send what is queued */
    bool (*counts_missed)(void);
    bool (*saves_energy)(struct model *model); /* now, or offered to the partner */
    bool (*offers_2500)(struct model *model);
    bool (*deaf)(struct model *model);  /* for drivers that only set the receiver up */
    bool (*wakes)(struct model *model); /* by a magic packet, and by nothing else */
    uint32_t sent_count, sent_taken;
    struct {
        size_t size;
        uint8_t *bytes;
    } sent[MODEL_SENT_MAX];
};

/* Each plugs its device in at 0:slot.0 and fills `model`. */
void model_e1000e(struct model *model, uint8_t slot);
void model_i219(struct model *model, uint8_t slot);
void model_igb(struct model *model, uint8_t slot);
void model_82576(struct model *model, uint8_t slot);
void model_igc(struct model *model, uint8_t slot);
void model_virtio(struct model *model, uint8_t slot);
void model_rtl8168(struct model *model, uint8_t slot);     /* H: a late one */
void model_rtl8168_old(struct model *model, uint8_t slot); /* C */
void model_rtl8125(struct model *model, uint8_t slot);

void model_sent(struct model *model, const uint8_t *frame, size_t size);
/* The oldest frame that was sent and not taken yet; 0 = none. */
size_t model_take(struct model *model, const uint8_t **frame);
void model_free(struct model *model);

/* What every PCI Express NIC has: power, MSI, MSI-X and express capabilities, ASPM switched on. */
void model_capabilities(struct machine_device *device);

#endif
