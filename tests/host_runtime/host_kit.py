"""Models for the tests of the host runtime, each loaded once per process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_v32 import write_tiny

from host_runtime.engine import Engine, FinishedEvent, RequestHandle, TokenEvent
from host_runtime.experts.local import LocalExperts
from host_runtime.models import DeepseekV32, load_model

DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"
TINY_SEED = 7


@cache
def ducklet() -> tuple[DeepseekV32, LocalExperts]:
    """The shipped model with local experts."""
    return _load(DUCKLET)


@cache
def tiny() -> tuple[DeepseekV32, LocalExperts]:
    """A random model of tiny_v32.TINY's shape with local experts."""
    with tempfile.TemporaryDirectory() as directory:
        write_tiny(Path(directory), TINY_SEED)
        return _load(Path(directory))


@cache
def reference() -> list[dict[str, Any]]:
    """The prompts of ducklet's reference.json."""
    prompts: list[dict[str, Any]] = json.loads((DUCKLET / "reference.json").read_text())["prompts"]
    return prompts


def random_tokens(count: int, vocab_size: int, seed: int) -> torch.Tensor:
    """Token ids from 2 on: neither BOS nor EOS."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, vocab_size, (count,), generator=generator)


def finish_all(engine: Engine, steps_max: int = 10_000) -> None:
    """Step an engine that has no thread until it has nothing left to do."""
    for _ in range(steps_max):
        if not engine.step():
            return
    raise AssertionError(f"the engine is still busy after {steps_max} steps")


def outcome(handle: RequestHandle) -> tuple[list[int], FinishedEvent]:
    """Token ids and the last event of a request."""
    *tokens, last = list(handle.events())
    assert isinstance(last, FinishedEvent)
    return token_ids(tokens), last


def token_ids(events: Sequence[object]) -> list[int]:
    ids = []
    for event in events:
        assert isinstance(event, TokenEvent)
        ids.append(event.token_id)
    return ids


def _load(path: Path) -> tuple[DeepseekV32, LocalExperts]:
    torch.set_num_threads(1)
    loaded = load_model(path, routed_experts="local")
    assert loaded.local_experts is not None
    return loaded.model, loaded.local_experts
