"""Python mirror of the contracts in kernels/include/duck: wire.h, experts.h, kernel_abi.h, fp9.h.

The headers are the source; ``tests/contract`` compiles them as C11 and C++17 and compares every
size, offset and constant with this file. Names follow mechanically: ``struct duck_packet_header``
is ``PacketHeader``, ``DUCK_MSG_HELLO`` is ``MessageType.HELLO``, ``DUCK_WIRE_MAGIC`` is
``WIRE_MAGIC``. What the fields mean is told in the headers only.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

# ---- field types: what Python sees, and what lies in memory ------------------------------------
U8 = Annotated[int, ctypes.c_uint8]
U16 = Annotated[int, ctypes.c_uint16]
U32 = Annotated[int, ctypes.c_uint32]
I32 = Annotated[int, ctypes.c_int32]
U64 = Annotated[int, ctypes.c_uint64]
Address = Annotated[int, ctypes.c_uint64]  # a pointer of the duck; never travels
Bytes = ctypes.Array[ctypes.c_uint8]

S = TypeVar("S", bound="type[ctypes.LittleEndianStructure]")


def layout(cls: S) -> S:
    """Class decorator: ``_fields_`` from the annotations, so that each field is written once."""
    hints = get_type_hints(cls, include_extras=True)
    fields: list[tuple[str, Any]] = []
    for name in cls.__annotations__:
        fields.append((name, get_args(hints[name])[1]))
    cls._fields_ = fields
    return cls


# ---- wire.h: constants -------------------------------------------------------------------------
WIRE_MAGIC = 0x4B435544
WIRE_VERSION = 2
WIRE_PORT = 7211
WIRE_PACKET_BYTES_MAX = 8972
WIRE_FRAGMENT_BYTES_MAX = 8896
WIRE_FRAGMENT_BYTES_1500 = 1408
WIRE_CALL_BYTES_MAX = 32 << 20
WIRE_WRITE_CHUNK_BYTES = 1 << 20
WIRE_FRAGMENTS_MAX = 23832
WIRE_CALLS_IN_FLIGHT_MAX = 4
WIRE_WRITES_IN_FLIGHT_MAX = 8
WIRE_NACK_RANGES_MAX = 64
WIRE_NAME_BYTES = 32
WIRE_TEXT_BYTES = 192
WIRE_KEY_BYTES = 32
WIRE_PUBLIC_BYTES = 65
WIRE_SIGNATURE_BYTES = 64
WIRE_NONCE_BYTES = 16
WIRE_MAC_BYTES = 16
WIRE_DIGEST_BYTES = 32
WIRE_BUILD_BYTES = 20
WIRE_REPLAY_WINDOW = 4096

CPU_AVX2 = 1
CPU_FMA = 2
CPU_F16C = 4
CPU_AESNI = 8
CPU_PCLMUL = 16
CPU_AVXVNNI = 32

RESERVE_FRESH = 1
COMMIT_LAST = 1
OPEN_TAKEOVER = 1
OPEN_ONE_SHOT = 2
INFO_NIC_UNPROVEN = 1
OWNER_SILENT_MS = 3000


class CpuFeature(IntFlag):
    """The ``CPU_*`` bits with names to print."""

    AVX2 = CPU_AVX2
    FMA = CPU_FMA
    F16C = CPU_F16C
    AESNI = CPU_AESNI
    PCLMUL = CPU_PCLMUL
    AVXVNNI = CPU_AVXVNNI


class MessageType(IntEnum):
    """enum duck_message_type"""

    HELLO = 1
    INFO = 2
    PING = 3
    PONG = 4
    LOG = 5
    STATS = 6
    REBOOT = 7
    DONE = 8
    USAGE = 9
    COOKIE = 10
    PROOF = 11
    DOMAIN_KEY = 12
    REKEY = 13
    RESERVE = 16
    WRITE = 17
    WRITE_ACK = 18
    COMMIT = 19
    READ = 20
    READ_DATA = 21
    OPEN = 32
    CALL = 33
    RESULT = 34
    NACK = 35
    QUERY = 36
    BUSY = 37
    FAULT = 38
    CLOSE = 39


class WireKey(IntEnum):
    """enum duck_wire_key"""

    CLEAR = 0
    SESSION = 1
    DOMAIN = 2


class State(IntEnum):
    """enum duck_state"""

    IDLE = 0
    LOADING = 1
    READY = 2
    SERVING = 3
    FAULTED = 4


class Platform(IntEnum):
    """enum duck_platform"""

    LINUX_PROCESS = 1
    LINUX_IMAGE = 2
    DUCKOS = 3


class PollPolicy(IntEnum):
    """enum duck_poll_policy"""

    SPIN = 0
    SLEEP = 1
    BLOCK = 2


class Status(IntEnum):
    """enum duck_status"""

    OK = 0
    ERR_BAD_REQUEST = 1
    ERR_NO_MEMORY = 2
    ERR_BAD_RANGE = 3
    ERR_NOT_RESERVED = 4
    ERR_DIGEST = 5
    ERR_NOT_COMMITTED = 6
    ERR_BAD_ELF = 7
    ERR_ABI = 8
    ERR_KERNEL_REFUSED = 9
    ERR_BUSY = 10
    ERR_NO_SESSION = 11
    ERR_TIME_LIMIT = 12
    ERR_MEMORY_LIMIT = 13
    ERR_KERNEL_FAULT = 14
    ERR_CALL_TOO_LARGE = 15
    ERR_LIMIT = 16
    ERR_UNSUPPORTED = 17
    ERR_INTERNAL = 18


class Region(IntEnum):
    """enum duck_region"""

    KERNEL = 0
    WEIGHTS = 1
    COUNT = 2


class FaultKind(IntEnum):
    """enum duck_fault_kind"""

    NONE = 0
    MEMORY = 1
    ILLEGAL_INSTRUCTION = 2
    ARITHMETIC = 3
    BUS = 4
    FORBIDDEN_CALL = 5
    STACK = 6
    EXITED = 7
    KILLED = 8


# ---- wire.h: structures ------------------------------------------------------------------------
@layout
class PacketHeader(ctypes.LittleEndianStructure):
    magic: U32
    version: U8
    type: U8
    key: U8
    epoch: U8
    session: U32
    sequence: U32
    message_bytes: U32
    fragment_index: U32
    fragment_bytes: U16
    payload_bytes: U16
    start: U32
    counter: U64
    mac: Annotated[Bytes, ctypes.c_uint8 * 16]


@layout
class Hello(ctypes.LittleEndianStructure):
    session: U32
    protocol_version: U32
    host_nonce: Annotated[Bytes, ctypes.c_uint8 * WIRE_NONCE_BYTES]
    build: Annotated[Bytes, ctypes.c_uint8 * WIRE_BUILD_BYTES]
    pad: Annotated[Bytes, ctypes.c_uint8 * 148]


@layout
class Cookie(ctypes.LittleEndianStructure):
    session: U32
    protocol_version: U32
    host_nonce: Annotated[Bytes, ctypes.c_uint8 * WIRE_NONCE_BYTES]
    duck_nonce: Annotated[Bytes, ctypes.c_uint8 * WIRE_NONCE_BYTES]
    boot_id: U64
    ephemeral: Annotated[Bytes, ctypes.c_uint8 * WIRE_KEY_BYTES]
    identity: Annotated[Bytes, ctypes.c_uint8 * WIRE_KEY_BYTES]
    build: Annotated[Bytes, ctypes.c_uint8 * WIRE_BUILD_BYTES]
    platform: U32
    name: Annotated[bytes, ctypes.c_char * WIRE_NAME_BYTES]
    reserved: Annotated[Bytes, ctypes.c_uint8 * 24]


@layout
class Proof(ctypes.LittleEndianStructure):
    session: U32
    reserved: U32
    host_nonce: Annotated[Bytes, ctypes.c_uint8 * WIRE_NONCE_BYTES]
    duck_nonce: Annotated[Bytes, ctypes.c_uint8 * WIRE_NONCE_BYTES]
    ephemeral: Annotated[Bytes, ctypes.c_uint8 * WIRE_KEY_BYTES]
    signature: Annotated[Bytes, ctypes.c_uint8 * WIRE_SIGNATURE_BYTES]
    pad: Annotated[Bytes, ctypes.c_uint8 * 152]


@layout
class DomainKey(ctypes.LittleEndianStructure):
    domain_session: U32
    reserved: U32
    wrap_counter: U64
    sealed_key: Annotated[Bytes, ctypes.c_uint8 * 16]
    tag: Annotated[Bytes, ctypes.c_uint8 * WIRE_MAC_BYTES]
    pad: Annotated[Bytes, ctypes.c_uint8 * 160]


@layout
class Rekey(ctypes.LittleEndianStructure):
    epoch: U32
    reserved: U32
    ephemeral: Annotated[Bytes, ctypes.c_uint8 * WIRE_KEY_BYTES]


@layout
class Info(ctypes.LittleEndianStructure):
    session: U32
    protocol_version: U32
    nic_driver: Annotated[bytes, ctypes.c_char * 16]
    flags: U32
    reserved: Annotated[ctypes.Array[ctypes.c_uint32], ctypes.c_uint32 * 3]
    boot_id: U64
    build: Annotated[Bytes, ctypes.c_uint8 * WIRE_BUILD_BYTES]
    platform: U32
    name: Annotated[bytes, ctypes.c_char * WIRE_NAME_BYTES]
    cpu_model: Annotated[bytes, ctypes.c_char * 48]
    cpu_features: U32
    core_count: U32
    memory_bytes: U64
    weight_bytes_max: U64
    mtu_bytes: U32
    link_mbps: U32
    temperature_mc: I32
    state: U32
    mac_address: Annotated[Bytes, ctypes.c_uint8 * 6]
    huge_pages: U8
    poll_policy: U8
    abi_version: U32
    weights_id: Annotated[Bytes, ctypes.c_uint8 * WIRE_DIGEST_BYTES]
    reserved2: U32
    uptime_ns: U64
    kernel: Annotated[bytes, ctypes.c_char * 40]


@layout
class Ping(ctypes.LittleEndianStructure):
    host_time_ns: U64
    reserved: Annotated[Bytes, ctypes.c_uint8 * 24]


@layout
class Pong(ctypes.LittleEndianStructure):
    host_time_ns: U64
    duck_time_ns: U64
    state: U32
    last_call: U32
    boot_id: U64


@layout
class LogRequest(ctypes.LittleEndianStructure):
    since: U64
    pad: Annotated[Bytes, ctypes.c_uint8 * 1000]


@layout
class LogReply(ctypes.LittleEndianStructure):
    next: U64
    text_bytes: U32
    reserved: U32


@layout
class Stats(ctypes.LittleEndianStructure):
    packets_received: U64
    packets_sent: U64
    bytes_received: U64
    bytes_sent: U64
    dropped_short: U64
    dropped_magic: U64
    dropped_version: U64
    dropped_type: U64
    dropped_size: U64
    dropped_mac: U64
    dropped_replay: U64
    dropped_session: U64
    dropped_limit: U64
    calls_started: U64
    calls_finished: U64
    calls_repeated: U64
    nacks_sent: U64
    nacks_received: U64
    queries_received: U64
    results_resent: U64
    kernel_ns_total: U64
    kernel_ns_max: U64
    queue_ns_total: U64
    write_bytes: U64
    commits: U64
    sessions_opened: U64
    sessions_faulted: U64
    uptime_ns: U64
    start_cycles_total: U64
    reply_cycles_total: U64
    ring_switches: U64
    interrupts: U32
    allocations: U32


@layout
class Done(ctypes.LittleEndianStructure):
    status: U32
    detail: U32
    value: U64
    text: Annotated[bytes, ctypes.c_char * WIRE_TEXT_BYTES]


@layout
class Reserve(ctypes.LittleEndianStructure):
    region: U32
    flags: U32
    bytes: U64
    pad: Annotated[Bytes, ctypes.c_uint8 * 192]


@layout
class WritePrefix(ctypes.LittleEndianStructure):
    region: U32
    reserved: U32
    chunk_offset: U64


@layout
class Commit(ctypes.LittleEndianStructure):
    region: U32
    flags: U32
    offset: U64
    bytes: U64
    sha256: Annotated[Bytes, ctypes.c_uint8 * WIRE_DIGEST_BYTES]
    set_id: Annotated[Bytes, ctypes.c_uint8 * WIRE_DIGEST_BYTES]
    pad: Annotated[Bytes, ctypes.c_uint8 * 120]


@layout
class Read(ctypes.LittleEndianStructure):
    region: U32
    bytes: U32
    offset: U64
    pad: Annotated[Bytes, ctypes.c_uint8 * 1008]


@layout
class NackRange(ctypes.LittleEndianStructure):
    begin: U32
    end: U32


@layout
class Nack(ctypes.LittleEndianStructure):
    message_type: U32
    range_count: U32
    range: Annotated[ctypes.Array[NackRange], NackRange * WIRE_NACK_RANGES_MAX]


@layout
class Open(ctypes.LittleEndianStructure):
    flags: U32
    core_count: U32
    call_bytes_max: U32
    result_bytes_max: U32
    scratch_bytes: U64
    call_time_limit_ms: U32
    domain_session: U32
    weights_id: Annotated[Bytes, ctypes.c_uint8 * WIRE_DIGEST_BYTES]
    kernel_id: Annotated[Bytes, ctypes.c_uint8 * WIRE_DIGEST_BYTES]
    pad: Annotated[Bytes, ctypes.c_uint8 * 112]


@layout
class ResultPrefix(ctypes.LittleEndianStructure):
    kernel_ns: U32
    queue_ns: U32


@layout
class Query(ctypes.LittleEndianStructure):
    reserved: Annotated[ctypes.Array[ctypes.c_uint32], ctypes.c_uint32 * 52]


@layout
class Fault(ctypes.LittleEndianStructure):
    status: U32
    fault_kind: U32
    core: U32
    call: U32
    address: U64
    instruction: U64
    text: Annotated[bytes, ctypes.c_char * 176]


class UsageState(IntEnum):
    """enum duck_usage_state"""

    NONE = 0
    RUNNING = 1
    ENDED = 2
    FAULTED = 3


@layout
class Usage(ctypes.LittleEndianStructure):
    state: U32
    run_mode: U32
    wall_ns: U64
    cycles: U64
    instructions: U64
    memory_peak_bytes: U64
    tsc_hz: U64
    start_cycles_max: U64
    reply_cycles_max: U64
    ring_switches_first: U64
    ring_switches_others: U64
    interrupts: U64
    fault: Annotated[Fault, Fault]


# ---- experts.h ---------------------------------------------------------------------------------
EXPERTS_CALL_MAGIC = 0x4C4C4143
EXPERT_NONE = 0xFFFF
EXPERTS_TOKENS_MAX = 512
EXPERTS_TOP_K_MAX = 16
EXPERTS_SUM_FLOATS = 131072


class Dtype(IntEnum):
    """enum duck_dtype"""

    F32 = 0
    BF16 = 1
    FP8 = 2


@layout
class ExpertsCall(ctypes.LittleEndianStructure):
    magic: U32
    layer: U32
    token_count: U32
    top_k: U32
    hidden_size: U32
    activation_dtype: U8
    result_dtype: U8
    body: U16
    activation_offset: U32
    reserved: U32


def experts_weight_offset(tokens: int, top_k: int) -> int:
    """Where the routing weights begin in a CALL message."""
    return (32 + 2 * tokens * top_k + 7) // 8 * 8


def experts_activation_offset(tokens: int, top_k: int) -> int:
    """Where the activations begin in a CALL message."""
    return (experts_weight_offset(tokens, top_k) + 4 * tokens * top_k + 63) // 64 * 64


def experts_activation_bytes(tokens: int, hidden: int, dtype: Dtype) -> int:
    """Bytes of the activations of a CALL message; with FP8 their scales stand behind them."""
    values = tokens * hidden
    if dtype is Dtype.FP8:
        return values + values // 128 * 4
    return values * (2 if dtype is Dtype.BF16 else 4)


def experts_scratch_bytes(
    hidden: int, rows: int, tokens_max: int, top_k_max: int, core_count: int
) -> int:
    """``duck_open.scratch_bytes`` for calls of up to tokens_max x top_k_max."""
    pairs = tokens_max * top_k_max
    floats = 2 * hidden + max(32 * pairs, EXPERTS_SUM_FLOATS)
    core = -(-(4 * floats + 16 * pairs + 64) // 4096) * 4096
    groups_max = (rows + 95) // 128 + 1
    shared = 4096 + 4 * tokens_max * hidden + 512 * pairs * groups_max
    return -(-shared // 4096) * 4096 + core_count * core


EXPERTS_READ_MAGIC = 0x44414552


@layout
class ExpertsRead(ctypes.LittleEndianStructure):
    magic: U32
    core_count: U32
    offset: U64
    bytes: U64


@layout
class ExpertsReadResult(ctypes.LittleEndianStructure):
    sum: U64


# ---- fp9.h -------------------------------------------------------------------------------------
LAYOUT_VERSION = 1
PANEL_ROWS = 32
BLOCK = 128
FP9_COLUMNS = 8
FP9_GROUP_BYTES = 288
FP7_GROUP_BYTES = 224
RECORD_ALIGN = 4096
DIRECTORY_BYTES = 4096
DIRECTORY_MAGIC = 0x31445244
LAYERS_MAX = 256


class Format(IntEnum):
    """enum duck_format"""

    Q4 = 4
    Q6 = 6
    FP7 = 7
    FP8 = 8
    FP9 = 9


@layout
class Directory(ctypes.LittleEndianStructure):
    magic: U32
    layout_version: U32
    format: U32
    hidden_size: U32
    first_row: U32
    rows: U32
    expert_count: U32
    layer_count: U32
    record_bytes: U64
    segment_bytes: U64
    region_bytes: U64
    moe_intermediate_size: U32
    reserved: Annotated[ctypes.Array[ctypes.c_uint32], ctypes.c_uint32 * 17]
    layer: Annotated[ctypes.Array[ctypes.c_uint16], ctypes.c_uint16 * LAYERS_MAX]
    pad: Annotated[Bytes, ctypes.c_uint8 * (DIRECTORY_BYTES - 128 - 2 * LAYERS_MAX)]


def down_groups(first_row: int, rows: int) -> int:
    """Number of source blocks that rows ``[first_row, first_row + rows)`` touch."""
    return (first_row + rows - 1) // BLOCK - first_row // BLOCK + 1


def record_header_bytes(hidden: int, first_row: int, rows: int) -> int:
    """Bytes of the scales in front of a record's panels."""
    blocks = hidden // BLOCK
    floats = 2 * (rows // PANEL_ROWS) * blocks + blocks * down_groups(first_row, rows)
    return (4 * floats + 63) // 64 * 64


def panel_bytes(weight_format: int, columns: int) -> int:
    """Bytes of one panel of 32 rows."""
    chunk = 128 * weight_format + (64 if weight_format <= Format.Q6 else 0)
    return columns // 32 * chunk


def record_bytes(weight_format: int, hidden: int, first_row: int, rows: int) -> int:
    """Bytes of one expert's record, padded to ``RECORD_ALIGN``."""
    panels = 2 * (rows // PANEL_ROWS) * panel_bytes(weight_format, hidden)
    panels += (hidden // PANEL_ROWS) * panel_bytes(weight_format, rows)
    total = record_header_bytes(hidden, first_row, rows) + panels
    return (total + RECORD_ALIGN - 1) // RECORD_ALIGN * RECORD_ALIGN


# ---- kernel_abi.h ------------------------------------------------------------------------------
KERNEL_ABI_VERSION = 1
KERNEL_CORES_MAX = 64
KERNEL_SLOTS = 4
KERNEL_STACK_BYTES = 256 << 10
KERNEL_ELF_BYTES_MAX = 4 << 20
KERNEL_NOTE_TYPE = 0x4455434B
KERNEL_INIT_PENDING = -1
KERNEL_READ_AHEAD = 8192


class KernelRunMode(IntEnum):
    """enum duck_kernel_run_mode"""

    PERSISTENT = 0
    ONE_SHOT = 1


@layout
class KernelNote(ctypes.LittleEndianStructure):
    abi_version: U32
    cpu_features: U32
    name: Annotated[bytes, ctypes.c_char * 24]


@layout
class KernelSlot(ctypes.LittleEndianStructure):
    call_number: U32
    input_bytes: U32
    input_offset: U64
    output_offset: U64
    output_bytes_max: U32
    output_bytes: U32
    status: I32
    text: Annotated[bytes, ctypes.c_char * 92]


@layout
class KernelMailbox(ctypes.LittleEndianStructure):
    call_published: U32
    stop: U32
    pad0: Annotated[Bytes, ctypes.c_uint8 * 56]
    call_completed: U32
    pad1: Annotated[Bytes, ctypes.c_uint8 * 60]
    init_status: I32
    init_text: Annotated[bytes, ctypes.c_char * 124]
    slot: Annotated[ctypes.Array[KernelSlot], KernelSlot * KERNEL_SLOTS]


@layout
class KernelContext(ctypes.LittleEndianStructure):
    abi_version: U32
    core_count: U32
    run_mode: U32
    reserved: U32
    mailbox: Address
    weights: Address
    weights_bytes: U64
    calls: Address
    calls_bytes: U64
    scratch: Address
    scratch_bytes: U64
    wait: Address
    wake: Address
    complete: Address
    runtime: Address
