"""The C interface duckhost.h as ctypes see it; tests/transport compare it with the header."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Annotated

from host_runtime.errors import HostError
from host_runtime.wire import I32, U32, U64, WIRE_NAME_BYTES, Info, Open, layout

API_VERSION = 4
DUCKS_MAX = 64
DOMAINS_MAX = 8
TICKETS_MAX = 8
ADDRESS_BYTES = 16
DEVICE_BYTES = 96

F64 = Annotated[float, ctypes.c_double]
Name = Annotated[bytes, ctypes.c_char * WIRE_NAME_BYTES]
AddressText = Annotated[bytes, ctypes.c_char * ADDRESS_BYTES]


@layout
class Error(ctypes.LittleEndianStructure):
    code: I32
    duck: I32
    ducks: U64
    value: U64
    status: U32
    detail: U32
    text: Annotated[bytes, ctypes.c_char * 512]
    hint: Annotated[bytes, ctypes.c_char * 256]


@layout
class Domain(ctypes.LittleEndianStructure):
    name: Name
    bind_address: AddressText
    call_address: AddressText
    mtu: U32
    cpu: U32
    device: Annotated[bytes, ctypes.c_char * DEVICE_BYTES]


@layout
class Duck(ctypes.LittleEndianStructure):
    name: Name
    address: AddressText
    domain: U32
    port: U32


@layout
class Options(ctypes.LittleEndianStructure):
    poll_policy: U32
    silence_ms: U32
    call_ms: U32
    request_retry_us: U32
    query_us: U32
    retry_us_max: U32
    nack_us: U32
    ping_ms: U32
    bulk_chunk_bytes: U32
    bulk_chunks_max: U32
    bulk_mbps: U32
    socket_buffer_bytes: U32
    rekey_ms: U32
    rekey_packets: U32
    session_calls_max: U32


@layout
class FaultSettings(ctypes.LittleEndianStructure):
    seed: U64
    drop: F64
    duplicate: F64
    reorder: F64
    corrupt: F64
    delay_us: U32
    reserved: U32
    cut_ducks: U64


@layout
class FaultCounters(ctypes.LittleEndianStructure):
    """Packets that fault injection touched."""

    dropped: U64
    duplicated: U64
    reordered: U64
    corrupted: U64
    delayed: U64
    cut: U64


@layout
class Progress(ctypes.LittleEndianStructure):
    """Of one write; any thread may read it and set ``cancel`` to 1."""

    bytes_done: U64
    bytes_resent: U64
    cancel: U32
    reserved: U32


@layout
class Timing(ctypes.LittleEndianStructure):
    """Of one call, see struct duckhost_timing."""

    send_ns: U64
    total_ns: U64
    sum_ns: U64
    kernel_ns: U32
    queue_ns: U32
    slowest: U32
    call: U32


@layout
class TraceEntry(ctypes.LittleEndianStructure):
    """One call on one duck, see struct duckhost_trace_entry."""

    call: U32
    duck: U32
    session: U32
    reserved: U32
    submit_ns: U64
    sent_ns: U64
    done_ns: U64
    start_ns: U64
    clock_error_ns: U64
    kernel_ns: U32
    queue_ns: U32


@layout
class DuckLinkStatus(ctypes.LittleEndianStructure):
    """What the host saw of one duck, see struct duckhost_duck_status."""

    attached: U32
    state: U32
    last_call: U32
    boot_changed: U32
    boot_id: U64
    heard_age_ns: U64
    round_trip_ns: U64
    calls: U64
    kernel_ns: U64
    queue_ns: U64
    call_ns: U64
    packets_sent: U64
    packets_received: U64
    bytes_sent: U64
    bytes_received: U64
    fragments_resent: U64
    nacks_sent: U64
    nacks_received: U64
    queries_sent: U64
    requests_resent: U64
    dropped_type: U64
    dropped_size: U64
    dropped_mac: U64
    dropped_replay: U64
    dropped_session: U64
    bulk_bytes: U64
    unreachable_notes: U64
    handshake_ns: U64
    rekeys: U64


@layout
class DomainStats(ctypes.LittleEndianStructure):
    """What the host saw in one domain, see struct duckhost_domain_stats."""

    packets_sent: U64
    packets_received: U64
    bytes_sent: U64
    bytes_received: U64
    dropped_short: U64
    dropped_magic: U64
    dropped_version: U64
    dropped_size: U64
    dropped_source: U64
    transmit_full: U64
    send_errors: U64
    turns: U64
    rekeys: U64
    missed: U64
    damaged: U64
    faults: Annotated[FaultCounters, FaultCounters]


def _functions() -> dict[str, list[object]]:
    """Argument types of every function that returns enum duckhost_code."""
    fleet, error, memory = ctypes.c_void_p, ctypes.POINTER(Error), ctypes.c_void_p
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    u32_out, u64_out = ctypes.POINTER(u32), ctypes.POINTER(u64)
    timing = ctypes.POINTER(Timing)
    request = [fleet, u32, u32, memory, u32, u32, memory, u32, u32_out, u32_out, error]
    write = [fleet, u32, u32, u64, memory, u64, ctypes.POINTER(Progress), error]
    fleet_out = ctypes.POINTER(ctypes.c_void_p)
    options = ctypes.POINTER(Options)
    return {
        "duckhost_make_key": [memory, memory],
        "duckhost_public_key": [memory, memory],
        "duckhost_sign": [memory, memory, ctypes.c_size_t, memory],
        "duckhost_verify": [memory, memory, ctypes.c_size_t, memory],
        "duckhost_open": [memory, u32, memory, u32, memory, options, fleet_out, error],
        "duckhost_hello": [fleet, u32, u32, ctypes.POINTER(Info), memory, u64_out, error],
        "duckhost_detach": [fleet, u32, error],
        "duckhost_request": list(request),
        "duckhost_write": list(write),
        "duckhost_session_open": [fleet, u64, ctypes.POINTER(Open), memory, u32, error],
        "duckhost_session_close": [fleet, error],
        "duckhost_submit": [fleet, memory, u32, u64_out, error],
        "duckhost_wait_sum": [fleet, u64, u32, memory, u64, timing, error],
        "duckhost_wait": [fleet, u64, timing, error],
        "duckhost_result": [fleet, u64, u32, ctypes.POINTER(memory), u32_out, error],
        "duckhost_release": [fleet, u64, error],
        "duckhost_get_duck_status": [fleet, u32, ctypes.POINTER(DuckLinkStatus)],
        "duckhost_set_trace": [fleet, u32, error],
        "duckhost_get_trace": [fleet, ctypes.POINTER(TraceEntry), u32, ctypes.POINTER(u32), error],
        "duckhost_get_domain_stats": [fleet, u32, ctypes.POINTER(DomainStats)],
        "duckhost_set_faults": [fleet, ctypes.POINTER(FaultSettings), error],
    }


def load(library: Path) -> ctypes.CDLL:
    """Load libduckhost.so and declare its functions; HostError when it is not the right one."""
    try:
        loaded = ctypes.CDLL(str(library))
        loaded.duckhost_api_version.restype = ctypes.c_uint32
        version = loaded.duckhost_api_version()
    except (OSError, AttributeError) as problem:
        raise HostError(
            f"{library} is not a usable host transport library: {problem}",
            "reinstall duckctl: its native parts are built together with it",
        ) from problem
    if version != API_VERSION:
        raise HostError(
            f"{library} has interface version {version}, expected {API_VERSION}",
            "reinstall duckctl: its native parts are built together with it",
        )
    loaded.duckhost_build.restype = ctypes.c_char_p
    for name in ("duckhost_stop", "duckhost_close"):
        getattr(loaded, name).argtypes = [ctypes.c_void_p]
        getattr(loaded, name).restype = None
    for name, argument_types in _functions().items():
        function = getattr(loaded, name)
        function.argtypes = argument_types
        function.restype = ctypes.c_int
    return loaded
