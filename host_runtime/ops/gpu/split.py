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
class SplitRow:
    """A row of `columns` values in three halves each.

    pieces uint8 [6 columns], scales float32 [columns / 128]; squares float32 [columns / 128] add up
    to the sum of squares of the row before its norm's gain (of a row that is not normed: unused).
    """

    pieces: torch.Tensor
    scales: torch.Tensor
    squares: torch.Tensor

    def pointers(self) -> tuple[int, int, int]:
        """Addresses of the three, in the order of the kernels' structures."""
        return self.pieces.data_ptr(), self.scales.data_ptr(), self.squares.data_ptr()


NO_SPLIT: tuple[None, None, None] = (None, None, None)
SPLIT_FIELDS = (
    ("pieces", ctypes.c_void_p), ("piece_scales", ctypes.c_void_p), ("squares", ctypes.c_void_p),
)  # fmt: skip


def split_row(columns: int, device: torch.device) -> SplitRow | None:
    """Room for a row, or None where no kernel splits one of this length."""
    if columns % _CHUNK or compiled(device) is None:
        return None
    return SplitRow(
        torch.zeros(columns * _BYTES_OF_ONE, dtype=torch.uint8, device=device),
        torch.zeros(columns // _BLOCK, device=device),
        torch.zeros(columns // _BLOCK, device=device),
    )
