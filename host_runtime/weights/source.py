"""Tensors for the layers, as float32, with an account of which tensors of the checkpoint were used.

A layer takes what it needs by name and shape; `finish` raises when anything is left over, so a
checkpoint whose MTP head or indexer is ignored cannot pass for a loaded one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from host_runtime.config import FP8_BLOCK
from host_runtime.errors import WeightsError
from host_runtime.weights.checkpoint import Checkpoint, TensorEntry

SCALE_SUFFIX = "_scale_inv"
_NAMES_SHOWN_MAX = 5
_SLICE_BYTES = 16 << 20  # of rows that are looked at together: checks take memory besides


class WeightSource:
    """Hands out the tensors of `checkpoint` on `device`, each at most once."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, *, fp8: bool) -> None:
        self.checkpoint, self.device, self.fp8 = checkpoint, device, fp8
        self._left = dict(checkpoint.entries)

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns] float32; FP8 with block scales, bf16 and float32 are understood.

        Peak memory beyond the result is the stored tensor: nothing is kept between calls.
        """
        entry = self._take(name, (rows, columns), ("F8_E4M3", "BF16", "F32"))
        if entry.dtype != "F8_E4M3":
            return self._finite(entry, self._stored(name).to(torch.float32))
        if not self.fp8:
            raise WeightsError(
                f"{entry.path}: tensor {name} is FP8, but config.json has no quantization_config"
            )
        scale_name = name + SCALE_SUFFIX
        if scale_name not in self._left:
            raise WeightsError(
                f"{entry.path}: FP8 tensor {name} has no {scale_name}",
                "the checkpoint is incomplete: every FP8 tensor needs its block scales",
            )
        grid = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        scale_entry = self._take(scale_name, grid, ("F32", "BF16"))
        scale = self._finite(scale_entry, self._stored(scale_name).to(torch.float32))
        return self._finite(entry, dequantise(self._stored(name), scale))

    def vector(self, name: str, size: int) -> torch.Tensor:
        """[size] float32 from bf16 or float32."""
        entry = self._take(name, (size,), ("BF16", "F32"))
        return self._finite(entry, self._stored(name).to(torch.float32))

    def leave(self, prefix: str) -> int:
        """Account for the tensors below `prefix` as somebody else's; returns how many there are."""
        names = [name for name in self._left if name.startswith(prefix)]
        for name in names:
            del self._left[name]
        return len(names)

    def finish(self) -> None:
        """Raise WeightsError if a tensor of the checkpoint was neither taken nor left."""
        if not self._left:
            return
        names = sorted(self._left)
        shown = ", ".join(
            f"{name} ({self._left[name].path.name})" for name in names[:_NAMES_SHOWN_MAX]
        )
        more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
        raise WeightsError(
            f"{self.checkpoint.model_dir}: the model does not use {len(names)} tensor(s): "
            f"{shown}{more}",
            "config.json and the weights do not belong together, or this variant is not supported",
        )

    def _take(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> TensorEntry:
        entry = self._left.pop(name, None)
        if entry is None:
            known = self.checkpoint.entries.get(name)
            if known is not None:
                raise WeightsError(f"{known.path}: tensor {name} is asked for twice")
            raise WeightsError(
                f"{self.checkpoint.model_dir}: tensor {name} is missing (expected {list(shape)})",
                "the checkpoint is incomplete or is not the model that config.json describes",
            )
        if entry.shape != shape:
            raise WeightsError(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)}, expected {list(shape)}"
            )
        if entry.dtype not in dtypes:
            raise WeightsError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}, expected "
                f"{' or '.join(dtypes)}"
            )
        return entry

    def _stored(self, name: str) -> torch.Tensor:
        """As stored, on the device: FP8 codes cross the bus, not their float32 values."""
        return self.checkpoint.read(name).to(self.device)

    def _finite(self, entry: TensorEntry, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself; the check takes memory for a few of its rows at a time."""
        slices = (_with_infinities(rows) for rows in row_slices(tensor))
        if not all(bool(torch.isfinite(rows).all()) for rows in slices):
            raise WeightsError(
                f"{entry.path}: tensor {entry.name} has NaN or infinite values",
                "the file is damaged: download it again",
            )
        return tensor


def row_slices(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of [n, ...] that have all rows together, each of at most _SLICE_BYTES or one row."""
    row_bytes = tensor.nbytes // max(1, tensor.shape[0])
    return torch.split(tensor, max(1, _SLICE_BYTES // max(1, row_bytes)))


def _with_infinities(rows: torch.Tensor) -> torch.Tensor:
    """The values in a type that torch.isfinite takes: not FP8."""
    return rows.to(torch.float16) if rows.dtype == torch.float8_e4m3fn else rows


def dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [rows, columns] of E4M3 codes and their block scales.

    codes: float8_e4m3fn [rows, columns]. scale: float32 [ceil(rows/128), ceil(columns/128)], a
    multiplier despite the name weight_scale_inv. The last blocks are cut off, never stretched:
    576 rows have 5 scale rows, of which the last covers 64.
    """
    weight = codes.to(torch.float32)  # [rows, columns]
    columns = codes.shape[1]
    for block, block_scale in enumerate(scale):
        rows = weight[block * FP8_BLOCK : (block + 1) * FP8_BLOCK]
        rows *= block_scale.repeat_interleave(FP8_BLOCK)[:columns]  # one row of blocks at a time
    return weight
