"""libduckharness through ctypes: kernels and their peer, run by threads of this process."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from duckctl.errors import DuckError
from duckctl.native import native_path

READ_AHEAD = 8192  # DUCK_KERNEL_READ_AHEAD
_CALL = struct.Struct("<5I2BH2I")  # struct duck_experts_call
_CALL_MAGIC = 0x4C4C4143
_READ = struct.Struct("<2I2Q")  # struct duck_experts_read
_READ_MAGIC = 0x44414552

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class KernelError(DuckError):
    """A kernel refused its weights or a call."""


class Options(ctypes.Structure):
    """struct duck_harness_options."""

    _fields_ = (
        ("core_count", ctypes.c_uint32),
        ("spin", ctypes.c_uint32),
        ("pin", ctypes.c_uint32),
        ("one_shot", ctypes.c_uint32),
        ("mxcsr", ctypes.c_uint32),
        ("scratch_bytes", ctypes.c_uint64),
        ("input_bytes_max", ctypes.c_uint64),
        ("output_bytes_max", ctypes.c_uint64),
    )


class _PeerWork(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("weights", ctypes.c_void_p),
        ("record_bytes", ctypes.c_uint64),
        ("first_expert", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
    )


def load_library() -> ctypes.CDLL:
    """libduckharness.so with its signatures (kernels/bench/harness.h, peer.h)."""
    library = ctypes.CDLL(str(native_path("libduckharness.so")))
    u32, u64, pointer, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
    signatures: dict[str, tuple[object, tuple[object, ...]]] = {
        "duck_harness_guarded": (pointer, (u64, u64)),
        "duck_harness_release": (None, (pointer, u64, u64)),
        "duck_harness_open": (pointer, (text, pointer, pointer, u64, text)),
        "duck_harness_call": (
            ctypes.c_int32,
            (pointer, text, u32, pointer, u32, pointer, text, pointer),
        ),
        "duck_harness_preemptions": (u64, (pointer,)),
        "duck_harness_cycles_per_second": (ctypes.c_double, ()),
        "duck_harness_close": (None, (pointer,)),
        "duck_peer_open": (pointer, (text, text)),
        "duck_peer_expert_bytes": (u64, (u32, u32, u32)),
        "duck_peer_fill": (None, (u32, pointer, u64)),
        "duck_peer_run": (u64, (pointer, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Memory:
    """Bytes that stay where they are; a kernel may prefetch past their end."""

    def __init__(self, size: int) -> None:
        self.library = load_library()
        self.size = size
        self.address = int(self.library.duck_harness_guarded(size, READ_AHEAD) or 0)
        if self.address == 0:
            raise KernelError(f"no memory for {size / 1e9:.1f} GB of weights", "use --gigabytes")
        buffer = (ctypes.c_uint8 * size).from_address(self.address)
        self.bytes: Bytes = np.ctypeslib.as_array(buffer)

    def close(self) -> None:
        self.library.duck_harness_release(self.address, self.size, READ_AHEAD)


def cycles_per_second() -> float:
    return float(load_library().duck_harness_cycles_per_second())


def scratch_bytes(hidden: int, rows: int, tokens: int, top_k: int, cores: int) -> int:
    """duck_experts_scratch_bytes of kernels/include/duck/experts.h."""
    pairs = tokens * top_k
    floats = 2 * hidden + max(32 * pairs, 131072)
    core = -(-(4 * floats + 16 * pairs + 64) // 4096) * 4096
    shared = 4096 + 4 * tokens * hidden + 512 * pairs * ((rows + 95) // 128 + 1)
    return -(-shared // 4096) * 4096 + cores * core


def experts_call(x: Floats, ids: npt.NDArray[np.uint16], body: int) -> bytes:
    """A CALL message of experts.h with equal routing weights."""
    tokens, top_k = ids.shape
    message = bytearray(_CALL.size) + ids.astype("<u2").tobytes()
    message += bytes(-len(message) % 8)
    message += np.full(ids.shape, 1.0 / top_k, "<f4").tobytes()
    message += bytes(-len(message) % 64)
    _CALL.pack_into(
        message, 0, _CALL_MAGIC, 0, tokens, top_k, x.shape[1], 0, 0, body, len(message), 0
    )
    return bytes(message) + x.tobytes()


def read_call(offset: int, size: int) -> bytes:
    return _READ.pack(_READ_MAGIC, 0, offset, size)


class Kernel:
    """A kernel session on `weights`; its cores spin between calls."""

    def __init__(self, elf: Path, weights: Memory, *, cores: int, scratch: int, call_max: int):
        self._library = weights.library
        options = Options(cores, 1, 1, 0, 0, scratch, call_max, call_max)
        text = ctypes.create_string_buffer(124)
        self._handle = self._library.duck_harness_open(
            str(elf).encode(), ctypes.byref(options), weights.address, weights.size, text
        )
        self.text = text.value.decode()
        if not self._handle:
            raise KernelError(f"{elf.name}: {self.text}", "this is a bug in the benchmark")
        self._output = ctypes.create_string_buffer(call_max)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library.duck_harness_close(self._handle)

    def call(self, message: bytes) -> int | None:
        """Kernel time in ns; None when a core was pre-empted meanwhile."""
        text = ctypes.create_string_buffer(92)
        written, ns = ctypes.c_uint32(), ctypes.c_uint64()
        before = self._library.duck_harness_preemptions(self._handle)
        status = self._library.duck_harness_call(
            self._handle, message, len(message), self._output, len(self._output),
            ctypes.byref(written), text, ctypes.byref(ns),
        )  # fmt: skip
        after = self._library.duck_harness_preemptions(self._handle)
        if status != 0:
            raise KernelError(text.value.decode(), "this is a bug in the benchmark")
        # Publishing the call itself may take a CPU from a spinning core once.
        return int(ns.value) if after - before <= 1 else None


class Peer:
    """ggml's CPU kernels (libggml-cpu.so)."""

    KINDS = ("ggml q8_0", "ggml q4_0 8x8")

    def __init__(self, path: Path) -> None:
        self._library = load_library()
        text = ctypes.create_string_buffer(128)
        self._handle = self._library.duck_peer_open(str(path).encode(), text)
        if not self._handle:
            raise KernelError(
                f"{path}: {text.value.decode()}",
                "--peer wants the libggml-cpu.so of llama-cpp-python: pip install llama-cpp-python",
            )

    def expert_bytes(self, kind: int, hidden: int, rows: int) -> int:
        return int(self._library.duck_peer_expert_bytes(kind, hidden, rows))

    def fill(self, kind: int, memory: Memory, record: int) -> int:
        """Fill memory with experts of `record` bytes; returns how many."""
        count = memory.size // record
        self._library.duck_peer_fill(kind, memory.address, record)
        for expert in range(1, count):
            memory.bytes[expert * record : (expert + 1) * record] = memory.bytes[:record]
        return int(count)

    def run(
        self, kind: int, shape: tuple[int, int], threads: int, memory: Memory,
        record: int, first: int, experts: int,
    ) -> int | None:  # fmt: skip
        work = _PeerWork(kind, *shape, threads, memory.address, record, first, experts)
        ns = int(self._library.duck_peer_run(self._handle, ctypes.byref(work)))
        return ns or None
