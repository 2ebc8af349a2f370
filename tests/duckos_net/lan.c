/* SPDX-License-Identifier: Apache-2.0 */
#include "lan.h"

const uint8_t lan_host_mac[6] = {0x02, 0, 0, 0, 0, 1};
const uint8_t lan_everyone[6] = {255, 255, 255, 255, 255, 255};
const struct lan_server lan_usual_server = {
    .address = 0x650012c6, /* 198.18.0.101 */
    .server = 0x010012c6,
    .netmask = 0x00ffffff,
    .router = 0x010012c6,
    .next_server = 0x010012c6,
    .lease_s = 300,
    .mtu = 9000,
    .name = "d01",
    .setting = "host=198.18.0.1",
};

void lan_ethernet(struct lan_frame *frame, const uint8_t to[6], const uint8_t from[6],
                  uint16_t type, size_t payload_bytes) {
    memcpy(frame->bytes, to, 6);
    memcpy(frame->bytes + 6, from, 6);
    store16(frame->bytes + 12, type);
    frame->size = 14 + payload_bytes;
    while (frame->size < 60) frame->bytes[frame->size++] = 0;
}

void lan_ipv4_checksum(struct lan_frame *frame) {
    uint8_t *header = frame->bytes + LAN_IP;
    store16(header + 10, 0);
    checksum_store(header + 10, checksum_fold(checksum_add(0, header, 4u * (header[0] & 15u))));
}

void lan_ipv4(struct lan_frame *frame, uint32_t from, uint32_t to, uint8_t protocol,
              const uint8_t *payload, size_t bytes) {
    uint8_t *header = frame->bytes + LAN_IP;
    if (payload != NULL) memmove(header + 20, payload, bytes);
    memset(header, 0, 20);
    header[0] = 0x45;
    store16(header + 2, (uint16_t)(20 + bytes));
    header[8] = 64;
    header[9] = protocol;
    store_address(header + 12, from);
    store_address(header + 16, to);
    lan_ipv4_checksum(frame);
    lan_ethernet(frame, frame->bytes, lan_host_mac, 0x0800, 20 + bytes);
}

void lan_udp_checksum(struct lan_frame *frame) {
    uint8_t *udp = frame->bytes + LAN_UDP;
    uint16_t length = load16(udp + 4);
    store16(udp + 6, 0);
    uint64_t sum = checksum_pseudo_header(load_address(frame->bytes + LAN_IP + 12),
                                          load_address(frame->bytes + LAN_IP + 16), 17, length);
    uint16_t folded = checksum_fold(checksum_add(sum, udp, length));
    checksum_store(udp + 6, folded != 0 ? folded : 0xffff);
}

void lan_udp(struct lan_frame *frame, uint32_t from, uint16_t from_port, uint32_t to,
             uint16_t to_port, const uint8_t *payload, size_t bytes) {
    uint8_t *udp = frame->bytes + LAN_UDP;
    memmove(udp + 8, payload, bytes);
    store16(udp, from_port);
    store16(udp + 2, to_port);
    store16(udp + 4, (uint16_t)(8 + bytes));
    store16(udp + 6, 0);
    lan_ipv4(frame, from, to, 17, NULL, 8 + bytes);
    lan_udp_checksum(frame);
}

void lan_echo(struct lan_frame *frame, uint32_t from, uint32_t to, size_t bytes) {
    uint8_t *icmp = frame->bytes + LAN_UDP;
    for (size_t at = 8; at < 8 + bytes; at++) icmp[at] = (uint8_t)(at * 13);
    memset(icmp, 0, 8);
    icmp[0] = 8;
    icmp[5] = 7;
    checksum_store(icmp + 2, checksum_fold(checksum_add(0, icmp, 8 + bytes)));
    lan_ipv4(frame, from, to, 1, NULL, 8 + bytes);
}

void lan_arp(struct lan_frame *frame, uint16_t operation, const uint8_t mac[6], uint32_t sender,
             uint32_t target) {
    uint8_t *packet = frame->bytes + 14;
    memset(packet, 0, 28);
    packet[1] = 1;
    packet[2] = 8;
    packet[4] = 6;
    packet[5] = 4;
    store16(packet + 6, operation);
    memcpy(packet + 8, mac, 6);
    store_address(packet + 14, sender);
    store_address(packet + 24, target);
    lan_ethernet(frame, lan_everyone, mac, 0x0806, 28);
}

/* ---- a DHCP server --------------------------------------------------------------------------- */
static uint8_t *put(uint8_t *at, uint8_t code, const void *value, size_t bytes) {
    *at++ = code;
    *at++ = (uint8_t)bytes;
    memcpy(at, value, bytes);
    return at + bytes;
}
static uint8_t *put_number(uint8_t *at, uint8_t code, uint32_t value) {
    uint8_t bytes[4];
    store32(bytes, value);
    return value == 0 ? at : put(at, code, bytes, 4);
}

void lan_answer(const struct lan_server *server, enum dhcp_type type, uint32_t transaction,
                const uint8_t mac[6], struct lan_frame *answer) {
    static uint8_t message[576];
    uint8_t kind = (uint8_t)type, mtu[2], setting[64];
    memset(message, 0, sizeof message);
    message[0] = 2;
    message[1] = 1;
    message[2] = 6;
    store32(message + 4, transaction);
    store_address(message + 16, type == DHCP_NAK ? 0 : server->address);
    store_address(message + 20, server->next_server);
    memcpy(message + 28, mac, 6);
    if (server->boot_file != NULL) strcpy((char *)message + 108, server->boot_file);
    store32(message + 236, 0x63825363);
    uint8_t *at = put(message + 240, 53, &kind, 1);
    at = put(at, 54, &server->server, 4);
    at = put_number(at, 51, server->lease_s);
    at = put_number(at, 58, server->renew_s);
    at = put_number(at, 59, server->rebind_s);
    if (server->netmask != 0) at = put(at, 1, &server->netmask, 4);
    if (server->router != 0) at = put(at, 3, &server->router, 4);
    store16(mtu, server->mtu);
    if (server->mtu != 0) at = put(at, 26, mtu, 2);
    if (server->name != NULL) at = put(at, 12, server->name, strlen(server->name));
    if (server->setting != NULL) {
        uint8_t *end = put(setting, 1, server->setting, strlen(server->setting));
        at = put(at, 43, setting, (size_t)(end - setting));
    }
    *at++ = 255;
    memcpy(answer->bytes, mac, 6);
    lan_udp(answer, server->server, 67, server->address, 68, message, (size_t)(at - message));
}

const uint8_t *lan_option(const struct lan_frame *frame, uint8_t code, uint8_t *bytes) {
    const uint8_t *at = frame->bytes + LAN_PAYLOAD + 240;
    const uint8_t *end = frame->bytes + frame->size;
    while (at < end && *at != 255) {
        if (*at == code) {
            *bytes = at[1];
            return at + 2;
        }
        at += *at == 0 ? 1 : 2 + at[1];
    }
    return NULL;
}

bool lan_serve(struct lan_server *server, const uint8_t *frame, size_t size,
               struct lan_frame *answer) {
    uint8_t bytes;
    answer->size = 0;
    if (size < LAN_PAYLOAD + 240 || load16(frame + 12) != 0x0800 || frame[LAN_IP + 9] != 17 ||
        load16(frame + LAN_UDP + 2) != 67)
        return false;
    memcpy(server->last_question.bytes, frame, size);
    server->last_question.size = size;
    const uint8_t *message = frame + LAN_PAYLOAD;
    const uint8_t *type = lan_option(&server->last_question, 53, &bytes);
    CHECK(type != NULL && bytes == 1 && message[0] == 1 && load16(frame + LAN_UDP) == 68);
    CHECK(size >= LAN_PAYLOAD + 300);
    struct lan_frame copy = server->last_question;
    lan_udp_checksum(&copy); /* the question's checksum is right */
    CHECK(memcmp(copy.bytes, frame, size) == 0);
    server->questions++;
    server->discovers += *type == DHCP_DISCOVER;
    server->requests += *type == DHCP_REQUEST;
    if (server->silent) return true;
    enum dhcp_type reply = *type == DHCP_DISCOVER ? DHCP_OFFER
                           : server->refuses      ? DHCP_NAK
                                                  : DHCP_ACK;
    lan_answer(server, reply, load32(message + 4), message + 28, answer);
    return true;
}
