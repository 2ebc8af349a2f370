"""Whole steps at DeepSeek-V3.2's sizes, six layers of it: what a kernel reads before the kernels
before it have ended must not be what they write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import replace_compiled
from gpu_kit import needs_cuda, relative_error

pytestmark = needs_cuda
POSITIONS = 2112
# bf16 caches and weights of attention: rounded differently where sums run in another order
BF16_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Done:
    """A call that was answered when it was made."""

    result: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.result


class HalvingExperts:
    """Answers with half of the hidden states."""

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> Done:
        return Done(hidden * 0.5)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    from host_runtime.bench.full_size import GENERATION, full_size
    from host_runtime.bench.steps import fill_caches
    from host_runtime.cuda.model import GpuModel
    from host_runtime.cuda.weights import RandomWeights

    gpu = GpuModel(
        full_size("deepseek-v3.2", 6), GENERATION, RandomWeights(torch.device("cuda", 0)),
        positions=POSITIONS, cache_dtype=torch.bfloat16,
    )  # fmt: skip
    fill_caches(gpu)
    yield gpu, gpu.new_cache(POSITIONS)
    gpu.close()


def decode(gpu: Any, cache: Any, length: int, tokens: list[int]) -> torch.Tensor:
    """Hidden states of tokens behind the first `length` rows of the cache."""
    cache.length = length
    found: torch.Tensor = gpu.forward(torch.tensor(tokens), cache, HalvingExperts())
    return found.clone()


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 2046, 2047, 2100], ids=str)
def test_a_draft_sees_the_token_before_it(model: Any, length: int) -> None:
    """A token and a draft in two lanes give the bits of one after the other."""
    gpu, cache = model
    for seed in range(3):
        tokens = torch.randint(2, 129280, (2,), generator=torch.Generator().manual_seed(seed))
        first, second = tokens.tolist()
        together = decode(gpu, cache, length, [first, second])
        rows = [
            decode(gpu, cache, length + number, [token])
            for number, token in enumerate((first, second))
        ]
        assert together.isfinite().all()
        assert torch.equal(together, torch.cat(rows))


def test_steps_repeat_bit_by_bit(model: Any) -> None:
    """Fifty runs of one step: nothing depends on which kernel is early."""
    gpu, cache = model
    wanted = decode(gpu, cache, 1500, [17])
    for _ in range(50):
        assert torch.equal(decode(gpu, cache, 1500, [17]), wanted)


@pytest.mark.parametrize("length", [5, 700, 2100], ids=str)
def test_compiled_and_triton_kernels_agree(
    model: Any, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, cache = model
    wanted = decode(gpu, cache, length, [17, 4711])
    graphs = dict(gpu._graphs)
    replace_compiled(monkeypatch, None)
    gpu._graphs.clear()
    try:
        found = decode(gpu, cache, length, [17, 4711])
    finally:
        gpu._graphs.clear()
        gpu._graphs.update(graphs)
    assert relative_error(found, wanted) < BF16_TOLERANCE


def test_a_trace_shows_one_step_of_card_and_ducks(model: Any, tmp_path: Path) -> None:
    """One launch for all layers, and the calls of that step alone, within the card's time."""
    from duckctl.native import native_path
    from host_runtime.bench.echo import EchoDucks
    from host_runtime.bench.trace import DUCKS_SHOWN, op_times, write_trace

    gpu, _ = model
    assert op_times(gpu, 2047)["cpu_launches"] == 1
    ducks = EchoDucks(native_path("libduckecho.so"), gpu.lanes)
    try:
        found = write_trace(gpu, ducks, 2047, tmp_path / "step.json")
    finally:
        ducks.close()
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    experts = [event for event in events if event.get("cat") == "experts"]
    calls = 2 * (gpu.config.num_hidden_layers - gpu.config.first_k_dense_replace)
    assert (found["calls"], found["kernels"]) == (calls, len(kernels))
    assert len(experts) == calls * (2 + DUCKS_SHOWN)
    begin = min(event["ts"] for event in kernels)
    end = max(event["ts"] + event["dur"] for event in kernels)
    assert all(begin < event["ts"] < end for event in experts)
    launches = [event["name"] for event in events if "aunch" in str(event.get("name"))]
    assert launches == ["cudaGraphLaunch"]
