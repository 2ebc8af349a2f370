/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

bool packet_is_last_fragment(const struct duck_packet_header *header) {
    return header->fragment_index ==
           duck_fragment_count(header->message_bytes, header->fragment_bytes) - 1;
}

void packet_send_built(struct duck_core *core, struct core_association *to, uint8_t *packet,
                       const struct duck_packet_header *header) {
    size_t bytes = sizeof *header + header->payload_bytes;
    memcpy(packet, header, sizeof *header);
    packet[offsetof(struct duck_packet_header, epoch)] = (uint8_t)to->send_epoch;
    duck_seal(&to->send_key, packet, bytes);
    core->stats.packets_sent++;
    core->stats.bytes_sent += bytes;
    plat_packet_send(&to->peer, bytes);
}

void packet_send(struct duck_core *core, struct core_association *to, uint8_t type,
                 uint32_t sequence, const void *payload, uint32_t bytes) {
    uint8_t *packet = plat_packet_buffer();
    struct duck_packet_header header = {
        .magic = DUCK_WIRE_MAGIC,
        .version = DUCK_WIRE_VERSION,
        .type = type,
        .key = DUCK_KEY_SESSION,
        .session = to->session,
        .sequence = sequence,
        .message_bytes = bytes,
        .fragment_bytes = DUCK_WIRE_FRAGMENT_BYTES_1500,
        .payload_bytes = (uint16_t)bytes,
    };
    memcpy(packet + sizeof header, payload, bytes);
    packet_send_built(core, to, packet, &header);
}

/* How many payload bytes may answer a question of `asked_bytes`; 0 when fewer than `least` would
 * fit. */
static uint32_t answer_bytes(uint64_t asked_bytes, uint32_t least, uint32_t most) {
    const uint32_t header = sizeof(struct duck_packet_header);
    if (asked_bytes < header + least) return 0;
    return asked_bytes >= header + most ? most : (uint32_t)asked_bytes - header;
}

void packet_send_done(struct duck_core *core, struct core_association *to, uint32_t sequence,
                      const struct duck_done *done, uint64_t asked_bytes) {
    uint32_t bytes = answer_bytes(asked_bytes, offsetof(struct duck_done, text), sizeof *done);
    if (bytes != 0) packet_send(core, to, DUCK_MSG_DONE, sequence, done, bytes);
}

void packet_send_fault(struct duck_core *core, struct core_association *to, uint32_t sequence,
                       const struct duck_fault *fault, uint64_t asked_bytes) {
    uint32_t bytes = answer_bytes(asked_bytes, offsetof(struct duck_fault, text), sizeof *fault);
    if (bytes != 0) packet_send(core, to, DUCK_MSG_FAULT, sequence, fault, bytes);
}
