"""Launches of product.cu: matrix-vector products whose weights are read ahead of the input."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from host_runtime.ops.gpu.compiled import Kernels, compiled
from host_runtime.ops.gpu.split import NO_SPLIT, SPLIT_FIELDS, SplitRows
from host_runtime.ops.gpu.support import BLOCK
from host_runtime.ops.matrix import Matrix

# As in tiles.cuh and codes.cuh.
WARPS, LANES, CHUNK, TILE = 8, 32, 256, 2048
_CODES_ROWS, _PLAIN_ROWS, _CODES_COLUMNS_MAX = 8, 4, 8192
_CODES_X_BYTES, _PLAIN_X_BYTES = 6, 4  # of one input in shared memory
_PART_COLUMNS_MAX = 8192  # of one partial sum: more input would leave little room for weights
_STAGES = (6, 5, 4, 3)
_STAGES_LEAST = 2  # for two rows: slow, but the weights are read once
_INPUTS = {"none": 0, "norm": 1, "silu": 2}  # as in tiles.cuh
# Of a group of plain rows, and of their input, which nobody splits: in times of an FP8 group.
_PLAIN_COST, _PLAIN_INPUT_COST = 1.2, 1.0
_SHORT = 8 * WARPS * LANES  # columns of an input that the kernel for any input takes unsplit
_RESERVED_BYTES = 1024  # of a block's shared memory, by the driver
# Of a multiprocessor's memory a wide product takes more than half, so that no two blocks of one
# share a multiprocessor, but leaves room for a narrow one, which comes before or after it.
_WIDE_BYTES = 135168


class Product(ctypes.Structure):
    """See product.cu."""

    _fields_ = (
        ("x", ctypes.c_void_p), ("gain", ctypes.c_void_p), ("codes", ctypes.c_void_p),
        ("scale", ctypes.c_void_p), ("plain", ctypes.c_void_p), *SPLIT_FIELDS,
        ("y", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64), ("y_stride", ctypes.c_int64),
        ("rows8", ctypes.c_int), ("plain_rows", ctypes.c_int), ("columns", ctypes.c_int),
        ("parts", ctypes.c_int), ("programs8", ctypes.c_int),
        ("programs_plain", ctypes.c_int), ("stages", ctypes.c_int), ("input", ctypes.c_int),
        ("square_count", ctypes.c_int), ("eps", ctypes.c_float),
    )  # fmt: skip


class Route(ctypes.Structure):
    """See route.cuh."""

    _fields_ = (
        ("logits", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p), ("x", ctypes.c_void_p), ("gain", ctypes.c_void_p),
        ("payload", ctypes.c_void_p),
        ("sequence", ctypes.c_void_p), ("flags", ctypes.c_void_p),
        ("layer", ctypes.c_int), ("experts", ctypes.c_int), ("groups", ctypes.c_int),
        ("chosen", ctypes.c_int), ("top_k", ctypes.c_int), ("normalise", ctypes.c_int),
        ("size", ctypes.c_int), ("payload_bf16", ctypes.c_int), ("scaling", ctypes.c_float),
        ("eps", ctypes.c_float),
    )  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """How a product is cut: programs of each part, see product.cu."""

    programs8: int
    programs_plain: int
    columns: int  # of a part, in whole chunks
    stages: int
    shared_bytes: int


def streams(matrix: Matrix, parts: int = 1) -> Kernels | None:
    """The kernels, if product.cu takes this matrix in so many parts; nothing else decides it."""
    kernels = compiled(matrix.codes.device)
    if kernels is None or matrix.columns % 16 or not matrix.rows:
        return None
    if matrix.plain.shape[0] and matrix.plain.dtype != torch.bfloat16:
        return None
    if (matrix.codes.data_ptr() | matrix.plain.data_ptr()) % 16:
        return None
    return kernels if _cut(kernels, *_sizes(matrix), 1, parts, False) else None


def column_parts(columns: int) -> int:
    """How many partial sums `multiply` writes best for a matrix of so many columns."""
    return -(-columns // _PART_COLUMNS_MAX)


def multiply(
    kernels: Kernels,
    x: torch.Tensor,
    matrix: Matrix,
    y: torch.Tensor,
    prologue: str,
    gain: torch.Tensor | None,
    eps: float,
    *,
    parts: int = 1,
    wide: bool = False,
    route: Route | None = None,
    split: SplitRows | None = None,
) -> None:
    """y [M, N] of one or two rows x, or y [M, parts, N]: sums over parts of the columns.

    A `wide` product should not follow another one. With `route`, for one row only, one more block
    does what it says. `split`: x (times the norm's gain), split by its maker; x is needed all the
    same.
    """
    rows = x.shape[0]
    cut = _cut(kernels, *_sizes(matrix), rows, parts, wide)
    if cut is None:  # two rows of x that shared memory does not hold
        for row in range(rows):
            one = slice(row, row + 1)
            multiply(
                kernels, x[one], matrix, y[one], prologue, gain, eps, parts=parts, wide=wide,
                split=split.part(row, row + 1) if split else None,
            )  # fmt: skip
        return
    if x.data_ptr() % 16 or x.stride(0) % 4:
        x = x.clone(memory_format=torch.contiguous_format)
    product = Product(
        x.data_ptr(), gain.data_ptr() if gain is not None else None, matrix.codes.data_ptr(),
        matrix.scale.data_ptr(), matrix.plain.data_ptr(),
        *(split.pointers() if split else NO_SPLIT),
        y.data_ptr(), x.stride(0), y.stride(0), *_sizes(matrix), parts, cut.programs8,
        cut.programs_plain, cut.stages, _INPUTS[prologue],
        split.squares.shape[1] if split and prologue == "norm" else 0, eps,
    )  # fmt: skip
    kind = "any" if split is not None or cut.columns <= _SHORT else prologue
    programs = parts * (cut.programs8 + cut.programs_plain) + (route is not None)
    kernels.launch(
        "product.cu", f"product_{rows}_{kind}", programs, WARPS * LANES, cut.shared_bytes,
        [product, route or Route()],
    )  # fmt: skip


def _sizes(matrix: Matrix) -> tuple[int, int, int]:
    return matrix.codes.shape[0], matrix.plain.shape[0], matrix.columns


@cache
def _cut(
    kernels: Kernels, rows8: int, plain: int, columns: int, x_rows: int, parts: int, wide: bool
) -> Cut | None:
    """The cut for these sizes, or None if the input leaves no room for rings."""
    groups8, groups_plain = -(-rows8 // _CODES_ROWS), -(-plain // _PLAIN_ROWS)
    per_part = max(2, (kernels.multiprocessors - 1) // parts)  # one is left for a block beside
    programs_plain = _programs_plain(per_part, groups8, groups_plain)
    programs8 = min(per_part - programs_plain, groups8)
    chunks = (columns + CHUNK * parts - 1) // (CHUNK * parts)
    if rows8 and chunks * CHUNK > _CODES_COLUMNS_MAX:
        return None
    scale_rows = 0
    if rows8:
        scale_rows = min(-(-rows8 // BLOCK), -(-groups8 // programs8) * _CODES_ROWS // BLOCK + 2)
    x_bytes = chunks * CHUNK * x_rows * (_CODES_X_BYTES if rows8 else _PLAIN_X_BYTES)
    fixed = x_bytes + 4 * WARPS * (x_rows * (2 * _CODES_ROWS + 1) + 2)
    fixed += 8 * (scale_rows + x_rows) * chunks + 16
    whole = kernels.shared_per_multiprocessor - 2 * _RESERVED_BYTES
    narrow = whole - _WIDE_BYTES
    wide = wide and narrow > 0
    budgets = [_WIDE_BYTES if wide else narrow, kernels.shared_per_block]
    rings = [(budget, stages) for budget in budgets for stages in _STAGES]
    if x_rows > 1:
        rings.append((kernels.shared_per_block, _STAGES_LEAST))
    for budget, stages in rings:
        size = fixed + stages * WARPS * TILE
        if size <= budget:
            least = _WIDE_BYTES if wide else 0
            return Cut(programs8, programs_plain, chunks * CHUNK, stages, max(size, least))
    return None


def _programs_plain(programs: int, groups8: int, groups_plain: int) -> int:
    """How many of so many programs have the plain rows, so that the last one ends soonest."""
    if not groups8 or not groups_plain:
        return min(programs, groups_plain)

    def slowest(plain: int) -> tuple[float, int]:
        longest8 = -(-groups8 // (programs - plain))
        longest = _PLAIN_COST * -(-groups_plain // plain) + _PLAIN_INPUT_COST
        return max(longest8, longest), plain

    return min(range(1, min(programs, groups_plain + 1)), key=slowest)
