"""Packed records read back with numpy alone, straight from the description in duck/fp9.h.

A second implementation on purpose: what libduckpack writes is compared with this, not with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def e4m3_values() -> Floats:
    """Value of each of the 256 E4M3 codes; NaN for 0x7F and 0xFF."""
    values = np.zeros(256, np.float32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            magnitude = float("nan")
        elif exponent == 0:
            magnitude = mantissa / 8 * 2.0**-6
        else:
            magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values[code] = np.float32(np.copysign(magnitude, sign))
    return values


@dataclass(frozen=True)
class RecordShape:
    """The slice that a record holds: rows [first_row, first_row + rows) of the MoE size."""

    fmt: str
    hidden: int
    first_row: int
    rows: int

    @property
    def groups(self) -> int:
        return (self.first_row + self.rows - 1) // 128 - self.first_row // 128 + 1


@dataclass(frozen=True)
class Record:
    """Code values (without scales) and scales.

    gate, up [rows, hidden]; down [hidden, rows]; gate_scale, up_scale [panels, hidden / 128];
    down_scale [hidden / 128, groups].
    """

    gate: Floats
    up: Floats
    down: Floats
    gate_scale: Floats
    up_scale: Floats
    down_scale: Floats
    padding: Bytes


def _panel(data: Bytes, fmt: str, columns: int) -> Floats:
    """One panel as values [32, columns]."""
    if fmt == "fp8":
        codes = data.reshape(columns, 8, 4)[:, :, ::-1].transpose(2, 1, 0).reshape(32, columns)
        return e4m3_values()[codes]
    groups = data.reshape(columns // 8, 288)
    low = np.unpackbits(groups[:, :32], axis=1, bitorder="little").reshape(-1, 32, 8)
    high = groups[:, 32:].reshape(-1, 8, 32).transpose(0, 2, 1)
    codes9 = (high.astype(np.uint16) << 1 | low).transpose(1, 0, 2).reshape(32, columns)
    return (codes9 << 7).astype(np.uint16).view(np.float16).astype(np.float32)


def read_record(data: Bytes, shape: RecordShape) -> Record:
    """Splits a record by the layout; every byte is accounted for."""
    bits = 8 if shape.fmt == "fp8" else 9
    panels, blocks = shape.rows // 32, shape.hidden // 128
    counts = [panels * blocks, panels * blocks, blocks * shape.groups]
    header = -(-4 * sum(counts) // 64) * 64
    scales = np.split(data[: 4 * sum(counts)].view(np.float32), np.cumsum(counts)[:-1])
    at = header
    gate: list[Floats] = []
    up: list[Floats] = []
    for _ in range(panels):
        for rows in (gate, up):
            size = 32 * shape.hidden * bits // 8
            rows.append(_panel(data[at : at + size], shape.fmt, shape.hidden))
            at += size
    down = []
    for _ in range(shape.hidden // 32):
        size = 32 * shape.rows * bits // 8
        down.append(_panel(data[at : at + size], shape.fmt, shape.rows))
        at += size
    return Record(
        np.concatenate(gate),
        np.concatenate(up),
        np.concatenate(down),
        scales[0].reshape(panels, blocks),
        scales[1].reshape(panels, blocks),
        scales[2].reshape(blocks, shape.groups),
        np.concatenate([data[4 * sum(counts) : header], data[at:]]),
    )
