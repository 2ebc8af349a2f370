"""ctypes view of libduckpack (kernels/pack/pack.h) and E4M3 tables, for the kernel tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duckctl.native import native_path

Q4, Q6, FP7, FP8, FP9 = 4, 6, 7, 8, 9
LOSSLESS = (FP8, FP9)
SOURCE_E4M3, SOURCE_BF16 = 1, 2
BLOCK = 128

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_uint64),
        ("scale", ctypes.c_void_p),
        ("scale_stride", ctypes.c_uint64),
    ]


class Slice(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("hidden_size", ctypes.c_uint32),
        ("moe_intermediate_size", ctypes.c_uint32),
        ("first_row", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("squared_error", ctypes.c_double * 3),
        ("squared_sum", ctypes.c_double * 3),
        ("matrix", ctypes.c_uint32),
        ("row", ctypes.c_uint32),
        ("column", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("text", ctypes.c_char * 192),
    ]


def load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native_path("libduckpack.so")))
    library.duck_pack_record_bytes.restype = ctypes.c_uint64
    return library


LIBRARY = load_library()


class PackError(Exception):
    """A refusal by libduckpack."""

    def __init__(self, status: int, report: Report) -> None:
        super().__init__(report.text.decode())
        self.status = status
        self.report = report


def _check(status: int, report: Report) -> None:
    if status != 0:
        raise PackError(status, report)


def e4m3_table() -> F32:
    """Value of each of the 256 E4M3 codes, written out from the format's definition."""
    values = np.empty(256, np.float32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            values[code] = np.nan
        elif exponent == 0:
            values[code] = sign * mantissa * 2.0**-9
        else:
            values[code] = sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return values


E4M3 = e4m3_table()
FINITE_CODES: U8 = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)


@dataclass(frozen=True)
class Expert:
    """One source expert: whole matrices and their block scales."""

    data: tuple[npt.NDArray[np.generic], ...]  # gate, up [moe, hidden], down [hidden, moe]
    scale: tuple[F32, ...]
    source: int

    @property
    def hidden(self) -> int:
        return int(self.data[0].shape[1])

    @property
    def moe(self) -> int:
        return int(self.data[0].shape[0])


def grid_shape(rows: int, columns: int) -> tuple[int, int]:
    return (rows + BLOCK - 1) // BLOCK, (columns + BLOCK - 1) // BLOCK


def random_expert(rng: np.random.Generator, hidden: int, moe: int) -> Expert:
    """Uniformly random finite E4M3 codes with scales that keep the outputs near 1."""
    data: list[npt.NDArray[np.generic]] = []
    scales: list[F32] = []
    for rows, columns in ((moe, hidden), (moe, hidden), (hidden, moe)):
        data.append(rng.choice(FINITE_CODES, size=(rows, columns)))
        scale = rng.uniform(0.5, 1.5, grid_shape(rows, columns)) / (80 * columns**0.5)
        scales.append(scale.astype(np.float32))
    return Expert(tuple(data), tuple(scales), SOURCE_E4M3)


def dequantise(codes: npt.NDArray[np.generic], scale: F32) -> F32:
    """float32 weights of E4M3 codes and their block scales."""
    rows, columns = codes.shape
    blocks = np.repeat(np.repeat(scale, BLOCK, 0)[:rows], BLOCK, 1)[:, :columns]
    return np.asarray(E4M3[codes] * blocks, np.float32)


def _matrices(expert: Expert) -> ctypes.Array[Matrix]:
    return (Matrix * 3)(
        *(
            Matrix(d.ctypes.data, d.shape[1], s.ctypes.data, s.shape[1])
            for d, s in zip(expert.data, expert.scale, strict=True)
        )
    )


def record_bytes(fmt: int, hidden: int, first_row: int, rows: int) -> int:
    return int(LIBRARY.duck_pack_record_bytes(fmt, hidden, first_row, rows))


def pack(expert: Expert, fmt: int, first_row: int, rows: int) -> tuple[U8, Report]:
    """Pack a slice; raises PackError."""
    part = Slice(fmt, expert.source, expert.hidden, expert.moe, first_row, rows)
    record = np.full(record_bytes(fmt, expert.hidden, first_row, rows), 0xA5, np.uint8)
    report = Report()
    status = LIBRARY.duck_pack_record(
        ctypes.byref(part),
        _matrices(expert),
        ctypes.c_void_p(record.ctypes.data),
        ctypes.byref(report),
    )
    _check(status, report)
    return record, report


def unpack(record: U8, fmt: int, hidden: int, first_row: int, rows: int) -> tuple[F32, F32, F32]:
    """gate, up [rows, hidden] and down [hidden, rows] as the kernel sees them."""
    part = Slice(fmt, SOURCE_E4M3, hidden, first_row + rows, first_row, rows)
    gate = np.empty((rows, hidden), np.float32)
    up = np.empty((rows, hidden), np.float32)
    down = np.empty((hidden, rows), np.float32)
    report = Report()
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (record, gate, up, down)]
    _check(LIBRARY.duck_unpack_record(ctypes.byref(part), *pointers, ctypes.byref(report)), report)
    return gate, up, down


def bf16_scales(fmt: int, data: U16) -> F32:
    """Block scales for a bf16 matrix given by its bits."""
    rows, columns = data.shape
    scale = np.empty(grid_shape(rows, columns), np.float32)
    report = Report()
    status = LIBRARY.duck_pack_bf16_scales(
        fmt,
        ctypes.c_void_p(data.ctypes.data),
        ctypes.c_uint64(columns),
        rows,
        columns,
        ctypes.c_void_p(scale.ctypes.data),
        ctypes.byref(report),
    )
    _check(status, report)
    return scale


def directory(
    fmt: int, hidden: int, moe: int, first_row: int, rows: int, experts: int, layers: list[int]
) -> bytes:
    """The 4096 bytes of a region's directory; raises PackError."""
    part = Slice(fmt, SOURCE_E4M3, hidden, moe, first_row, rows)
    out = ctypes.create_string_buffer(4096)
    report = Report()
    numbers = (ctypes.c_uint16 * len(layers))(*layers)
    status = LIBRARY.duck_pack_directory(
        ctypes.byref(part), experts, len(layers), numbers, out, ctypes.byref(report)
    )
    _check(status, report)
    return out.raw


def check_directory(data: bytes, region_bytes: int) -> None:
    report = Report()
    _check(
        LIBRARY.duck_pack_check_directory(
            data, ctypes.c_uint64(region_bytes), ctypes.byref(report)
        ),
        report,
    )
