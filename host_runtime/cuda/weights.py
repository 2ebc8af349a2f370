"""Weights in the form of the Triton operations: FP8 stays FP8, everything else as it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from host_runtime.config import FP8_BLOCK
from host_runtime.cuda.parts import Part
from host_runtime.errors import WeightsError
from host_runtime.ops.matrix import Matrix
from host_runtime.weights import Checkpoint, WeightSource
from host_runtime.weights.source import SCALE_SUFFIX, row_slices


class GpuWeights(Protocol):
    """Where the model's tensors come from: a checkpoint, or random numbers for benchmarks."""

    device: torch.device

    def fused(self, parts: Sequence[Part], columns: int) -> tuple[Matrix, list[int]]:
        """All parts as one matrix (FP8 ones first, in order), and where each begins in it."""
        ...

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns] unquantised, as stored."""
        ...

    def vector(self, name: str, size: int) -> torch.Tensor:
        """[size] float32."""
        ...


class CheckpointWeights(WeightSource):
    """GpuWeights of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, *, fp8: bool) -> None:
        super().__init__(checkpoint, device, fp8=fp8)

    def fused(self, parts: Sequence[Part], columns: int) -> tuple[Matrix, list[int]]:
        """See GpuWeights. FP8 parts that end within a scale block are filled up with zero rows."""
        codes: list[torch.Tensor] = []
        scales: list[torch.Tensor] = []
        plain: list[torch.Tensor] = []
        at: list[tuple[bool, int]] = []
        for part in parts:
            entry = self._take(part.name, (part.rows, columns), ("F8_E4M3", "BF16", "F32"))
            stored = self._stored(part.name)
            if entry.dtype == "F8_E4M3":
                grid = (-(-part.rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
                scale_name = part.name + SCALE_SUFFIX
                scale_entry = self._take(scale_name, grid, ("F32", "BF16"))
                scale = self._finite(scale_entry, self._stored(scale_name).float())
                self._finite(entry, stored)
                _fill_block(codes)
                at.append((True, sum(len(code) for code in codes)))
                codes.append(stored.view(torch.uint8))
                scales.append(scale)
            else:
                at.append((False, sum(len(rows) for rows in plain)))
                plain.append(self._finite(entry, stored))
        matrix = join_parts(codes, scales, plain, columns, self.device)
        first_plain = matrix.codes.shape[0]
        return matrix, [begin if is_fp8 else first_plain + begin for is_fp8, begin in at]

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See GpuWeights; FP8 is refused."""
        entry = self._take(name, (rows, columns), ("BF16", "F32"))
        return self._finite(entry, self._stored(name))


def join_parts(
    codes: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    columns: int,
    device: torch.device,
) -> Matrix:
    """One Matrix of FP8 parts (each but the last a whole number of blocks) and plain parts."""
    if len({rows.dtype for rows in plain}) > 1:
        plain = [rows.float() for rows in plain]
    return Matrix(
        _joined(codes) if codes else torch.empty(0, columns, dtype=torch.uint8).to(device),
        _joined(scales) if scales else torch.zeros(1, 1, device=device),
        _joined(plain) if plain else torch.empty(0, columns, dtype=torch.bfloat16).to(device),
    )


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One part is not copied: of the head there is no room for two."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """torch.equal, with memory for a few rows besides."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pairs = zip(row_slices(one), row_slices(other), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def same_matrix(one: Matrix, other: Matrix) -> bool:
    """Whether both have the same rows, as `same_values`."""
    return (
        same_values(one.codes, other.codes)
        and same_values(one.scale, other.scale)
        and same_values(one.plain, other.plain)
    )


def _fill_block(codes: list[torch.Tensor]) -> None:
    """Zero rows behind the last part, so that the next one starts a block of scales."""
    if codes and len(codes[-1]) % FP8_BLOCK:
        missing = -len(codes[-1]) % FP8_BLOCK
        codes.append(codes[-1].new_zeros(missing, codes[-1].shape[1]))


class RandomWeights:
    """GpuWeights of any configuration, made on the card: for benchmarks of the full size.

    Variances are those of a trained model roughly: outputs stay near 1, so nothing overflows.
    """

    def __init__(self, device: torch.device, seed: int = 1) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def fused(self, parts: Sequence[Part], columns: int) -> tuple[Matrix, list[int]]:
        """See GpuWeights: router, indexer weights, embedding and head are bf16, the rest FP8."""
        codes, scales, plain = [], [], []
        for part in parts:
            if is_unquantised(part.name):
                plain.append(self.table(part.name, part.rows, columns))
                continue
            raw = torch.randint(
                0, 256, (part.rows, columns), dtype=torch.uint8, device=self.device,
                generator=self._generator,
            )  # fmt: skip
            raw = raw & 0xB7  # below 1 in size: neither NaN nor a few huge values
            grid = (-(-part.rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
            scale = torch.rand(grid, device=self.device, generator=self._generator) + 0.5
            codes.append(raw)
            scales.append(scale * 4 / columns**0.5)
        starts, row = [], 0
        first_plain = sum(len(code) for code in codes)
        for part in parts:
            plain_part = is_unquantised(part.name)
            starts.append(first_plain if plain_part else row)
            first_plain += part.rows if plain_part else 0
            row += 0 if plain_part else part.rows
        if any(len(code) % FP8_BLOCK for code in codes[:-1]):
            raise WeightsError("random weights need parts of whole blocks")
        return join_parts(codes, scales, plain, columns, self.device), starts

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See GpuWeights."""
        values = torch.empty(rows, columns, dtype=torch.bfloat16, device=self.device)
        return values.normal_(0, columns**-0.5, generator=self._generator)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Gains near 1, biases near 0."""
        values = torch.rand(size, device=self.device, generator=self._generator) * 0.2
        return values if "bias" in name else values + 0.9


def is_unquantised(name: str) -> bool:
    """True for the matrices that DeepSeek-V3.2 stores in bf16."""
    kinds = ("mlp.gate.weight", "weights_proj", "eh_proj", "embed_tokens", "head")
    return any(kind in name for kind in kinds)
