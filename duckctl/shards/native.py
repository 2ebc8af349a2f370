"""libduckpack through ctypes: packing one expert's slice into a record (kernels/pack/pack.h).

ctypes releases the interpreter lock during a call, so threads pack in parallel.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from duckctl.errors import DuckError
from duckctl.native import native_path
from duckctl.shards.errors import CheckpointError
from duckctl.shards.layout import FORMAT_CODES, RegionLayout

PACK_VERSION = 1
TEXT_BYTES = 192
MATRIX_NAMES = ("gate", "up", "down")
DAMAGED = "the file is damaged: compare its sha256 with the publisher's, download it again"
_OK, _BAD_ARGUMENT, _NOT_FINITE, _BAD_SCALE = range(4)
_SOURCE_CODES = {"F8_E4M3": 1, "BF16": 2}

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_uint64),
        ("scale", ctypes.c_void_p),
        ("scale_stride", ctypes.c_uint64),
    )


class _Slice(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("hidden_size", ctypes.c_uint32),
        ("moe_intermediate_size", ctypes.c_uint32),
        ("first_row", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("squared_error", ctypes.c_double * 3),
        ("squared_sum", ctypes.c_double * 3),
        ("matrix", ctypes.c_uint32),
        ("row", ctypes.c_uint32),
        ("column", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("text", ctypes.c_char * TEXT_BYTES),
    )


@dataclass(frozen=True)
class Matrix:
    """A source matrix: ``data`` raw bytes, row-major; ``scale`` [row blocks, column blocks]."""

    name: str
    dtype: str
    rows: int
    columns: int
    data: Bytes
    scale: Floats


@dataclass(frozen=True)
class PackError:
    """Squared errors of one record against its source, per matrix; zeros when lossless."""

    squared_error: tuple[float, ...]
    squared_sum: tuple[float, ...]


class PackLibraryError(DuckError):
    """The packing library is of another version, or refused what duckctl asked."""


class PackLibrary:
    """Typed calls of libduckpack.so."""

    def __init__(self) -> None:
        path = native_path("libduckpack.so")
        library = ctypes.CDLL(str(path))
        library.duck_pack_version.restype = ctypes.c_uint32
        found = library.duck_pack_version()
        if found != PACK_VERSION:
            raise PackLibraryError(
                f"{path} has packing version {found}, this duckctl needs {PACK_VERSION}",
                "install again with: pip install .",
            )
        report = ctypes.POINTER(_Report)
        u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
        library.duck_pack_record_bytes.restype = u64
        library.duck_pack_record_bytes.argtypes = [u32, u32, u32, u32]
        library.duck_pack_bf16_scales.argtypes = [u32, pointer, u64, u32, u32, pointer, report]
        library.duck_pack_record.argtypes = [
            ctypes.POINTER(_Slice), ctypes.POINTER(_Matrix), pointer, report,
        ]  # fmt: skip
        library.duck_unpack_record.argtypes = [
            ctypes.POINTER(_Slice), pointer, pointer, pointer, pointer, report,
        ]  # fmt: skip
        library.duck_pack_check_directory.argtypes = [pointer, u64, report]
        self._library: Any = library

    def record_bytes(self, layout: RegionLayout) -> int:
        """What the library writes for one record of this slice."""
        return int(
            self._library.duck_pack_record_bytes(
                FORMAT_CODES[layout.fmt], layout.hidden_size, layout.first_row, layout.rows
            )
        )

    def bf16_scales(self, fmt: str, matrix: Matrix, scale: Floats) -> None:
        """Fills ``scale`` with the block scales of a bf16 matrix; they ignore the slicing."""
        report = _Report()
        status = self._library.duck_pack_bf16_scales(
            FORMAT_CODES[fmt], matrix.data.ctypes.data, matrix.columns, matrix.rows,
            matrix.columns, scale.ctypes.data, ctypes.byref(report),
        )  # fmt: skip
        if status != _OK:
            raise _refusal(status, report, (matrix,) * 3)

    def pack_record(
        self, layout: RegionLayout, matrices: Sequence[Matrix], record: Bytes
    ) -> PackError:
        """Packs gate, up, down of one expert into ``record`` (record_bytes long).

        Raises CheckpointError for values that no model has.
        """
        if len(record) != layout.record_bytes:
            raise PackLibraryError(f"record of {len(record)} bytes, needs {layout.record_bytes}")
        source = _slice(layout, _SOURCE_CODES[matrices[0].dtype])
        table = (_Matrix * 3)(
            *(
                _Matrix(
                    matrix.data.ctypes.data, matrix.columns,
                    matrix.scale.ctypes.data, matrix.scale.shape[1],
                )
                for matrix in matrices
            )
        )  # fmt: skip
        report = _Report()
        status = self._library.duck_pack_record(
            ctypes.byref(source), table, record.ctypes.data, ctypes.byref(report)
        )
        if status != _OK:
            raise _refusal(status, report, matrices)
        error = PackError(tuple(report.squared_error), tuple(report.squared_sum))
        for matrix, sums in zip(
            matrices, zip(error.squared_error, error.squared_sum, strict=True), strict=True
        ):
            if not all(map(math.isfinite, sums)):  # squares of float32 values, in float32
                raise CheckpointError(
                    f"tensor '{matrix.name}' has weights above 1e18: no model has such", DAMAGED
                )
        return error

    def check_directory(self, directory: Bytes, region_bytes: int) -> None:
        """The checks that the kernel makes before it uses a weights region."""
        report = _Report()
        status = self._library.duck_pack_check_directory(
            directory.ctypes.data, region_bytes, ctypes.byref(report)
        )
        if status != _OK:
            raise PackLibraryError(f"the directory does not add up: {_text(report)}")

    def unpack_record(self, layout: RegionLayout, record: Bytes) -> tuple[Floats, Floats, Floats]:
        """Weights of a record: gate [rows, hidden], up [rows, hidden], down [hidden, rows]."""
        gate = np.empty((layout.rows, layout.hidden_size), np.float32)
        up = np.empty_like(gate)
        down = np.empty((layout.hidden_size, layout.rows), np.float32)
        report = _Report()
        status = self._library.duck_unpack_record(
            ctypes.byref(_slice(layout, 0)), record.ctypes.data, gate.ctypes.data,
            up.ctypes.data, down.ctypes.data, ctypes.byref(report),
        )  # fmt: skip
        if status != _OK:
            raise PackLibraryError(f"libduckpack refused a record: {_text(report)}")
        return gate, up, down


def _slice(layout: RegionLayout, source: int) -> _Slice:
    return _Slice(
        FORMAT_CODES[layout.fmt],
        source,
        layout.hidden_size,
        layout.moe_intermediate_size,
        layout.first_row,
        layout.rows,
    )


def _text(report: _Report) -> str:
    return bytes(report.text).split(b"\0")[0].decode(errors="replace")


def _refusal(status: int, report: _Report, matrices: Sequence[Matrix]) -> DuckError:
    """The library's reason, with the tensor's name and the position in it."""
    if status == _NOT_FINITE:
        matrix = matrices[report.matrix]
        width = 2 if matrix.dtype == "F8_E4M3" else 4
        return CheckpointError(
            f"tensor '{matrix.name}' has the non-finite value 0x{report.value:0{width}X} at row "
            f"{report.row}, column {report.column}",
            DAMAGED,
        )
    if status == _BAD_SCALE:
        matrix = matrices[report.matrix]
        value = np.array([report.value], np.uint32).view(np.float32)[0]
        return CheckpointError(
            f"the scale of tensor '{matrix.name}' is {value} in block row {report.row}, block "
            f"column {report.column}; expected a finite number from 0 to 2^60",
            DAMAGED,
        )
    return PackLibraryError(f"libduckpack refused the call: {_text(report)}")
