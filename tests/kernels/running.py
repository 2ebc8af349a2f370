"""Runs the shipped kernel ELFs in this process (libduckharness) and builds their calls."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import packing

from duckctl.bench.harness import Options, load_library
from duckctl.native import native_path

NONE = 0xFFFF
F32, BF16 = 0, 1
READ_AHEAD = 8192
CALL = struct.Struct("<IIIIIBBHII")
MAGIC = 0x4C4C4143

FORMATS = (packing.Q4, packing.Q6, packing.FP7, packing.FP8, packing.FP9)
BODIES = {  # number of each body in its ELF, by format
    "scalar": dict.fromkeys(FORMATS, 1),
    "madd": {packing.Q4: 1, packing.Q6: 1},
    "int": {packing.FP7: 1, packing.FP8: 1},
    "cvt": {packing.FP7: 2, packing.FP8: 2},
    "wide": {packing.FP9: 1},
    "narrow": {packing.FP9: 2},
}
BODIES_OF = {
    fmt: tuple(name for name, numbers in BODIES.items() if fmt in numbers) for fmt in FORMATS
}


LIBRARY = load_library()


class KernelRefusedError(Exception):
    """The kernel refused its weights or a call; str() is its text."""


@dataclass(frozen=True)
class Layer:
    """One MoE layer's experts, packed for one slice, with a directory in front."""

    fmt: int
    hidden: int
    moe: int
    first_row: int
    rows: int
    experts: tuple[packing.Expert, ...]
    region: bytes
    layer: int

    def slice_weights(self, expert: int) -> tuple[packing.F32, packing.F32, packing.F32]:
        """gate, up [rows, hidden], down [hidden, rows] in float32."""
        if self.fmt not in packing.LOSSLESS:
            size = packing.record_bytes(self.fmt, self.hidden, self.first_row, self.rows)
            at = 4096 + expert * size
            record = np.frombuffer(self.region[at : at + size], np.uint8).copy()
            return packing.unpack(record, self.fmt, self.hidden, self.first_row, self.rows)
        part = slice(self.first_row, self.first_row + self.rows)
        source = self.experts[expert]
        gate, up, down = (
            packing.dequantise(d, s) for d, s in zip(source.data, source.scale, strict=True)
        )
        return gate[part], up[part], down[:, part]


def make_layer(
    rng: np.random.Generator,
    fmt: int,
    *,
    hidden: int,
    moe: int,
    first_row: int,
    rows: int,
    experts: int,
    layer: int = 3,
) -> Layer:
    sources = tuple(packing.random_expert(rng, hidden, moe) for _ in range(experts))
    return pack_layer(fmt, sources, first_row, rows, layer)


def pack_layer(
    fmt: int, sources: Sequence[packing.Expert], first_row: int, rows: int, layer: int = 3
) -> Layer:
    hidden, moe = sources[0].hidden, sources[0].moe
    head = packing.directory(fmt, hidden, moe, first_row, rows, len(sources), [layer])
    records = [packing.pack(e, fmt, first_row, rows)[0].tobytes() for e in sources]
    region = head + b"".join(records)
    return Layer(fmt, hidden, moe, first_row, rows, tuple(sources), region, layer)


class Kernel:
    """A running kernel on weights that lie between guard pages."""

    def __init__(
        self,
        region: bytes,
        *,
        body: str,
        fmt: int,
        cores: int = 1,
        scratch: int = 1 << 22,
        input_bytes_max: int = 1 << 20,
        output_bytes_max: int = 1 << 20,
        one_shot: bool = False,
        mxcsr: int = 0,
        elf: str | None = None,
    ) -> None:
        name = elf or ("experts-scalar.elf" if body == "scalar" else "experts-avx2.elf")
        self._body = BODIES[body][fmt] if body else 0
        options = Options(
            cores, 0, 0, int(one_shot), mxcsr, scratch, input_bytes_max, output_bytes_max
        )
        self._bytes = len(region)
        self._weights = LIBRARY.duck_harness_guarded(len(region), READ_AHEAD)
        ctypes.memmove(self._weights, region, len(region))
        text = ctypes.create_string_buffer(124)
        self._handle = LIBRARY.duck_harness_open(
            str(native_path(name)).encode(),
            ctypes.byref(options),
            self._weights,
            len(region),
            text,
        )
        self.text = text.value.decode()
        if not self._handle:
            LIBRARY.duck_harness_release(self._weights, self._bytes, READ_AHEAD)
            raise KernelRefusedError(self.text)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        LIBRARY.duck_harness_close(self._handle)
        LIBRARY.duck_harness_release(self._weights, self._bytes, READ_AHEAD)

    def call_raw(self, message: bytes, output_bytes: int) -> bytes:
        output = ctypes.create_string_buffer(max(output_bytes, 1))
        written = ctypes.c_uint32()
        text = ctypes.create_string_buffer(92)
        status = LIBRARY.duck_harness_call(
            self._handle,
            message,
            len(message),
            output,
            output_bytes,
            ctypes.byref(written),
            text,
            None,
        )
        if status != 0:
            assert written.value == 0
            raise KernelRefusedError(text.value.decode())
        assert text.value == b""
        return output.raw[: written.value]

    def experts(
        self,
        layer: int,
        x: packing.F32 | packing.U16,
        ids: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
        weights: packing.F32,
        result: int = F32,
    ) -> packing.F32:
        """Results as float32 (bf16 ones widened)."""
        tokens, hidden = x.shape
        size = 2 if result == BF16 else 4
        raw = self.call_raw(
            make_call(layer, x, ids, weights, result, self._body), tokens * hidden * size
        )
        assert len(raw) == tokens * hidden * size
        if result == BF16:
            bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(tokens, hidden)
        return np.frombuffer(raw, np.float32).reshape(tokens, hidden)


def make_call(
    layer: int,
    x: packing.F32 | packing.U16,
    ids: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
    weights: packing.F32,
    result: int = F32,
    body: int = 0,
) -> bytes:
    """A CALL message; uint16 activations are bf16 bits."""
    tokens, top_k = ids.shape
    message = bytearray(CALL.size)
    message += ids.astype("<u2").tobytes()
    message += bytes(-len(message) % 8)
    message += weights.astype("<f4").tobytes()
    message += bytes(-len(message) % 64)
    dtype = BF16 if x.dtype == np.uint16 else F32
    CALL.pack_into(
        message, 0, MAGIC, layer, tokens, top_k, x.shape[1], dtype, result, body, len(message), 0
    )
    return bytes(message) + x.tobytes()


def random_call(
    rng: np.random.Generator, hidden: int, tokens: int, top_k: int, experts: int
) -> tuple[packing.F32, np.ndarray[tuple[int, ...], np.dtype[np.uint16]], packing.F32]:
    """Activations, expert ids (distinct per token where they suffice, some unused), weights."""
    x = rng.normal(0, 1, (tokens, hidden)).astype(np.float32)
    ids = np.stack(
        [rng.choice(experts, top_k, replace=top_k > experts) for _ in range(tokens)]
    ).astype(np.uint16)
    ids[rng.random(ids.shape) < 0.1] = NONE
    weights = rng.uniform(0.1, 1.0, (tokens, top_k)).astype(np.float32)
    return x, ids, weights
