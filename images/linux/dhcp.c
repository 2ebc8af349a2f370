/* SPDX-License-Identifier: Apache-2.0 */
#include "dhcp.h"

#include <arpa/inet.h>
#include <string.h>

#define HEADER_BYTES 236 /* RFC 2131 figure 1, before the options */
#define COOKIE 0x63825363u
#define BROADCAST_FLAG 0x8000u /* answer by broadcast: we have no address to be reached at */

enum option {
    OPTION_PAD = 0,
    OPTION_MASK = 1,
    OPTION_HOST_NAME = 12,
    OPTION_MTU = 26,
    OPTION_ADDRESS = 50,
    OPTION_LEASE = 51,
    OPTION_KIND = 53,
    OPTION_SERVER = 54,
    OPTION_WANTED = 55,
    OPTION_SIZE = 57,
    OPTION_VENDOR = 60,
    OPTION_END = 255
};

/* Offsets in the fixed part. */
enum {
    AT_XID = 4,
    AT_SECONDS = 8,
    AT_FLAGS = 10,
    AT_OURS = 12,
    AT_YOURS = 16,
    AT_SERVER = 20,
    AT_MAC = 28
};

static uint8_t *put(uint8_t *at, uint8_t option, const void *value, uint8_t bytes) {
    at[0] = option;
    at[1] = bytes;
    memcpy(at + 2, value, bytes);
    return at + 2 + bytes;
}

size_t dhcp_build(uint8_t out[DHCP_PACKET_BYTES_MAX], const struct dhcp_question *question) {
    static const uint8_t wanted[] = {OPTION_MASK, OPTION_HOST_NAME, OPTION_MTU, OPTION_LEASE};
    static const char vendor[] = "duck:linux";
    const uint16_t largest = htons(DHCP_PACKET_BYTES_MAX - 28); /* without IP and UDP headers */
    memset(out, 0, DHCP_PACKET_BYTES_MAX);
    out[0] = 1; /* BOOTREQUEST */
    out[1] = 1; /* Ethernet */
    out[2] = 6;
    uint16_t seconds = htons(question->seconds);
    uint16_t flags = htons(question->ours == 0 ? BROADCAST_FLAG : 0);
    uint32_t cookie = htonl(COOKIE);
    memcpy(out + AT_XID, &question->xid, 4);
    memcpy(out + AT_SECONDS, &seconds, 2);
    memcpy(out + AT_FLAGS, &flags, 2);
    memcpy(out + AT_OURS, &question->ours, 4);
    memcpy(out + AT_MAC, question->mac, 6);
    memcpy(out + HEADER_BYTES, &cookie, 4);
    uint8_t *at = out + HEADER_BYTES + 4;
    uint8_t kind = (uint8_t)question->kind;
    at = put(at, OPTION_KIND, &kind, 1);
    at = put(at, OPTION_SIZE, &largest, 2);
    at = put(at, OPTION_VENDOR, vendor, sizeof vendor - 1);
    at = put(at, OPTION_WANTED, wanted, sizeof wanted);
    if (question->address != 0) at = put(at, OPTION_ADDRESS, &question->address, 4);
    if (question->server != 0) at = put(at, OPTION_SERVER, &question->server, 4);
    *at++ = OPTION_END;
    size_t bytes = (size_t)(at - out);
    return bytes < 300 ? 300 : bytes; /* some relays drop shorter BOOTP packets */
}

/* A fully qualified name gives its first label. */
static void copy_name(char out[64], const uint8_t *value, size_t bytes) {
    size_t length = 0;
    while (length < bytes && length < 63 && value[length] != '.' && value[length] > ' ' &&
           value[length] < 127)
        length++;
    memcpy(out, value, length);
    out[length] = 0;
}

static void take(struct dhcp_answer *out, uint8_t option, const uint8_t *value, size_t bytes) {
    uint32_t word = 0;
    if (bytes >= 4) memcpy(&word, value, 4);
    if (option == OPTION_KIND && bytes == 1) out->kind = value[0];
    if (option == OPTION_SERVER && bytes == 4) out->server = word;
    if (option == OPTION_MASK && bytes == 4) out->mask = word;
    if (option == OPTION_LEASE && bytes == 4) out->lease_s = ntohl(word);
    if (option == OPTION_MTU && bytes == 2) out->mtu = (uint16_t)(value[0] << 8 | value[1]);
    if (option == OPTION_HOST_NAME) copy_name(out->host_name, value, bytes);
}

bool dhcp_parse(const uint8_t *packet, size_t bytes, uint32_t xid, const uint8_t mac[6],
                struct dhcp_answer *out) {
    const uint32_t cookie = htonl(COOKIE);
    memset(out, 0, sizeof *out);
    if (bytes < HEADER_BYTES + 4 || packet[0] != 2 || packet[1] != 1 || packet[2] != 6 ||
        memcmp(packet + AT_XID, &xid, 4) != 0 || memcmp(packet + AT_MAC, mac, 6) != 0 ||
        memcmp(packet + HEADER_BYTES, &cookie, 4) != 0)
        return false;
    memcpy(&out->address, packet + AT_YOURS, 4);
    memcpy(&out->boot_server, packet + AT_SERVER, 4);
    size_t at = HEADER_BYTES + 4;
    while (at < bytes && packet[at] != OPTION_END) {
        if (packet[at] == OPTION_PAD) {
            at++;
            continue;
        }
        if (at + 2 > bytes || at + 2 + packet[at + 1] > bytes) return false;
        take(out, packet[at], packet + at + 2, packet[at + 1]);
        at += 2u + packet[at + 1];
    }
    /* Proxies offer a boot file without an address; they are no answer for a system that is up. */
    return out->kind == DHCP_NAK ||
           ((out->kind == DHCP_OFFER || out->kind == DHCP_ACK) && out->address != 0);
}
