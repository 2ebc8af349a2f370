"""Cards, memory and cache rows are checked with named errors; emulated ducks keep their times."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_kit import HAS_CUDA, HAS_TRITON

from duckctl.native import native_path
from host_runtime.bench.echo import EchoDucks
from host_runtime.bench.full_size import full_size
from host_runtime.config import load_config
from host_runtime.cuda.capability import (
    GpuCapability,
    GpuUnavailableError,
    check_capability,
    check_gpu,
)
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.cuda.pool import CachePool
from host_runtime.errors import HostError
from host_runtime.ops.gpu.compiled import SETTING, compiled
from host_runtime.weights import Checkpoint

DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"


@pytest.mark.skipif(HAS_CUDA, reason="this machine has a CUDA card")
def test_no_card_is_named_with_a_way_out() -> None:
    with pytest.raises(GpuUnavailableError, match="CUDA") as caught:
        check_gpu()
    assert "device cpu" in caught.value.hint


@pytest.mark.parametrize("capability", [(6, 1), (7, 5)])
def test_old_cards_are_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(GpuUnavailableError, match=f"{capability[0]}.{capability[1]}"):
        check_capability("old card", capability)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_recent_cards_are_accepted(capability: tuple[int, int]) -> None:
    check_capability("recent card", capability)


@pytest.mark.parametrize("value", ["", "cuda ", "none"])
def test_unknown_kernels_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SETTING, value)
    with pytest.raises(HostError, match=f"{SETTING} is '{value}', expected cuda or triton"):
        compiled.__wrapped__(torch.device("cpu"))


def test_compiled_kernels_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "triton")
    assert compiled.__wrapped__(torch.device("cuda")) is None  # before the card is looked for


def test_full_size_plan_has_known_sizes() -> None:
    plan = plan_memory(full_size("deepseek-v3.2"), 1024, 2)
    # 61 layers and MTP: 704 elements of two bytes a position and layer, and the rotation table;
    # one layer's rows in float32, which a prompt chunk makes
    assert plan.cache_bytes == 1024 * (704 * 2 * 62 + 256 + 704 * 4)
    assert 19e9 < plan.weights_bytes < 21.5e9
    plan.require(plan.total_bytes)
    with pytest.raises(GpuUnavailableError, match="does not fit") as caught:
        plan.require(plan.total_bytes - 1)
    assert "1023 positions would fit" in caught.value.hint
    with pytest.raises(GpuUnavailableError) as caught:
        plan.require(8 << 30)
    assert "more memory" in caught.value.hint


@pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
@pytest.mark.parametrize("exported", [True, False], ids=["export", "checkpoint"])
def test_a_card_that_runs_out_while_loading_is_named_with_numbers(
    exported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from host_runtime.cuda import loading

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    card = GpuCapability("a card", (9, 0), 1 << 35, 1 << 35, native_fp8=True, early_launch=True)
    monkeypatch.setattr(loading, "check_gpu", lambda: card)
    monkeypatch.setattr(loading, "host_file_bytes", lambda folder: 3 << 30)
    monkeypatch.setattr(loading, "HostFileWeights", full)
    monkeypatch.setattr(loading, "GpuModel", full)
    folder = tmp_path if exported else None
    words = r"ran out of memory while .* free were 32\.00 GiB"
    with pytest.raises(GpuUnavailableError, match=words) as caught:
        loading.load_gpu_model(DUCKLET, routed_experts="remote", positions=64, host_weights=folder)
    assert ("weights 3.00 GiB" in caught.value.message) == exported
    assert "max_context" in caught.value.hint


def test_a_long_prompts_scores_are_made_in_blocks_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The indexer's products of a block of rows with all positions; values do not depend on it."""
    from host_runtime.cuda import layer as module
    from host_runtime.cuda.pool import LayerCaches
    from host_runtime.cuda.weights import CheckpointWeights
    from host_runtime.ops import index

    config = load_config(DUCKLET)
    source = CheckpointWeights(Checkpoint(DUCKLET), torch.device("cpu"), fp8=config.fp8)
    layer = module.GpuLayer(source, 1, config)
    sizes, rows, end = layer.sizes, 12, 40_000
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    caches = LayerCaches(normal(end, sizes.latent + sizes.rope), normal(end, sizes.index_size))
    query = normal(rows, sizes.heads, sizes.latent + sizes.rope)
    y1, y2 = normal(rows, layer.first.rows), normal(rows, layer.second.rows)
    angle = normal(rows, sizes.rope // 2)
    seen: list[int] = []

    def scores(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.append(4 * q.shape[0] * q.shape[1] * keys.shape[0])
        return index.index_scores(q, keys, weights)

    def mixed(limit: int) -> torch.Tensor:
        seen.clear()
        monkeypatch.setattr(module, "_BLOCK_BYTES_MAX", limit)
        found: torch.Tensor = layer._mix(
            query, y1, y2, caches, end - rows, angle.cos(), angle.sin()
        )
        return found

    monkeypatch.setattr(module, "plain_index_scores", scores)
    whole = mixed(1 << 30)
    assert len(seen) == 1
    limit = seen[0] // 3
    assert limit // (8 * config.index_topk * (sizes.latent + sizes.rope)) > rows // 3
    assert torch.allclose(mixed(limit), whole, rtol=1e-5, atol=1e-6)
    assert seen == [limit] * 3


def test_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HostError, match="gpt-0") as caught:
        full_size("gpt-0")
    assert "deepseek-v3.2" in caught.value.hint


def test_cache_rows_are_given_out_once_and_come_back() -> None:
    pool = CachePool(
        full_size("deepseek-v3.2"), [], positions=100, dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )  # fmt: skip
    first, second = pool.reserve(40), pool.reserve(40)
    assert (first.base, second.base) == (0, 40)
    with pytest.raises(HostError, match="80 of 100"):
        pool.reserve(30)
    del first
    gc.collect()
    third = pool.reserve(30)
    assert third.base == 0
    third.length, third.mtp_length = 10, 9
    third.truncate(8)
    assert (third.length, third.mtp_length) == (8, 8)
    with pytest.raises(ValueError, match="31 positions do not fit"):
        third.require(31)


def test_slots_keep_room_for_whole_sequences() -> None:
    pool = CachePool(
        full_size("deepseek-v3.2"), [], positions=100, dtype=torch.bfloat16,
        device=torch.device("cpu"), slot=50,
    )  # fmt: skip
    first, second = pool.reserve(10), pool.reserve(50)
    assert (first.base, second.base) == (0, 50)
    del first
    gc.collect()
    assert pool.reserve(50).base == 0  # without slots the second would lie at 10 to 59


def test_emulated_ducks_answer_in_turn() -> None:
    library = native_path("libduckecho.so")
    if not Path(library).exists():
        pytest.skip("libduckecho.so is not built")
    lanes: list[Any] = [
        SimpleNamespace(mailbox=SimpleNamespace(flags=torch.zeros(32, dtype=torch.int32)))
        for _ in range(2)
    ]
    ducks = EchoDucks(Path(library), lanes)
    try:
        ducks.set(2_000_000, 1_000_000)
        for number, lane in enumerate(lanes):
            lane.mailbox.flags[1] = 7 + number
            lane.mailbox.flags[0] = 1
        for lane in lanes:
            word = ctypes.c_int32.from_address(lane.mailbox.flags.data_ptr() + 64)
            for _ in range(50_000_000):
                if word.value == 1:
                    break
            assert word.value == 1
        early, late = sorted(ducks.events(), key=lambda event: event.start_ns)
    finally:
        ducks.close()
    assert {early.layer, late.layer} == {7, 8}
    assert early.end_ns - early.start_ns == 2_000_000
    assert late.start_ns >= early.end_ns  # one set of ducks: the second call queues
    assert late.answered_ns >= late.end_ns + 500_000
