"""Short ways to plan and convert, shared by the shard tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import convert_child
from synthetic_checkpoint import CheckpointSpec

import duckctl
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.convert import ConvertOptions, ConvertResult, convert
from duckctl.shards.manifest import JOURNAL_NAME, LOCK_NAME
from duckctl.shards.plan import DuckSpec, ShardPlan, equal_plan
from duckctl.shards.progress import SilentReporter
from duckctl.shards.store import file_sha256

MakeCheckpoint = Callable[[CheckpointSpec], Path]


def duck_specs(count: int) -> list[DuckSpec]:
    return [DuckSpec(f"d{index:02d}") for index in range(count)]


def equal_plan_of(model_dir: Path, fmt: str, count: int) -> ShardPlan:
    return equal_plan(open_checkpoint(model_dir).shape, fmt, duck_specs(count))


def convert_plan(model_dir: Path, plan: ShardPlan, cache_dir: Path) -> ConvertResult:
    return convert(
        open_checkpoint(model_dir), plan, cache_dir, ConvertOptions(threads=2), SilentReporter()
    )


def convert_equal(model_dir: Path, fmt: str, count: int, cache_dir: Path) -> ConvertResult:
    return convert_plan(model_dir, equal_plan_of(model_dir, fmt, count), cache_dir)


def child_command(model_dir: Path, fmt: str, count: int, cache_dir: Path, *more: str) -> list[str]:
    """Command line of a conversion in a process of its own."""
    script = Path(convert_child.__file__)
    return [sys.executable, str(script), str(model_dir), str(cache_dir), fmt, str(count), *more]


def child_environment() -> dict[str, str]:
    root = Path(duckctl.__file__).parents[1]
    tools = Path(__file__).parents[1] / "tools"
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(root), str(tools)))}


def run_child(
    model_dir: Path, fmt: str, count: int, cache_dir: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        child_command(model_dir, fmt, count, cache_dir, *more),
        env=child_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def digests_below(cache_dir: Path) -> dict[str, str]:
    """Every file of the caches but lock and journal, with its digest."""
    return {
        str(path.relative_to(cache_dir)): file_sha256(path)
        for path in sorted(cache_dir.rglob("*"))
        if path.is_file() and path.name not in (LOCK_NAME, JOURNAL_NAME)
    }
