/* SPDX-License-Identifier: Apache-2.0
 *
 * The duck wire protocol: every byte that host and duck exchange over UDP/IPv4.
 *
 * This header is the contract. It is valid C11 and C++17, all fields are little-endian and
 * naturally
 * aligned, and tests/contract proves that C, C++ and Python agree on each size and offset.
 * docs/reference/wire-protocol.md tells the story; the rules that code must keep are here:
 *
 *  - One packet = one struct duck_packet_header + payload. A message longer than one packet is cut
 *    into
 *    fragments of equal stride (`fragment_bytes`, the last one may be shorter); fragments may
 *    arrive in
 *    any order, twice, or not at all.
 *  - A receiver checks, in this order: length, magic, version, type, sizes against each other, MAC,
 *    counter (replay window). The first check that fails drops the packet and adds one to its
 *    counter.
 *    Nothing is ever answered with more bytes than it took to ask.
 *  - No pointers, no file names, no host addresses travel. Offsets and lengths are checked in
 *    release builds.
 *  - A request repeated with the same sequence number is answered from the reply cache, never done
 *    twice.
 */
#ifndef DUCK_WIRE_H
#define DUCK_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DUCK_WIRE_MAGIC 0x4B435544u /* "DUCK" read as a little-endian word */
#define DUCK_WIRE_VERSION 2u
#define DUCK_WIRE_PORT 7211u

/* ---- limits: each has a name, reaching it is an error with a name ---------------------------- */
#define DUCK_WIRE_PACKET_BYTES_MAX 8972u   /* UDP payload of a 9000-byte MTU */
#define DUCK_WIRE_FRAGMENT_BYTES_MAX 8896u /* payload stride that fits it, a multiple of 64 */
#define DUCK_WIRE_FRAGMENT_BYTES_1500                                                              \
    1408u /* payload stride for a 1500-byte MTU, a multiple of 64 */
#define DUCK_WIRE_CALL_BYTES_MAX (32u << 20)   /* one CALL or RESULT message */
#define DUCK_WIRE_WRITE_CHUNK_BYTES (1u << 20) /* one bulk WRITE message */
#define DUCK_WIRE_FRAGMENTS_MAX 23832u         /* ceil(DUCK_WIRE_CALL_BYTES_MAX / 1408) */
#define DUCK_WIRE_CALLS_IN_FLIGHT_MAX                                                              \
    4u /* credit: a duck holds this many calls and their results */
#define DUCK_WIRE_WRITES_IN_FLIGHT_MAX 8u
#define DUCK_WIRE_NACK_RANGES_MAX 64u
#define DUCK_WIRE_NAME_BYTES 32u
#define DUCK_WIRE_TEXT_BYTES 192u
#define DUCK_WIRE_KEY_BYTES 32u       /* X25519 keys, the fleet's private key, session secrets */
#define DUCK_WIRE_PUBLIC_BYTES 65u    /* the fleet's public key: P-256 point, 0x04 | X | Y */
#define DUCK_WIRE_SIGNATURE_BYTES 64u /* ECDSA P-256, r | s */
#define DUCK_WIRE_NONCE_BYTES 16u
#define DUCK_WIRE_MAC_BYTES 16u
#define DUCK_WIRE_DIGEST_BYTES 32u /* SHA-256 */
#define DUCK_WIRE_BUILD_BYTES 20u
/* counters at most this far behind the newest are still accepted */
#define DUCK_WIRE_REPLAY_WINDOW 4096u

/* ---- message types --------------------------------------------------------------------------- */
/* The letter tells what seals the packet (see duck_packet_header.mac):
 *   C  clear: no MAC, mac = 0. HELLO and COOKIE have the same form in every version; PROOF carries
 *      a signature
 *   S  session key of the sender's direction, GMAC (AES-128)
 *   D  domain key, GMAC: the host sends the same bytes to every duck of a domain
 * "request -> reply"; replies carry the request's sequence number. */
enum duck_message_type {
    /* control */
    DUCK_MSG_HELLO = 1, /* C host -> duck: struct duck_hello -> COOKIE; the duck keeps nothing */
    DUCK_MSG_INFO = 2,  /* S duck -> host: struct duck_info, the first packet of a session */
    /* S host -> duck: struct duck_ping -> PONG. Heartbeat, independent of all else */
    DUCK_MSG_PING = 3,
    DUCK_MSG_PONG = 4,    /* S duck -> host: struct duck_pong */
    DUCK_MSG_LOG = 5,     /* S request {u64 since} -> reply: struct duck_log_reply + text */
    DUCK_MSG_STATS = 6,   /* S request, padded to the reply's size -> reply: struct duck_stats */
    DUCK_MSG_REBOOT = 7,  /* S request -> DONE, then the duck restarts */
    DUCK_MSG_DONE = 8,    /* S generic reply: struct duck_done */
    DUCK_MSG_USAGE = 9,   /* S request, padded to the reply's size -> reply: struct duck_usage */
    DUCK_MSG_COOKIE = 10, /* C duck -> host: struct duck_cookie */
    DUCK_MSG_PROOF = 11,  /* C host -> duck: struct duck_proof -> INFO */
    DUCK_MSG_DOMAIN_KEY = 12, /* S struct duck_domain_key -> DONE: the host's key for D packets */
    DUCK_MSG_REKEY = 13, /* S struct duck_rekey -> the same with the duck's key: fresh S keys */
    /* bulk */
    /* S struct duck_reserve -> DONE: make a region of this size (kept if equal) */
    DUCK_MSG_RESERVE = 16,
    DUCK_MSG_WRITE = 17,     /* S struct duck_write_prefix + bytes in EVERY fragment -> WRITE_ACK */
    DUCK_MSG_WRITE_ACK = 18, /* S struct duck_nack; range_count 0 = chunk complete */
    DUCK_MSG_COMMIT = 19,    /* S struct duck_commit -> DONE: digest checked in memory */
    DUCK_MSG_READ = 20,      /* S struct duck_read, padded to the reply's size -> READ_DATA */
    DUCK_MSG_READ_DATA = 21, /* S bytes, one packet */
    /* compute */
    /* S struct duck_open -> DONE: start a persistent session of the loaded kernel */
    DUCK_MSG_OPEN = 32,
    DUCK_MSG_CALL = 33, /* D or S: opaque input of the kernel, fragmented -> RESULT, FAULT */
    /* S duck -> host: struct duck_result_prefix in EVERY fragment + opaque output */
    DUCK_MSG_RESULT = 34,
    /* S either way: struct duck_nack for the message {type CALL or RESULT, sequence} */
    DUCK_MSG_NACK = 35,
    /* S host -> duck: struct duck_query: "where is my call?" -> RESULT, NACK or BUSY */
    DUCK_MSG_QUERY = 36,
    DUCK_MSG_BUSY = 37, /* S duck -> host: struct duck_done; the call is whole and being computed */
    DUCK_MSG_FAULT = 38, /* S duck -> host: struct duck_fault: the session has ended */
    DUCK_MSG_CLOSE = 39  /* S request -> DONE */
};

/* ---- the packet header ----------------------------------------------------------------------- */
struct duck_packet_header {
    uint32_t magic;  /* DUCK_WIRE_MAGIC */
    uint8_t version; /* DUCK_WIRE_VERSION */
    uint8_t type;    /* enum duck_message_type */
    uint8_t key;     /* enum duck_wire_key: which key made `mac` */
    uint8_t epoch;   /* of the session key, modulo 256: 0, then one more with each REKEY; else 0 */
    /* chosen by the host at HELLO, random, never 0; for D packets the domain session */
    uint32_t session;
    uint32_t sequence;       /* of the message; calls count 1, 2, 3, ... within a compute session */
    uint32_t message_bytes;  /* whole message without headers and per-fragment prefixes */
    uint32_t fragment_index; /* 0 .. ceil(message_bytes / fragment_bytes) - 1 */
    /* stride: message bytes in every fragment but the last; a multiple of 64 */
    uint16_t fragment_bytes;
    uint16_t payload_bytes; /* bytes after this header, prefix included */
    /* RESULT: when the kernel began the call, by the duck's clock (see duck_pong) in units of 64
     * ns, modulo 2^32, 0 = unknown; other messages: 0 */
    uint32_t start;
    uint64_t counter; /* strictly increasing per key and sender; the GMAC nonce; 0 for C packets */
    uint8_t mac[16];  /* over header (mac = 0) and payload */
};
static_assert(sizeof(struct duck_packet_header) == 56, "packet header is 56 bytes");
static_assert(offsetof(struct duck_packet_header, counter) == 32, "counter is naturally aligned");
static_assert(offsetof(struct duck_packet_header, mac) == 40, "mac ends the header");

enum duck_wire_key { DUCK_KEY_CLEAR = 0, DUCK_KEY_SESSION = 1, DUCK_KEY_DOMAIN = 2 };

/* GMAC nonce (12 bytes): counter, then key << 8 | direction as u32 (direction 0 host -> duck, 1
 * duck -> host). */

/* ---- handshake ------------------------------------------------------------------------------- */
/* HELLO -> COOKIE -> PROOF -> INFO. A duck obeys whoever proves to hold the fleet's private key (it
 * knows the public one only) and shows that it is itself by its static X25519 key, which the host
 * pins.
 *
 * Transcript = SHA-256("duck handshake 2" | fleet public key | session u32 | boot_id u64 |
 * host_nonce | duck_nonce | host ephemeral | duck ephemeral | duck identity). PROOF signs it (ECDSA
 * P-256 over that digest).
 *
 * Session keys = HKDF-SHA-256(salt = transcript, input = X25519(host ephemeral, duck ephemeral) |
 * X25519(host ephemeral, duck identity), info = "duck session 2"): 16 bytes host -> duck, 16 bytes
 * duck -> host, 32 bytes chain, 16 bytes wrap. REKEY: HKDF-SHA-256(salt = chain, input = X25519 of
 * the two fresh keys, info = "duck rekey 2"): to duck, to host, chain; wrap stays. */
struct duck_hello {
    uint32_t session;                          /* the session that this HELLO asks for, not 0 */
    uint32_t protocol_version;                 /* DUCK_WIRE_VERSION of the host */
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES]; /* fresh for each HELLO */
    uint8_t build[DUCK_WIRE_BUILD_BYTES];      /* host's build hash (SHA-1 sized) */
    uint8_t pad[148];                          /* as long as the answer */
};
struct duck_cookie {
    uint32_t session;                          /* echoed from HELLO */
    uint32_t protocol_version;                 /* DUCK_WIRE_VERSION of the duck */
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES]; /* echoed: binds the answer to the question */
    /* only the duck can make it, for this address, session, host nonce and time */
    uint8_t duck_nonce[DUCK_WIRE_NONCE_BYTES];
    uint64_t boot_id;                       /* random, new at each start of the duck */
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES]; /* X25519, the duck's for some seconds */
    uint8_t identity[DUCK_WIRE_KEY_BYTES];  /* X25519, the duck's own */
    uint8_t build[DUCK_WIRE_BUILD_BYTES];   /* duck's build hash; like the rest not authenticated */
    uint32_t platform;                      /* enum duck_platform */
    char name[DUCK_WIRE_NAME_BYTES];        /* zero-padded */
    uint8_t reserved[24];
};
static_assert(sizeof(struct duck_hello) == 192 && sizeof(struct duck_cookie) == 192,
              "hello and cookie");

struct duck_proof {
    uint32_t session; /* these three as in HELLO and COOKIE */
    uint32_t reserved;
    uint8_t host_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t duck_nonce[DUCK_WIRE_NONCE_BYTES];
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES]; /* X25519, fresh for each handshake */
    uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES];
    uint8_t pad[152]; /* as long as INFO */
};
static_assert(sizeof(struct duck_proof) == 288, "proof");

/* The key of D packets: random, the host's, AES-128-GCM under the session's wrap key with the nonce
 * wrap_counter u64 | domain_session u32. It is known for as long as the duck has room; the same key
 * again keeps its replay window. */
struct duck_domain_key {
    uint32_t domain_session; /* the session number of D packets, not 0 */
    uint32_t reserved;
    uint64_t wrap_counter; /* never twice in one session */
    uint8_t sealed_key[16];
    uint8_t tag[DUCK_WIRE_MAC_BYTES];
    uint8_t pad[160]; /* as long as DONE */
};
static_assert(sizeof(struct duck_domain_key) == 208, "domain key");

/* Fresh session keys: the sender of a packet under epoch n + 1 has them. A duck sends under the new
 * epoch when it has heard the host under it; both accept the last two epochs. */
struct duck_rekey {
    uint32_t epoch; /* the one that begins */
    uint32_t reserved;
    uint8_t ephemeral[DUCK_WIRE_KEY_BYTES];
};
static_assert(sizeof(struct duck_rekey) == 40, "rekey");

/* ---- control --------------------------------------------------------------------------------- */
enum duck_state {
    DUCK_STATE_IDLE = 0,    /* no weights */
    DUCK_STATE_LOADING = 1, /* a region is reserved, not all of it is committed */
    DUCK_STATE_READY = 2,   /* weights committed, no compute session */
    DUCK_STATE_SERVING = 3, /* compute session open */
    DUCK_STATE_FAULTED = 4  /* the last compute session ended in a fault; a new OPEN clears it */
};

enum duck_platform {
    DUCK_PLATFORM_LINUX_PROCESS = 1,
    DUCK_PLATFORM_LINUX_IMAGE = 2,
    DUCK_PLATFORM_DUCKOS = 3
};

/* CPU feature bits of duck_info.cpu_features */
#define DUCK_CPU_AVX2 1u
#define DUCK_CPU_FMA 2u
#define DUCK_CPU_F16C 4u
#define DUCK_CPU_AESNI 8u
#define DUCK_CPU_PCLMUL 16u
#define DUCK_CPU_AVXVNNI 32u

/* bits of duck_info.flags */
#define DUCK_INFO_NIC_UNPROVEN 1u /* the NIC's driver has not been seen to work on silicon */

struct duck_info {
    uint32_t session;          /* echoed from HELLO */
    uint32_t protocol_version; /* DUCK_WIRE_VERSION of the duck */
    char nic_driver[16];       /* zero-padded, empty = unknown */
    uint32_t flags;            /* DUCK_INFO_* */
    uint32_t reserved[3];
    uint64_t boot_id;                     /* random, new at each start of the duck */
    uint8_t build[DUCK_WIRE_BUILD_BYTES]; /* duck's build hash */
    uint32_t platform;                    /* enum duck_platform */
    char name[DUCK_WIRE_NAME_BYTES];      /* zero-padded */
    char cpu_model[48];                   /* zero-padded CPUID brand string */
    uint32_t cpu_features;
    uint32_t core_count;
    uint64_t memory_bytes;     /* all of the duck's memory */
    uint64_t weight_bytes_max; /* largest weights region that RESERVE will grant */
    uint32_t mtu_bytes;        /* IP MTU of the NIC, 0 = unknown */
    uint32_t link_mbps;        /* 0 = unknown */
    int32_t temperature_mc;    /* millidegree Celsius, INT32_MIN = no sensor */
    uint32_t state;            /* enum duck_state */
    uint8_t mac_address[6];    /* of the NIC, zero = unknown */
    uint8_t huge_pages;        /* 1: weights lie in huge pages */
    uint8_t poll_policy;       /* enum duck_poll_policy */
    uint32_t abi_version;      /* DUCK_KERNEL_ABI_VERSION of the duck */
    /* digest of the last whole COMMIT set, zero = none */
    uint8_t weights_id[DUCK_WIRE_DIGEST_BYTES];
    uint32_t reserved2; /* 0 */
    uint64_t uptime_ns;
    char kernel[40]; /* the open session's kernel on its start, cut ("body int, ..."); else zero */
};
static_assert(sizeof(struct duck_info) == 288, "info");

enum duck_poll_policy { DUCK_POLL_SPIN = 0, DUCK_POLL_SLEEP = 1, DUCK_POLL_BLOCK = 2 };

struct duck_ping {
    uint64_t host_time_ns; /* echoed */
    uint8_t reserved[24];  /* 0; keeps the request as long as the reply */
};
struct duck_pong {
    uint64_t host_time_ns;
    uint64_t duck_time_ns; /* the duck's monotonic clock */
    uint32_t state;        /* enum duck_state */
    uint32_t last_call;    /* sequence of the last finished call */
    uint64_t boot_id;
};
static_assert(sizeof(struct duck_ping) == 32 && sizeof(struct duck_pong) == 32, "ping and pong");

struct duck_log_request {
    uint64_t since;    /* byte position in the duck's log, 0 = oldest kept */
    uint8_t pad[1000]; /* as long as the longest reply */
};
struct duck_log_reply {
    uint64_t next;       /* ask with this the next time */
    uint32_t text_bytes; /* follows */
    uint32_t reserved;
};
static_assert(sizeof(struct duck_log_request) == 1008 && sizeof(struct duck_log_reply) == 16,
              "log");

/* Counters since start. Order is part of the contract; new ones take reserved places. */
struct duck_stats {
    uint64_t packets_received, packets_sent, bytes_received, bytes_sent;
    uint64_t dropped_short, dropped_magic, dropped_version, dropped_type, dropped_size, dropped_mac,
        dropped_replay, dropped_session, dropped_limit;
    uint64_t calls_started, calls_finished, calls_repeated; /* repeated = answered from the cache */
    uint64_t nacks_sent, nacks_received, queries_received, results_resent;
    /* in the kernel / message whole -> kernel start */
    uint64_t kernel_ns_total, kernel_ns_max, queue_ns_total;
    uint64_t write_bytes, commits, sessions_opened, sessions_faulted;
    uint64_t uptime_ns;
    /* What the data path costs inside the duck, in TSC cycles (duck_usage.tsc_hz); 0 where the
     * platform does not measure it. Calls that met a busy kernel are left out of the first. */
    uint64_t start_cycles_total; /* last packet of a call in memory -> kernel started */
    uint64_t reply_cycles_total; /* kernel done -> first RESULT packet queued in the NIC */
    uint64_t ring_switches;      /* entries into ring 3, on all cores */
    uint32_t interrupts;         /* on all cores; wraps */
    uint32_t allocations;        /* of region or session memory; wraps */
};
static_assert(sizeof(struct duck_stats) == 256, "stats");

struct duck_done {
    uint32_t status;                 /* enum duck_status */
    uint32_t detail;                 /* meaning depends on the request, 0 otherwise */
    uint64_t value;                  /* the same */
    char text[DUCK_WIRE_TEXT_BYTES]; /* zero-padded English; empty when status is OK */
};
static_assert(sizeof(struct duck_done) == 208, "done");

enum duck_status {
    DUCK_OK = 0,
    DUCK_ERR_BAD_REQUEST = 1, /* a field is out of range; text names it */
    DUCK_ERR_NO_MEMORY = 2,   /* value = bytes available */
    DUCK_ERR_BAD_RANGE = 3,   /* offset + bytes leave the region; value = region bytes */
    DUCK_ERR_NOT_RESERVED = 4,
    DUCK_ERR_DIGEST = 5, /* COMMIT: bytes in memory do not match; text has the digest found */
    /* OPEN before all of the weights or the kernel were committed, or others than OPEN names */
    DUCK_ERR_NOT_COMMITTED = 6,
    DUCK_ERR_BAD_ELF = 7,        /* text says which check failed */
    DUCK_ERR_ABI = 8,            /* kernel asks for another ABI version; value = the duck's */
    DUCK_ERR_KERNEL_REFUSED = 9, /* the kernel's init returned an error; detail = its code */
    DUCK_ERR_BUSY = 10, /* another host owns the compute session; value = ns since it was heard */
    DUCK_ERR_NO_SESSION = 11,
    DUCK_ERR_TIME_LIMIT = 12,
    DUCK_ERR_MEMORY_LIMIT = 13,
    DUCK_ERR_KERNEL_FAULT = 14,
    DUCK_ERR_CALL_TOO_LARGE = 15, /* value = limit in bytes */
    DUCK_ERR_LIMIT = 16,          /* a named table is full; text names it */
    DUCK_ERR_UNSUPPORTED = 17,
    DUCK_ERR_INTERNAL = 18
};

/* ---- bulk ------------------------------------------------------------------------------------ */
enum duck_region { DUCK_REGION_KERNEL = 0, DUCK_REGION_WEIGHTS = 1, DUCK_REGION_COUNT = 2 };

struct duck_reserve {
    uint32_t region; /* enum duck_region */
    uint32_t flags;  /* DUCK_RESERVE_FRESH: forget what is committed even if the size is equal */
    uint64_t bytes;
    uint8_t pad[192]; /* as long as DONE */
};
static_assert(sizeof(struct duck_reserve) == 208, "reserve");
#define DUCK_RESERVE_FRESH 1u

/* In front of the data in every WRITE fragment. A chunk (one message) covers [chunk_offset,
 * chunk_offset + message_bytes) of the region. */
struct duck_write_prefix {
    uint32_t region;
    uint32_t reserved;
    uint64_t chunk_offset;
};
static_assert(sizeof(struct duck_write_prefix) == 16, "write prefix");

/* Commit [offset, offset + bytes) of a region: the duck hashes its memory and compares. The reply
 * comes when that is done; repeating the request meanwhile is harmless. flags: DUCK_COMMIT_LAST
 * marks the last piece of a set: the duck's weights_id becomes `set_id`, and OPEN is allowed. */
struct duck_commit {
    uint32_t region;
    uint32_t flags;
    uint64_t offset;
    uint64_t bytes;
    uint8_t sha256[DUCK_WIRE_DIGEST_BYTES];
    uint8_t set_id[DUCK_WIRE_DIGEST_BYTES];
    uint8_t pad[120];
};
static_assert(sizeof(struct duck_commit) == 208, "commit");
#define DUCK_COMMIT_LAST 1u

struct duck_read {
    uint32_t region;
    uint32_t bytes; /* at most 1024 */
    uint64_t offset;
    uint8_t pad[1008];
};
static_assert(sizeof(struct duck_read) == 1024, "read");

/* Missing fragments of a message, as closed-open index ranges in ascending order. When more than
 * DUCK_WIRE_NACK_RANGES_MAX ranges are missing, the first ones are named and the rest asked for
 * later. */
struct duck_nack_range {
    uint32_t begin, end;
};
struct duck_nack {
    uint32_t message_type; /* WRITE, CALL or RESULT */
    uint32_t range_count;
    struct duck_nack_range range[DUCK_WIRE_NACK_RANGES_MAX]; /* only range_count of them travel */
};
static_assert(sizeof(struct duck_nack) == 8 + 8 * DUCK_WIRE_NACK_RANGES_MAX, "nack");

/* ---- compute --------------------------------------------------------------------------------- */
struct duck_open {
    uint32_t flags;              /* DUCK_OPEN_TAKEOVER */
    uint32_t core_count;         /* 0 = all of the duck's cores */
    uint32_t call_bytes_max;     /* input buffer of one call */
    uint32_t result_bytes_max;   /* output buffer of one call */
    uint64_t scratch_bytes;      /* for the kernel, zeroed */
    uint32_t call_time_limit_ms; /* a call that takes longer ends the session */
    /* not 0: calls also come as D packets, under a key given by DOMAIN_KEY (this one is known) */
    uint32_t domain_session;
    /* set_id of the weights' and of the kernel's last COMMIT, zero = any: another host may have
     * loaded something else before OPEN, for until then nobody owns the duck */
    uint8_t weights_id[DUCK_WIRE_DIGEST_BYTES];
    uint8_t kernel_id[DUCK_WIRE_DIGEST_BYTES];
    uint8_t pad[112];
};
static_assert(sizeof(struct duck_open) == 208, "open");
/* A one-shot run: OPEN is answered when memory is ready, the kernel is entered when CALL 1 is
 * whole, and RESULT comes when every entry has returned. There is no second call. */
#define DUCK_OPEN_ONE_SHOT 2u
/* allowed when the owner is the same host session or was silent for DUCK_OWNER_SILENT_MS */
#define DUCK_OPEN_TAKEOVER 1u
#define DUCK_OWNER_SILENT_MS 3000u

struct duck_result_prefix {
    uint32_t kernel_ns; /* time in the kernel, saturating */
    uint32_t queue_ns;  /* message whole -> kernel started, saturating */
};
static_assert(sizeof(struct duck_result_prefix) == 8, "result prefix");

struct duck_query {
    uint32_t reserved[52]; /* as long as BUSY; the header's sequence names the call */
};
static_assert(sizeof(struct duck_query) == 208, "query");

struct duck_fault {
    uint32_t status; /* enum duck_status: TIME_LIMIT, MEMORY_LIMIT, KERNEL_FAULT, KERNEL_REFUSED */
    uint32_t fault_kind; /* enum duck_fault_kind */
    uint32_t core;       /* core index that faulted, UINT32_MAX = unknown */
    uint32_t call;       /* sequence of the call that ran, 0 = none */
    uint64_t address;    /* data address, or system call number for FORBIDDEN_CALL */
    /* offset of the instruction from the ELF's base, UINT64_MAX = outside of it */
    uint64_t instruction;
    char text[176];
};
static_assert(sizeof(struct duck_fault) == 208, "fault");

enum duck_fault_kind {
    DUCK_FAULT_NONE = 0,
    DUCK_FAULT_MEMORY = 1,
    DUCK_FAULT_ILLEGAL_INSTRUCTION = 2,
    DUCK_FAULT_ARITHMETIC = 3,
    DUCK_FAULT_BUS = 4,
    DUCK_FAULT_FORBIDDEN_CALL = 5,
    DUCK_FAULT_STACK = 6,
    DUCK_FAULT_EXITED = 7,
    DUCK_FAULT_KILLED = 8
};

enum duck_usage_state {
    DUCK_USAGE_NONE = 0, /* no compute session since the duck's start */
    DUCK_USAGE_RUNNING = 1,
    DUCK_USAGE_ENDED = 2, /* closed, or a one-shot run that finished */
    DUCK_USAGE_FAULTED = 3
};

/* What the present or else the last compute session has used. Zero: not known. */
struct duck_usage {
    uint32_t state;        /* enum duck_usage_state */
    uint32_t run_mode;     /* enum duck_kernel_run_mode */
    uint64_t wall_ns;      /* first core entered -> last core left, or now */
    uint64_t cycles;       /* the same in TSC cycles */
    uint64_t instructions; /* retired in the kernel by all cores, where a PMU counts them */
    /* One-shot: weights, ELF image, and the pages of call buffers, scratch and stacks that hold
     * anything but zeros at the end. */
    uint64_t memory_peak_bytes;
    uint64_t tsc_hz;
    uint64_t start_cycles_max, reply_cycles_max; /* see duck_stats; of this session */
    uint64_t ring_switches_first;                /* by the core that polls the NIC as well */
    uint64_t ring_switches_others;
    uint64_t interrupts;     /* that hit the kernel */
    struct duck_fault fault; /* when FAULTED */
};
static_assert(sizeof(struct duck_usage) == 296, "usage");

#endif
