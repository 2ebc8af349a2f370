"""The host's part goes where the run file says; what does not fit or is not there is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from duckctl.model_dir import resolve_model_dir
from host_runtime.cuda.capability import GpuUnavailableError
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
