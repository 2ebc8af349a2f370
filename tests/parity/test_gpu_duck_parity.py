"""ducklet on the card with process ducks on the same machine answers token for token as the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from parity_fleet import answer, reference, remote_fleet

from duckctl.model_dir import resolve_model_dir
from host_runtime.engine import Engine

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="no CUDA device (or no triton): nvidia-smi shows none",
)


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("ducks", [2, 4])
def test_parity_of_card_and_ducks(tmp_path: Path, ducks: int) -> None:
    from host_runtime.cuda.loading import load_gpu_model

    model, _ = load_gpu_model(
        resolve_model_dir("ducklet"),
        routed_experts="remote",
        positions=2048,
        cache_dtype=torch.float32,
    )
    try:
        with remote_fleet(tmp_path, ducks, "fp9") as experts:
            for mtp in (True, False):
                engine = Engine(model, experts, mtp=mtp)  # type: ignore[arg-type]
                for prompt in reference():
                    tokens, finished = answer(engine, prompt)
                    assert finished.error is None, (prompt["name"], finished.error)
                    assert tokens == prompt["greedy_ids"], prompt["name"]
                    counts = (finished.stats.drafts_proposed, finished.stats.drafts_accepted)
                    wanted = (prompt["mtp1_proposed"], prompt["mtp1_accepted"]) if mtp else (0, 0)
                    assert counts == wanted, prompt["name"]
    finally:
        model.close()
