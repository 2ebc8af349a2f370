"""ducklet on the card with process ducks on the same machine answers token for token as the CPU."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_fleet import answer, reference, remote_fleet

from duckctl.model_dir import resolve_model_dir
from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.experts.remote_lanes import RemoteLanes
from host_runtime.transport import Faults

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
        reason="no CUDA device (or no triton): nvidia-smi shows none",
    ),
    pytest.mark.slow,
]
BACK_S_MAX = 20.0


@cache
def loaded() -> Any:
    from host_runtime.cuda.loading import load_gpu_model

    model, _ = load_gpu_model(
        resolve_model_dir("ducklet"),
        routed_experts="remote",
        positions=8192,
        cache_dtype=torch.float32,
    )
    return model


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    yield loaded()
    loaded().close()


def all_at_once(
    model: Any, experts: RemoteExperts, *, mtp: bool, users: int
) -> list[tuple[list[int], FinishedEvent]]:
    """The reference prompts, `users` of them at a time."""
    engine = Engine(model, experts, mtp=mtp, max_active=users)
    handles = [
        engine.submit(
            prompt["prompt_ids"],
            SamplingParams(max_tokens=len(prompt["greedy_ids"]), ignore_eos=True),
        )
        for prompt in reference()
    ]
    while engine.step():
        pass
    assert engine.status().steps_shared > 0
    found = []
    for handle in handles:
        *tokens, last = list(handle.events())
        assert isinstance(last, FinishedEvent)
        ids = [event.token_id for event in tokens if isinstance(event, TokenEvent)]
        found.append((ids, last))
    return found


@pytest.mark.parametrize("ducks", [2, 4])
def test_parity_of_card_and_ducks(tmp_path: Path, model: Any, ducks: int) -> None:
    """One user, MTP on and off; then two and three at once. Native threads answer the card."""
    with remote_fleet(tmp_path, ducks, "fp9") as experts:
        for mtp in (True, False):
            engine = Engine(model, experts, mtp=mtp)
            for prompt in reference():
                tokens, finished = answer(engine, prompt)
                assert finished.error is None, (prompt["name"], finished.error)
                assert tokens == prompt["greedy_ids"], prompt["name"]
                counts = (finished.stats.drafts_proposed, finished.stats.drafts_accepted)
                wanted = (prompt["mtp1_proposed"], prompt["mtp1_accepted"]) if mtp else (0, 0)
                assert counts == wanted, prompt["name"]
            for users in (2, 3):
                found = all_at_once(model, experts, mtp=mtp, users=users)
                for prompt, (tokens, finished) in zip(reference(), found, strict=True):
                    assert finished.error is None, (prompt["name"], finished.error)
                    assert tokens == prompt["greedy_ids"], prompt["name"]
        assert isinstance(model.link._native[1], RemoteLanes)


def test_a_lost_duck_ends_both_users_and_the_next_ones_are_served(
    tmp_path: Path, model: Any
) -> None:
    with remote_fleet(tmp_path, 2, "fp8", RemoteOptions(call_deadline_ms=400)) as experts:
        engine = Engine(model, experts)
        params = SamplingParams(max_tokens=64, ignore_eos=True)
        handles = [engine.submit(entry["prompt_ids"], params) for entry in reference()[:2]]
        for _ in range(8):
            engine.step()
        experts.set_faults(Faults(cut_ducks=(1,)))
        while engine.step():
            pass
        for entry, handle in zip(reference(), handles, strict=False):
            *events, last = list(handle.events())
            tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
            assert isinstance(last, FinishedEvent)
            assert last.reason == "error" and "d02" in str(last.error)
            assert tokens == entry["greedy_ids"][: len(tokens)]
        experts.set_faults(Faults())
        give_up = time.monotonic() + BACK_S_MAX
        while not all(duck.ready for duck in experts.status()):
            assert time.monotonic() < give_up, "d02 does not come back"
            time.sleep(0.02)
        for prompt, (tokens, _) in zip(
            reference(), all_at_once(model, experts, mtp=True, users=2), strict=True
        ):
            assert tokens == prompt["greedy_ids"], prompt["name"]
