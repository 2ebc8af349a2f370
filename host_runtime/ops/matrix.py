"""A matrix in two parts, as the GPU operations read it; needs no GPU itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Matrix:
    """Rows of FP8 codes with block scales, then rows of plain weights; either part may be empty.

    codes uint8 [N8, K] with scale float32 [ceil(N8/128), ceil(K/128)]; plain bf16 or float32
    [NP, K]. Both parts see the same input and write one output [M, N8 + NP].
    """

    codes: torch.Tensor
    scale: torch.Tensor
    plain: torch.Tensor

    @property
    def rows(self) -> int:
        return self.codes.shape[0] + self.plain.shape[0]

    @property
    def columns(self) -> int:
        return self.codes.shape[1]

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scale, self.plain))
