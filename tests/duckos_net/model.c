/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

const uint8_t model_mac[6] = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};

void model_sent(struct model *model, const uint8_t *frame, size_t size) {
    CHECK(size >= NIC_HEADER_BYTES && size <= NIC_FRAME_BYTES_MAX);
    CHECK(model->sent_count - model->sent_taken < MODEL_SENT_MAX);
    uint32_t at = model->sent_count++ % MODEL_SENT_MAX;
    free(model->sent[at].bytes);
    model->sent[at].bytes = malloc(size);
    model->sent[at].size = size;
    memcpy(model->sent[at].bytes, frame, size); /* the sanitizer sees a bad address here */
}

size_t model_take(struct model *model, const uint8_t **frame) {
    if (model->sent_taken == model->sent_count) return 0;
    uint32_t at = model->sent_taken++ % MODEL_SENT_MAX;
    *frame = model->sent[at].bytes;
    return model->sent[at].size;
}

void model_free(struct model *model) {
    for (uint32_t at = 0; at < MODEL_SENT_MAX; at++) free(model->sent[at].bytes);
    free(model->own);
    *model = (struct model){0};
}

void model_capabilities(struct machine_device *device) {
    machine_capability(device, 0x60, PCI_CAPABILITY_POWER);
    machine_capability(device, 0x70, PCI_CAPABILITY_MSI);
    machine_capability(device, 0x80, PCI_CAPABILITY_MSIX);
    machine_capability(device, 0xa0, PCI_CAPABILITY_EXPRESS);
    device->config[0x63] = 0xc0;        /* PME from D3hot and D3cold */
    device->config[0x64] = 3;           /* D3hot */
    device->config[0x72] = 1;           /* MSI on */
    device->config[0x83] = 0x80;        /* MSI-X on */
    device->config[0xb0] = 3;           /* ASPM L0s and L1 */
    const uint32_t header = 0x0001001e; /* L1 substates, the only one */
    memcpy(device->config + 0x100, &header, 4);
    device->config[0x108] = 0x0f;
    set_config16(device, 4, 6); /* the firmware left it running */
}
