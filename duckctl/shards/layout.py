"""Sizes of the packed layout: the Python side of kernels/include/duck/fp9.h."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

LAYOUT_VERSION = 1
PANEL_ROWS = 32
BLOCK = 128
RECORD_ALIGN = 4096
DIRECTORY_BYTES = 4096
DIRECTORY_MAGIC = 0x31445244
LAYERS_MAX = 256
FORMAT_CODES = {"fp8": 8, "fp9": 9, "fp7": 7, "q6": 6, "q4": 4}  # enum duck_format
LOSSLESS_FORMATS = ("fp8", "fp9")  # of FP8 checkpoints
_DIRECTORY = struct.Struct("<8I3QI17I256H")


def _round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def down_groups(first_row: int, rows: int) -> int:
    """Number of 128-row source blocks that a slice touches."""
    return (first_row + rows - 1) // BLOCK - first_row // BLOCK + 1


def record_header_bytes(hidden: int, first_row: int, rows: int) -> int:
    """Bytes of one record's scales."""
    blocks = hidden // BLOCK
    floats = 2 * (rows // PANEL_ROWS) * blocks + blocks * down_groups(first_row, rows)
    return _round_up(4 * floats, 64)


def panel_bytes(fmt: str, columns: int) -> int:
    """Bytes of one panel of 32 rows; q4 and q6 have 64 bytes of row scales per 32 columns."""
    code = FORMAT_CODES[fmt]
    return columns // 32 * (128 * code + (64 if code <= FORMAT_CODES["q6"] else 0))


def record_bytes(fmt: str, hidden: int, first_row: int, rows: int) -> int:
    """Bytes of one expert's record in a slice."""
    panels = 2 * (rows // PANEL_ROWS) * panel_bytes(fmt, hidden)
    panels += (hidden // PANEL_ROWS) * panel_bytes(fmt, rows)
    return _round_up(record_header_bytes(hidden, first_row, rows) + panels, RECORD_ALIGN)


@dataclass(frozen=True)
class RegionLayout:
    """The weights region of one duck: directory, then one segment per MoE layer."""

    fmt: str
    hidden_size: int
    moe_intermediate_size: int
    expert_count: int
    layers: tuple[int, ...]
    first_row: int
    rows: int

    @property
    def record_bytes(self) -> int:
        return record_bytes(self.fmt, self.hidden_size, self.first_row, self.rows)

    @property
    def segment_bytes(self) -> int:
        return self.expert_count * self.record_bytes

    @property
    def region_bytes(self) -> int:
        return DIRECTORY_BYTES + len(self.layers) * self.segment_bytes

    def segment_offset(self, layer: int) -> int:
        return DIRECTORY_BYTES + self.layers.index(layer) * self.segment_bytes

    def directory(self) -> bytes:
        """struct duck_directory, 4096 bytes."""
        table = [*self.layers, *([0] * (LAYERS_MAX - len(self.layers)))]
        packed = _DIRECTORY.pack(
            DIRECTORY_MAGIC,
            LAYOUT_VERSION,
            FORMAT_CODES[self.fmt],
            self.hidden_size,
            self.first_row,
            self.rows,
            self.expert_count,
            len(self.layers),
            self.record_bytes,
            self.segment_bytes,
            self.region_bytes,
            self.moe_intermediate_size,
            *([0] * 17),
            *table,
        )
        return packed + bytes(DIRECTORY_BYTES - len(packed))


def valid_duck_counts(moe_intermediate_size: int) -> Sequence[int]:
    """Duck counts that give every duck the same number of rows."""
    panels = moe_intermediate_size // PANEL_ROWS
    return [count for count in range(1, panels + 1) if panels % count == 0]
