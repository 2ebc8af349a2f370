"""A conversion keeps its memory limit, however large the checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest
from shard_helpers import MakeCheckpoint, equal_plan_of, run_child
from synthetic_checkpoint import CheckpointSpec

from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.errors import PlanError
from duckctl.shards.pipeline import RESERVE_BYTES, make_budget

# 32 experts x 3 matrices x 1.5 MiB x 2 layers: 302 MB of experts, and as much cache.
LARGE = CheckpointSpec(
    model_type="qwen3_moe", hidden=2048, moe=768, experts=32, layers=2, dense=0, mtp=0,
    file_bytes_max=64 << 20,
)  # fmt: skip
SMALL = CheckpointSpec(model_type="qwen3_moe", dense=0, mtp=0, layers=1)


def peak_bytes(model_dir: Path, cache_dir: Path, limit_bytes: int) -> int:
    run = run_child(model_dir, "fp9", 24, cache_dir, "--memory-limit", str(limit_bytes))
    assert run.returncode == 0, run.stderr
    return int(run.stdout.split()[3])


@pytest.mark.slow
def test_peak_memory_stays_below_the_limit(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    model_dir = make_checkpoint(LARGE)
    checkpoint = open_checkpoint(model_dir)
    assert checkpoint.expert_bytes > 300_000_000
    limit = RESERVE_BYTES + (60 << 20)
    budget = make_budget(checkpoint, equal_plan_of(model_dir, "fp9", 24), 2, limit)
    assert RESERVE_BYTES < budget.memory_bytes <= limit
    found = peak_bytes(model_dir, tmp_path, limit)
    assert found <= limit
    # The reserve is for large checkpoints; beyond it, this run holds what the budget says.
    assert found <= 120_000_000 + budget.memory_bytes - RESERVE_BYTES


def test_a_budget_spends_the_limit_on_threads_and_batches(make_checkpoint: MakeCheckpoint) -> None:
    model_dir = make_checkpoint(LARGE)
    checkpoint = open_checkpoint(model_dir)
    plan = equal_plan_of(model_dir, "fp9", 24)
    previous = 0
    for megabytes in (420, 450, 500, 800, 8000):
        budget = make_budget(checkpoint, plan, 16, megabytes << 20)
        assert budget.memory_bytes <= megabytes << 20
        assert budget.threads >= 1
        assert budget.batch_experts >= 1
        assert budget.memory_bytes >= previous
        previous = budget.memory_bytes
    with pytest.raises(PlanError, match="--memory-limit 400 MiB is too small"):
        make_budget(checkpoint, plan, 16, 400 << 20)
