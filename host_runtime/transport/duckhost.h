/* SPDX-License-Identifier: Apache-2.0
 *
 * The host transport's C interface: one fleet of ducks in one or more domains.
 *
 *   open -> hello (each duck) -> reserve / write / commit (duckhost_request, duckhost_write)
 *        -> session_open -> submit / wait_sum ... -> session_close -> close
 *
 * All functions are thread-safe and return 0 or a negative-free enum duckhost_code; details are in
 * the error struct, whose text names the duck. After duckhost_session_open nothing on the call path
 * allocates memory. A call ends with a result or an error, never later than the options' limits.
 */
#ifndef DUCKHOST_H
#define DUCKHOST_H

#include <duck/wire.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DUCKHOST_EXPORT __attribute__((visibility("default")))

#define DUCKHOST_API_VERSION 4u
#define DUCKHOST_DUCKS_MAX 64u
#define DUCKHOST_DOMAINS_MAX 8u
#define DUCKHOST_TICKETS_MAX 8u    /* calls submitted and not yet released */
#define DUCKHOST_ADDRESS_BYTES 16u /* "255.255.255.255" and a zero */

enum duckhost_code {
    DUCKHOST_OK = 0,
    DUCKHOST_ERR_ARGUMENT = 1,    /* the caller's mistake; text names the argument */
    DUCKHOST_ERR_SYSTEM = 2,      /* sockets, memory; text has the system's words */
    DUCKHOST_ERR_UNREACHABLE = 3, /* a duck that owes an answer was silent for too long */
    DUCKHOST_ERR_VERSION = 4,     /* the duck speaks another protocol version */
    DUCKHOST_ERR_DEADLINE = 5,    /* the duck answers, but did not finish in time */
    DUCKHOST_ERR_REFUSED = 6,     /* the duck answered with an error status */
    DUCKHOST_ERR_FAULT = 7,       /* the kernel faulted, or the call was refused by it */
    DUCKHOST_ERR_STATE = 8,       /* not possible now: not attached, no session, no credit */
    DUCKHOST_ERR_CANCELLED = 9,
    DUCKHOST_ERR_CLOSED = 10,
    DUCKHOST_ERR_USED_UP = 11 /* the compute session has no more call numbers: open it again */
};

struct duckhost_error {
    int32_t code;    /* enum duckhost_code */
    int32_t duck;    /* index of the (first) duck concerned, -1 = none */
    uint64_t ducks;  /* all ducks concerned, bit i = duck i */
    uint64_t value;  /* duck_done.value or duck_fault.address */
    uint32_t status; /* enum duck_status that the duck sent, 0 = none */
    uint32_t detail; /* duck_done.detail or duck_fault.fault_kind */
    char text[512];  /* what happened, with names */
    char hint[256];  /* what to do next, may be empty */
};

struct duckhost_domain {
    char name[DUCK_WIRE_NAME_BYTES];
    char bind_address[DUCKHOST_ADDRESS_BYTES]; /* empty = any */
    char call_address[DUCKHOST_ADDRESS_BYTES]; /* broadcast; empty = CALLs go to each duck */
    uint32_t mtu;                              /* of the NIC, 1280 .. 9000 */
    uint32_t cpu; /* where its thread runs: 1 + number of the CPU, 0 = anywhere */
    /* empty = UDP sockets; else DPDK: "0000:41:00.0" or "net_af_packet,iface=nic0,..." */
    char device[96];
};

struct duckhost_duck {
    char name[DUCK_WIRE_NAME_BYTES];
    char address[DUCKHOST_ADDRESS_BYTES];
    uint32_t domain; /* index */
    uint32_t port;
};

/* Zero means the default given in brackets. */
struct duckhost_options {
    uint32_t poll_policy;      /* enum duck_poll_policy of the domain threads and waiters */
    uint32_t silence_ms;       /* [3000] a duck that owes an answer may be silent this long */
    uint32_t call_ms;          /* [30000] whole call, though the duck answers */
    uint32_t request_retry_us; /* [20000] first repetition of a request, doubles */
    uint32_t query_us;         /* [2000] (or twice the usual time) "where is my call?", doubles */
    uint32_t retry_us_max;     /* [100000] longest time between two repetitions */
    uint32_t nack_us;          /* [300] a partly received result stalls this long -> NACK */
    uint32_t ping_ms;          /* [200] heartbeat period of an attached duck */
    uint32_t bulk_chunk_bytes; /* [65536] one WRITE message, a multiple of 64, at most 1 MiB */
    uint32_t bulk_chunks_max;  /* [8] WRITE messages in flight per duck */
    uint32_t bulk_mbps;        /* [0 = no limit] pacing of one duck's bulk traffic */
    uint32_t socket_buffer_bytes; /* [4194304] asked of the system for each direction */
    /* [3600000] keys of sessions and domains are replaced when they are this old */
    uint32_t rekey_ms;
    uint32_t rekey_packets; /* [2147483648] or have sealed so many packets */
    /* [4294967294, also the most] calls of one compute session, then it ends: ERR_USED_UP */
    uint32_t session_calls_max;
};

struct duckhost_faults {
    uint64_t seed;
    double drop, duplicate, reorder, corrupt; /* probability per packet and direction */
    uint32_t delay_us;                        /* each packet is late by a random time up to this */
    uint32_t reserved;
    uint64_t cut_ducks; /* bit i: nothing goes to or comes from duck i */
};

struct duckhost_fault_counters {
    uint64_t dropped, duplicated, reordered, corrupted, delayed, cut;
};

/* Shared with the thread that writes; readable (and cancellable) from any other. */
struct duckhost_progress {
    uint64_t bytes_done;   /* acknowledged by the duck */
    uint64_t bytes_resent; /* repaired */
    uint32_t cancel;       /* set to 1 by anyone: the write ends with DUCKHOST_ERR_CANCELLED */
    uint32_t reserved;
};

struct duckhost_timing {
    uint64_t send_ns;   /* submit -> the last fragment was handed to the port */
    uint64_t total_ns;  /* submit -> the last duck's result was whole */
    uint64_t sum_ns;    /* adding up the ducks' outputs after the last one was whole */
    uint32_t kernel_ns; /* the slowest duck's */
    uint32_t queue_ns;  /* the slowest duck's */
    uint32_t slowest;   /* index of the duck whose result came last */
    uint32_t call;      /* number of the call on the wire */
};

struct duckhost_duck_status {
    uint32_t attached;
    uint32_t state;         /* enum duck_state of the last PONG */
    uint32_t last_call;     /* of the last PONG */
    uint32_t boot_changed;  /* a PONG told another boot_id than the INFO did */
    uint64_t boot_id;       /* of the last PONG */
    uint64_t heard_age_ns;  /* since the last authentic packet, UINT64_MAX = never */
    uint64_t round_trip_ns; /* of the last PING */
    uint64_t calls, kernel_ns, queue_ns, call_ns; /* sums over finished calls */
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    uint64_t fragments_resent, nacks_sent, nacks_received, queries_sent, requests_resent;
    uint64_t dropped_type, dropped_size, dropped_mac, dropped_replay, dropped_session;
    uint64_t bulk_bytes;        /* acknowledged */
    uint64_t unreachable_notes; /* ICMP "port unreachable" seen for this duck (a hint only) */
    uint64_t handshake_ns;      /* of the last handshake: HELLO to INFO */
    uint64_t rekeys;            /* fresh session keys since the transport was opened */
};

/* One call on one duck, times of the host's monotonic clock in ns; session << 32 | call is its
 * ticket: numbers begin anew with each compute session. start_ns is when the duck's
 * kernel began, moved from the duck's clock; clock_error_ns tells how far it may be off. A start_ns
 * of 0 is unknown. The kernel ended kernel_ns later; before it the whole call waited queue_ns. */
struct duckhost_trace_entry {
    uint32_t call, duck;
    uint32_t session, reserved;
    uint64_t submit_ns; /* the call was handed in */
    uint64_t sent_ns;   /* its last fragment left, on the last domain */
    uint64_t done_ns;   /* this duck's result was whole */
    uint64_t start_ns, clock_error_ns;
    uint32_t kernel_ns, queue_ns;
};

struct duckhost_domain_stats {
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    uint64_t dropped_short, dropped_magic, dropped_version, dropped_size, dropped_source;
    uint64_t transmit_full; /* a packet was put off because the port's queue was full */
    uint64_t send_errors;
    uint64_t turns;  /* of the domain thread's loop */
    uint64_t rekeys; /* of the domain's key, within compute sessions */
    /* of device ports: found no room in the NIC; had wrong lengths or checksums */
    uint64_t missed, damaged;
    struct duckhost_fault_counters faults;
};

struct duckhost_fleet;

DUCKHOST_EXPORT uint32_t duckhost_api_version(void);
DUCKHOST_EXPORT const char *duckhost_build(void); /* 40 hex digits, compared with duck_info.build */

/* A new key of a fleet; and the public half of one. ERR_ARGUMENT: not a private key. */
DUCKHOST_EXPORT int duckhost_make_key(uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                                      uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES]);
DUCKHOST_EXPORT int duckhost_public_key(const uint8_t private_key[DUCK_WIRE_KEY_BYTES],
                                        uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES]);
/* Signatures of files (images, manifests) by the fleet's key, over SHA-256("duck file 1" | data):
 * never to be taken for a handshake's. duckhost_verify: OK or ERR_ARGUMENT. */
DUCKHOST_EXPORT int duckhost_sign(const uint8_t private_key[DUCK_WIRE_KEY_BYTES], const void *data,
                                  size_t bytes, uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]);
DUCKHOST_EXPORT int duckhost_verify(const uint8_t public_key[DUCK_WIRE_PUBLIC_BYTES],
                                    const void *data, size_t bytes,
                                    const uint8_t signature[DUCK_WIRE_SIGNATURE_BYTES]);

DUCKHOST_EXPORT int duckhost_open(const struct duckhost_domain *domains, uint32_t domain_count,
                                  const struct duckhost_duck *ducks, uint32_t duck_count,
                                  const uint8_t fleet_private[DUCK_WIRE_KEY_BYTES],
                                  const struct duckhost_options *options,
                                  struct duckhost_fleet **out, struct duckhost_error *error);
/* Ends the threads; functions still running in other threads return DUCKHOST_ERR_CLOSED, and those
 * called later return an error at once. */
DUCKHOST_EXPORT void duckhost_stop(struct duckhost_fleet *fleet);
/* Stops, waits for functions still running, and gives the memory back: the last use of `fleet`. */
DUCKHOST_EXPORT void duckhost_close(struct duckhost_fleet *fleet);

/* A new session with one duck (several may run in parallel). Replaces the session there was as soon
 * as the duck has proven its key; a handshake that fails after that leaves the duck detached.
 * `identity` is the key that the duck proved to hold: whether it is the right one is for the caller
 * to judge (duckhost_detach if not). */
DUCKHOST_EXPORT int duckhost_hello(struct duckhost_fleet *fleet, uint32_t duck, uint32_t timeout_ms,
                                   struct duck_info *info, uint8_t identity[DUCK_WIRE_KEY_BYTES],
                                   uint64_t *round_trip_ns, struct duckhost_error *error);
/* Forgets the session with a duck: no more heartbeats; what still waits for it ends with an error.
 */
DUCKHOST_EXPORT int duckhost_detach(struct duckhost_fleet *fleet, uint32_t duck,
                                    struct duckhost_error *error);

/* One request message and its reply; repeated until answered. DONE with an error status is
 * DUCKHOST_ERR_REFUSED (and the reply is still copied out). */
DUCKHOST_EXPORT int duckhost_request(struct duckhost_fleet *fleet, uint32_t duck, uint32_t type,
                                     const void *payload, uint32_t payload_bytes,
                                     uint32_t timeout_ms, void *reply, uint32_t reply_bytes_max,
                                     uint32_t *reply_type, uint32_t *reply_bytes,
                                     struct duckhost_error *error);

/* Write [offset, offset + bytes) of a reserved region; returns when the duck has all of it.
 * `progress` may be NULL. Gives up after silence_ms without progress. */
DUCKHOST_EXPORT int duckhost_write(struct duckhost_fleet *fleet, uint32_t duck, uint32_t region,
                                   uint64_t offset, const void *data, uint64_t bytes,
                                   struct duckhost_progress *progress,
                                   struct duckhost_error *error);

/* Opens a compute session of the loaded kernel on these ducks (bit i = duck i); open->flags,
 * core_count, *_bytes*, call_time_limit_ms and the ids are the caller's, the rest is filled in
 * here. `weights_ids` has the set_id of each duck of the fleet (DUCK_WIRE_DIGEST_BYTES each, zero =
 * any) and stands in place of open->weights_id; NULL = that one for all. A duck that holds other
 * weights or another kernel refuses with DUCK_ERR_NOT_COMMITTED. A session that was open before is
 * closed. Fresh domain keys are used whenever a call was made under the old ones. A duck whose
 * session belongs to another host is asked again until the timeout.
 * ERR_ARGUMENT: a domain's MTU is too small for calls of call_bytes_max (they would have more than
 * DUCK_WIRE_FRAGMENTS_MAX fragments). */
DUCKHOST_EXPORT int duckhost_session_open(struct duckhost_fleet *fleet, uint64_t ducks,
                                          const struct duck_open *open, const uint8_t *weights_ids,
                                          uint32_t timeout_ms, struct duckhost_error *error);
DUCKHOST_EXPORT int duckhost_session_close(struct duckhost_fleet *fleet,
                                           struct duckhost_error *error);

/* Sends one message to every duck of the session. The bytes are copied. At most
 * DUCK_WIRE_CALLS_IN_FLIGHT_MAX calls are with the ducks; this function waits for its turn, which
 * comes, or the session ends. At most DUCKHOST_TICKETS_MAX tickets may be unreleased. */
DUCKHOST_EXPORT int duckhost_submit(struct duckhost_fleet *fleet, const void *message,
                                    uint32_t bytes, uint64_t *ticket, struct duckhost_error *error);
/* Waits for all ducks, adds their outputs (float32 or bf16, enum duck_dtype) in duck order to
 * count float32 values, and releases the ticket, on errors too. */
DUCKHOST_EXPORT int duckhost_wait_sum(struct duckhost_fleet *fleet, uint64_t ticket, uint32_t dtype,
                                      float *out, uint64_t count, struct duckhost_timing *timing,
                                      struct duckhost_error *error);
/* The same in steps: wait, look at each duck's bytes (valid until the release), release. */
DUCKHOST_EXPORT int duckhost_wait(struct duckhost_fleet *fleet, uint64_t ticket,
                                  struct duckhost_timing *timing, struct duckhost_error *error);
DUCKHOST_EXPORT int duckhost_result(struct duckhost_fleet *fleet, uint64_t ticket, uint32_t duck,
                                    const void **data, uint32_t *bytes,
                                    struct duckhost_error *error);
DUCKHOST_EXPORT int duckhost_release(struct duckhost_fleet *fleet, uint64_t ticket,
                                     struct duckhost_error *error);

DUCKHOST_EXPORT int duckhost_get_duck_status(struct duckhost_fleet *fleet, uint32_t duck,
                                             struct duckhost_duck_status *out);
DUCKHOST_EXPORT int duckhost_get_domain_stats(struct duckhost_fleet *fleet, uint32_t domain,
                                              struct duckhost_domain_stats *out);
/* Keeps the last `calls` calls with all ducks' times (0 = none, as at first), from now on. */
DUCKHOST_EXPORT int duckhost_set_trace(struct duckhost_fleet *fleet, uint32_t calls,
                                       struct duckhost_error *error);
/* Copies the newest entries, one per call and duck, oldest first; *count is their number. */
DUCKHOST_EXPORT int duckhost_get_trace(struct duckhost_fleet *fleet,
                                       struct duckhost_trace_entry *out, uint32_t count_max,
                                       uint32_t *count, struct duckhost_error *error);
/* Fault injection on both directions of every domain's port; all zero turns it off. */
DUCKHOST_EXPORT int duckhost_set_faults(struct duckhost_fleet *fleet,
                                        const struct duckhost_faults *faults,
                                        struct duckhost_error *error);

#ifdef __cplusplus
}
#endif

#endif
