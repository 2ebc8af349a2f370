"""Loading a checkpoint takes no more of a card than the memory plan says, at any moment."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_kit import HAS_TRITON
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from host_runtime.bench.full_size import GENERATION, full_size
from host_runtime.config import FP8_BLOCK, ModelConfig
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.cuda.parts import Fused, Table, Vector, everything
from host_runtime.cuda.weights import CheckpointWeights, is_unquantised, join_parts, same_values
from host_runtime.errors import WeightsError
from host_runtime.weights import TensorEntry, source
from host_runtime.weights.checkpoint import DTYPES
from host_runtime.weights.source import SCALE_SUFFIX, row_slices

POSITIONS = 64
LAYERS = 4
META = torch.device("meta")  # tensors without bytes


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors without bytes that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return True  # all values are finite
        if call is torch.ops.aten.equal.default and args[0].is_meta:
            self._note(args[0].numel())  # as on a card: one byte for each pair
            return True
        result = call(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, key, None)
            self._note(0)

    def _note(self, more: int) -> None:
        self.peak = max(self.peak, sum(self.live.values()) + more)


def entries_of(config: ModelConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of each tensor of the host's part, as V3.2 stores them."""
    for request in everything(config):
        if isinstance(request, Table):
            yield request.name, "BF16", (request.rows, request.columns)
        elif isinstance(request, Vector):
            yield request.name, "F32", (request.size,)
        else:
            yield from parts_of(request)


def parts_of(request: Fused) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for part in request.parts:
        plain = is_unquantised(part.name)
        yield part.name, "BF16" if plain else "F8_E4M3", (part.rows, request.columns)
        if not plain:
            grid = (-(-part.rows // FP8_BLOCK), -(-request.columns // FP8_BLOCK))
            yield part.name + SCALE_SUFFIX, "F32", grid


def checkpoint_of(config: ModelConfig) -> Any:
    entries = {
        name: TensorEntry(name, Path("model.safetensors"), dtype, shape, 0, 0)
        for name, dtype, shape in entries_of(config)
    }

    def read(name: str) -> torch.Tensor:
        return torch.empty(entries[name].shape, dtype=DTYPES[entries[name].dtype], device=META)

    return SimpleNamespace(entries=entries, read=read)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
def test_a_checkpoint_is_loaded_within_the_plans_weights_and_workspace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V3.2's sizes, with the MTP module's copies of embedding and head, which go again."""
    from host_runtime.cuda.model import GpuModel

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    config = full_size("deepseek-v3.2", LAYERS)
    weights = CheckpointWeights(checkpoint_of(config), META, fp8=True)
    with Ledger() as ledger:
        model = GpuModel(
            config, GENERATION, weights, positions=POSITIONS, cache_dtype=torch.bfloat16
        )
    model.close()
    plan = plan_memory(config, POSITIONS, 2)
    assert plan.weights_bytes < ledger.peak  # the ledger sees what is loaded
    assert ledger.peak <= plan.total_bytes


def test_rows_are_checked_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN is found in each row of FP8, bf16 and float32 matrices, and in vectors."""
    monkeypatch.setattr(source, "_SLICE_BYTES", 64)
    nothing: Any = SimpleNamespace(entries={})
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float32):
        weights = CheckpointWeights(nothing, torch.device("cpu"), fp8=True)
        entry = TensorEntry("w", Path("file"), "F32", (9, 16), 0, 0)
        good = torch.ones(9, 16)
        assert next(len(rows) for rows in row_slices(good.to(dtype))) == 4 // dtype.itemsize
        assert torch.equal(torch.cat(list(row_slices(good))), good)
        assert weights._finite(entry, good.to(dtype)).dtype == dtype
        for row in range(9):
            bad = good.clone()
            bad[row, 15 - row] = torch.nan
            with pytest.raises(WeightsError, match="w has NaN"):
                weights._finite(entry, bad.to(dtype))
            assert not same_values(good, bad.nan_to_num(2.0))
    assert same_values(good, good.clone())
    assert not same_values(good, good.bfloat16())
    assert next(iter(row_slices(torch.empty(0, 5)))).shape == (0, 5)


def test_a_matrix_of_one_part_is_not_copied() -> None:
    codes, scale = torch.zeros(128, 256, dtype=torch.uint8), torch.ones(1, 2)
    plain = torch.ones(3, 256, dtype=torch.bfloat16)
    matrix = join_parts([codes], [scale], [plain], 256, torch.device("cpu"))
    for mine, given in ((matrix.codes, codes), (matrix.scale, scale), (matrix.plain, plain)):
        assert mine is given
