"""Inputs of FP8 products that their maker has split into halves (split.cuh).

A product whose input is split already only copies it: the kernel that makes a row splits it once,
where every program of the product would do it again.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from host_runtime.ops.gpu.compiled import compiled

# As in split.cuh.
_CHUNK, _BLOCK, _BYTES_OF_ONE = 256, 128, 6


@dataclass(frozen=True)
class SplitRows:
    """n rows of `columns` values in three halves each.

    pieces uint8 [n, 6 columns], scales float32 [n, columns / 128]; squares float32
    [n, columns / 128] add up to the sum of squares of each row before its norm's gain (of rows that
    are not normed: unused).
    """

    pieces: torch.Tensor
    scales: torch.Tensor
    squares: torch.Tensor

    def part(self, begin: int, end: int) -> SplitRows:
        """Rows `begin` to `end`, in the same memory."""
        return SplitRows(self.pieces[begin:end], self.scales[begin:end], self.squares[begin:end])

    def pointers(self) -> tuple[int, int, int]:
        """Addresses of the three, in the order of the kernels' structures."""
        return self.pieces.data_ptr(), self.scales.data_ptr(), self.squares.data_ptr()


NO_SPLIT: tuple[None, None, None] = (None, None, None)
SPLIT_FIELDS = (
    ("pieces", ctypes.c_void_p), ("piece_scales", ctypes.c_void_p), ("squares", ctypes.c_void_p),
)  # fmt: skip


def split_rows(count: int, columns: int, device: torch.device) -> SplitRows | None:
    """Room for so many rows, or None where no kernel splits one of this length."""
    if columns % _CHUNK or compiled(device) is None:
        return None
    return SplitRows(
        torch.zeros(count, columns * _BYTES_OF_ONE, dtype=torch.uint8, device=device),
        torch.zeros(count, columns // _BLOCK, device=device),
        torch.zeros(count, columns // _BLOCK, device=device),
    )
