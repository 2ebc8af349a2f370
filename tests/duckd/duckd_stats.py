"""The counters of STATS in the order of the wire, told once more than in wire.h on purpose."""

from __future__ import annotations

STATS_FIELDS = [
    "packets_received",
    "packets_sent",
    "bytes_received",
    "bytes_sent",
    "dropped_short",
    "dropped_magic",
    "dropped_version",
    "dropped_type",
    "dropped_size",
    "dropped_mac",
    "dropped_replay",
    "dropped_session",
    "dropped_limit",
    "calls_started",
    "calls_finished",
    "calls_repeated",
    "nacks_sent",
    "nacks_received",
    "queries_received",
    "results_resent",
    "kernel_ns_total",
    "kernel_ns_max",
    "queue_ns_total",
    "write_bytes",
    "commits",
    "sessions_opened",
    "sessions_faulted",
    "uptime_ns",
]
