"""A real fleet on this machine for parity tests: lab ducks, ducklet's shards, the real engine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.model_dir import resolve_model_dir
from duckctl.native import native_path
from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.fleet.config import load_fleet
from host_runtime.models import DeepseekV32, load_model

STEPS_MAX = 10_000


@cache
def reference() -> list[dict[str, Any]]:
    """The prompts of ducklet's reference.json."""
    text = (resolve_model_dir("ducklet") / "reference.json").read_text()
    prompts: list[dict[str, Any]] = json.loads(text)["prompts"]
    return prompts


@cache
def host_model() -> DeepseekV32:
    """ducklet without its routed experts, loaded once per process."""
    torch.set_num_threads(1)
    return load_model(resolve_model_dir("ducklet"), routed_experts="remote").model


def shard(inventory: Path, weight_format: str, cache_dir: Path) -> Path:
    """Run the real shard-weights command; returns the finished cache.json."""
    command = [sys.executable, "-m", "duckctl", "shard-weights", "ducklet", "--json"]
    command += ["--inventory", str(inventory), "--format", weight_format]
    command += ["--cache-dir", str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = sorted(cache_dir.glob("**/cache.json"))
    assert len(found) == 1, found
    return found[0]


@contextlib.contextmanager
def lab_ducks(folder: Path, count: int) -> Iterator[LabFolder]:
    """``count`` duckd processes with their inventory and key."""
    state = LabFolder(folder)
    lab.up(state, LabShape(count, 1, 1, 1500, "block"), tied=True)
    try:
        yield state
    finally:
        lab.down(state)


@contextlib.contextmanager
def remote_fleet(
    folder: Path, ducks: int, weight_format: str, options: RemoteOptions | None = None
) -> Iterator[RemoteExperts]:
    """Ducks started, weights sharded and loaded, sessions open."""
    with lab_ducks(folder / "lab", ducks) as state:
        cache_file = shard(state.inventory, weight_format, folder / "cache")
        fleet_file = folder / "fleet.json"
        write_json(fleet_file, fleet_document(load_inventory(state.inventory)))
        experts = RemoteExperts(
            load_fleet(fleet_file),
            cache_file,
            native_path("experts-avx2.elf"),
            native_path("libduckhost.so"),
            options,
        )
        try:
            experts.start()
            yield experts
        finally:
            experts.close()


def answer(engine: Engine, prompt: dict[str, Any]) -> tuple[list[int], FinishedEvent]:
    """Greedy tokens of one reference prompt, as many as the reference has."""
    params = SamplingParams(max_tokens=len(prompt["greedy_ids"]), ignore_eos=True)
    handle = engine.submit(prompt["prompt_ids"], params)
    for _ in range(STEPS_MAX):
        if not engine.step():
            break
    *tokens, last = list(handle.events())
    assert isinstance(last, FinishedEvent)
    return [event.token_id for event in tokens if isinstance(event, TokenEvent)], last


def assert_parity(experts: RemoteExperts, mtp: bool) -> None:
    """All 13 prompts, 64 tokens each, and the MTP counts of reference.json."""
    engine = Engine(host_model(), experts, mtp=mtp)
    for prompt in reference():
        tokens, finished = answer(engine, prompt)
        assert finished.error is None, (prompt["name"], finished.error)
        assert tokens == prompt["greedy_ids"], prompt["name"]
        counts = (finished.stats.drafts_proposed, finished.stats.drafts_accepted)
        expected = (prompt["mtp1_proposed"], prompt["mtp1_accepted"]) if mtp else (0, 0)
        assert counts == expected, prompt["name"]
