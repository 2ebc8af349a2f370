/* SPDX-License-Identifier: Apache-2.0 */
#include "net/dhcp_message.h"

#include "net/bytes.h"

enum { /* RFC 2131, figure 1 */
       OPERATION = 0,
       HARDWARE = 1,
       HARDWARE_BYTES = 2,
       TRANSACTION = 4,
       SECONDS = 8,
       OUR_ADDRESS = 12,  /* ciaddr */
       YOUR_ADDRESS = 16, /* yiaddr */
       NEXT_SERVER = 20,  /* siaddr */
       CLIENT_MAC = 28,   /* chaddr */
       SERVER_NAME = 44,
       SERVER_NAME_BYTES = 64,
       BOOT_FILE = 108,
       BOOT_FILE_BYTES = 128,
       COOKIE = 236,
       OPTIONS = 240,
};
#define COOKIE_VALUE 0x63825363u
enum { BOOT_REQUEST = 1, BOOT_REPLY = 2, HARDWARE_ETHERNET = 1 };

enum option { /* RFC 2132 */
              OPTION_PAD = 0,
              OPTION_NETMASK = 1,
              OPTION_ROUTER = 3,
              OPTION_HOST_NAME = 12,
              OPTION_MTU = 26,
              OPTION_VENDOR = 43,
              OPTION_REQUESTED = 50,
              OPTION_LEASE = 51,
              OPTION_OVERLOAD = 52,
              OPTION_TYPE = 53,
              OPTION_SERVER = 54,
              OPTION_WANTED = 55,
              OPTION_SIZE_MAX = 57,
              OPTION_RENEW = 58,
              OPTION_REBIND = 59,
              OPTION_CLASS = 60,
              OPTION_BOOT_FILE = 67,
              OPTION_END = 255,
};
enum { OVERLOAD_FILE = 1, OVERLOAD_NAME = 2 };

/* ---- reading --------------------------------------------------------------------------------- */
static bool is_name_byte(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.';
}

/* A name with any other byte, or too long, is refused as a whole. Some servers count a final zero.
 * */
static void take_name(char out[DHCP_NAME_BYTES], const uint8_t *value, uint8_t bytes) {
    if (value[bytes - 1] == 0) bytes--;
    if (bytes >= DHCP_NAME_BYTES) return;
    for (size_t at = 0; at < bytes; at++)
        if (!is_name_byte(value[at])) return;
    copy_bytes((uint8_t *)out, value, bytes);
    out[bytes] = 0;
}

/* One option's value. False: its length is one that the RFC forbids. The first of several counts.
 * */
static bool take_option(struct dhcp_answer *answer, uint8_t code, const uint8_t *value,
                        uint8_t bytes) {
    switch (code) {
    case OPTION_NETMASK:
        if (bytes != 4) return false;
        if (answer->netmask == 0) answer->netmask = load_address(value);
        return true;
    case OPTION_ROUTER:
        if (bytes < 4 || bytes % 4 != 0) return false;
        if (answer->router == 0) answer->router = load_address(value);
        return true;
    case OPTION_HOST_NAME:
        if (bytes == 0) return false;
        if (answer->host_name[0] == 0) take_name(answer->host_name, value, bytes);
        return true;
    case OPTION_MTU:
        if (bytes != 2) return false;
        if (answer->mtu_bytes == 0) answer->mtu_bytes = load16(value);
        return true;
    case OPTION_VENDOR:
        if (bytes == 0) return false;
        if (answer->vendor_bytes == 0) {
            copy_bytes(answer->vendor, value, bytes);
            answer->vendor_bytes = bytes;
        }
        return true;
    case OPTION_TYPE:
        if (bytes != 1 || value[0] == 0 || value[0] > DHCP_RELEASE) return false;
        if (answer->type == DHCP_NONE) answer->type = (enum dhcp_type)value[0];
        return true;
    case OPTION_SERVER:
        if (bytes != 4) return false;
        if (answer->server == 0) answer->server = load_address(value);
        return true;
    case OPTION_LEASE:
    case OPTION_RENEW:
    case OPTION_REBIND: {
        if (bytes != 4) return false;
        uint32_t *seconds = code == OPTION_LEASE   ? &answer->lease_s
                            : code == OPTION_RENEW ? &answer->renew_s
                                                   : &answer->rebind_s;
        if (*seconds == 0) *seconds = load32(value);
        return true;
    }
    case OPTION_BOOT_FILE: answer->has_boot_file = bytes != 0; return true;
    default: return true;
    }
}

/* A field of options, up to END or its end. `overload` (NULL in the two overloaded fields, which
 * may not overload again) gets option 52. */
static bool take_options(struct dhcp_answer *answer, const uint8_t *at, size_t bytes,
                         uint8_t *overload) {
    for (size_t next = 0; next < bytes;) {
        uint8_t code = at[next++];
        if (code == OPTION_PAD) continue;
        if (code == OPTION_END) return true;
        if (next == bytes || at[next] > bytes - next - 1) return false; /* runs over the end */
        uint8_t length = at[next++];
        if (code == OPTION_OVERLOAD) {
            if (length != 1 || overload == NULL || at[next] == 0 || at[next] > 3) return false;
            *overload = at[next];
        } else if (!take_option(answer, code, at + next, length)) {
            return false;
        }
        next += length;
    }
    return true; /* END may be missing where the field is full */
}

/* RFC 1122, 3.2.1.3: ones, then zeros; and the address must not be the first or last of its net. */
static bool netmask_is_right(uint32_t netmask, uint32_t address) {
    uint32_t mask = swap32(netmask), host = swap32(address) & ~mask;
    if ((~mask & (~mask + 1u)) != 0 || mask == 0) return false;
    return host != 0 && host != ~mask;
}

static bool address_is_right(uint32_t address) {
    uint8_t first = first_byte(address);
    return first != 0 && first != 127 && first < 224;
}

/* What an offer or acknowledgement must have. */
static bool is_complete(const struct dhcp_answer *answer) {
    if (!address_is_right(answer->server)) return false;
    if (answer->type == DHCP_NAK) return true;
    return address_is_right(answer->address) && answer->lease_s != 0 &&
           netmask_is_right(answer->netmask, answer->address);
}

enum dhcp_parsed dhcp_parse(const uint8_t *message, size_t bytes, uint32_t transaction,
                            const uint8_t mac[6], struct dhcp_answer *answer) {
    *answer = (struct dhcp_answer){0};
    if (bytes < OPTIONS || load32(message + COOKIE) != COOKIE_VALUE) return DHCP_MALFORMED;
    if (message[OPERATION] != BOOT_REPLY || message[HARDWARE] != HARDWARE_ETHERNET ||
        message[HARDWARE_BYTES] != 6 || load32(message + TRANSACTION) != transaction ||
        !same_bytes(message + CLIENT_MAC, mac, 6))
        return DHCP_NOT_OURS;
    uint8_t overload = 0;
    if (!take_options(answer, message + OPTIONS, bytes - OPTIONS, &overload)) return DHCP_MALFORMED;
    if ((overload & OVERLOAD_FILE) != 0 &&
        !take_options(answer, message + BOOT_FILE, BOOT_FILE_BYTES, NULL))
        return DHCP_MALFORMED;
    if ((overload & OVERLOAD_NAME) != 0 &&
        !take_options(answer, message + SERVER_NAME, SERVER_NAME_BYTES, NULL))
        return DHCP_MALFORMED;
    if ((overload & OVERLOAD_FILE) == 0 && message[BOOT_FILE] != 0) answer->has_boot_file = true;
    answer->address = load_address(message + YOUR_ADDRESS);
    answer->next_server = load_address(message + NEXT_SERVER);
    if (answer->type != DHCP_OFFER && answer->type != DHCP_ACK && answer->type != DHCP_NAK)
        return DHCP_NOT_OURS;
    if (answer->type == DHCP_OFFER && answer->address == 0) return DHCP_NOT_OURS; /* a proxy's */
    return is_complete(answer) ? DHCP_PARSED : DHCP_MALFORMED;
}

const uint8_t *dhcp_vendor_option(const struct dhcp_answer *answer, uint8_t code, size_t *at,
                                  uint8_t *bytes) {
    size_t end = answer->vendor_bytes;
    while (*at < end) {
        uint8_t found = answer->vendor[(*at)++];
        if (found == OPTION_PAD) continue;
        if (found == OPTION_END || *at == end || answer->vendor[*at] > end - *at - 1) break;
        uint8_t length = answer->vendor[(*at)++];
        const uint8_t *value = answer->vendor + *at;
        *at += length;
        if (found != code) continue;
        *bytes = length;
        return value;
    }
    *at = end;
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */
static uint8_t *put(uint8_t *at, uint8_t code, const uint8_t *value, uint8_t bytes) {
    *at++ = code;
    *at++ = bytes;
    copy_bytes(at, value, bytes);
    return at + bytes;
}

static uint8_t *put_address(uint8_t *at, uint8_t code, uint32_t address) {
    uint8_t value[4];
    if (address == 0) return at;
    store_address(value, address);
    return put(at, code, value, sizeof value);
}

size_t dhcp_build(uint8_t *out, const struct dhcp_question *question) {
    static const uint8_t wanted[] = {OPTION_NETMASK, OPTION_ROUTER, OPTION_HOST_NAME,
                                     OPTION_MTU,     OPTION_VENDOR, OPTION_LEASE,
                                     OPTION_SERVER,  OPTION_RENEW,  OPTION_REBIND};
    static const uint8_t class[] = DHCP_VENDOR_CLASS;
    static const uint8_t size_max[2] = {1472 >> 8, 1472 & 0xff};
    uint8_t type = (uint8_t)question->type;
    __builtin_memset(out, 0, DHCP_MESSAGE_BYTES_MIN);
    out[OPERATION] = BOOT_REQUEST;
    out[HARDWARE] = HARDWARE_ETHERNET;
    out[HARDWARE_BYTES] = 6;
    store32(out + TRANSACTION, question->transaction);
    store16(out + SECONDS, question->seconds);
    store_address(out + OUR_ADDRESS, question->our_address);
    copy_bytes(out + CLIENT_MAC, question->mac, 6);
    store32(out + COOKIE, COOKIE_VALUE);
    uint8_t *at = put(out + OPTIONS, OPTION_TYPE, &type, 1);
    at = put_address(at, OPTION_REQUESTED, question->requested);
    at = put_address(at, OPTION_SERVER, question->server);
    at = put(at, OPTION_CLASS, class, sizeof class - 1);
    /* No option 61: a server then finds the lease that the firmware had, by the MAC. */
    if (question->type == DHCP_DISCOVER || question->type == DHCP_REQUEST) {
        at = put(at, OPTION_WANTED, wanted, sizeof wanted);
        at = put(at, OPTION_SIZE_MAX, size_max, sizeof size_max);
    }
    *at++ = OPTION_END;
    size_t bytes = (size_t)(at - out);
    return bytes > DHCP_MESSAGE_BYTES_MIN ? bytes : DHCP_MESSAGE_BYTES_MIN;
}
