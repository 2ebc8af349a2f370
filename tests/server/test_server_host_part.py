"""The host's part goes where the run file says; what does not fit or is not there is named."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from duckctl.model_dir import resolve_model_dir
from host_runtime.config import load_config
from host_runtime.cuda.capability import GpuCapability, GpuUnavailableError
from host_runtime.cuda.host_file import INDEX_NAME, SCHEMA_VERSION
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.server import host_part
from host_runtime.server.errors import StartupError
from host_runtime.server.host_part import CacheRoom, cache_room, load_host_part
from host_runtime.server.run_config import RunConfig

no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA card")


def run_config(**changes: object) -> RunConfig:
    base = RunConfig(
        schema_version=1,
        model_dir=resolve_model_dir("ducklet"),
        model_name="ducklet",
        experts="remote",
        max_context=64,
    )
    return base.model_copy(update=changes)


@no_card
def test_auto_without_a_card_runs_on_the_cpu_and_tells_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    host = load_host_part(run_config(device="auto"))
    assert host.model.device.type == "cpu"
    assert (host.max_context, host.max_active) == (64, 4)
    assert "on the CPU: " in capsys.readouterr().err
    host.close()


@no_card
def test_cuda_without_a_card_is_refused_with_a_way_out() -> None:
    with pytest.raises(GpuUnavailableError) as caught:
        load_host_part(run_config(device="cuda"))
    assert "device cpu" in caught.value.hint


def test_host_weights_need_a_card(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="only be loaded onto a card"):
        load_host_part(run_config(device="cpu", host_weights=tmp_path))


@pytest.mark.parametrize("more_bytes", [0, 100_000_000])
def test_cache_rows_are_those_that_fit_beside_the_exported_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_bytes: int
) -> None:
    """Its own size counts, which may be more than the configuration says."""
    config = load_config(resolve_model_dir("ducklet"))
    plan = plan_memory(config, 64, 2)
    weights = plan.weights_bytes + more_bytes
    folder = tmp_path / "host"
    folder.mkdir()
    index = {"schema_version": SCHEMA_VERSION, "model_sha256": "", "sha256": "", "bytes": weights}
    index |= {"arrays": {}, "arrays_sha256": hashlib.sha256(b"{}").hexdigest()}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    free = plan.total_bytes + 50_000_000
    card = GpuCapability("a card", (9, 0), free, free, native_fp8=True, early_launch=True)
    asked: list[int] = []

    def load(model_dir: Path, *, positions: int, **_: object) -> tuple[object, None]:
        asked.append(positions)
        return SimpleNamespace(close=lambda: None), None

    monkeypatch.setattr(host_part, "check_gpu", lambda: card)
    monkeypatch.setitem(
        sys.modules, "host_runtime.cuda.loading", SimpleNamespace(load_gpu_model=load)
    )
    run = run_config(device="cuda", host_weights=folder)
    if more_bytes:
        with pytest.raises(GpuUnavailableError, match="does not fit"):
            load_host_part(run)
        assert asked == []
    else:
        load_host_part(run)
        assert asked == [4 * 64]


@pytest.mark.parametrize(
    ("fitting", "wanted", "room"),
    [
        (100_000, 4096, CacheRoom(4096, 4)),  # more than four is never asked of the engine
        (12_287, 4096, CacheRoom(4096, 2)),
        (4096, 4096, CacheRoom(4096, 1)),
        (4095, 4096, CacheRoom(4095, 1)),
    ],
)
def test_cache_rows_are_shared_among_sequences(fitting: int, wanted: int, room: CacheRoom) -> None:
    assert cache_room(fitting, wanted) == room
