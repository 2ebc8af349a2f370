"""Users who share steps on real ducks get the reference answers, also when a duck is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity_fleet import host_model, reference, remote_fleet
from recording_experts import RecordingExperts, leapfrog_log

from host_runtime.engine import Engine, FinishedEvent, RequestHandle, SamplingParams, TokenEvent
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.transport import Faults

STEPS_MAX = 20_000


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def submit(engine: Engine, prompt: dict[str, Any]) -> RequestHandle:
    params = SamplingParams(max_tokens=len(prompt["greedy_ids"]), ignore_eos=True)
    return engine.submit(prompt["prompt_ids"], params)


def finish(engine: Engine) -> None:
    for _ in range(STEPS_MAX):
        if not engine.step():
            return
    raise AssertionError("the engine is still busy")


def outcome(handle: RequestHandle) -> tuple[list[int], FinishedEvent]:
    *tokens, last = list(handle.events())
    assert isinstance(last, FinishedEvent)
    return [event.token_id for event in tokens if isinstance(event, TokenEvent)], last


def assert_all_at_once(experts: RemoteExperts, *, mtp: bool, users: int) -> None:
    engine = Engine(host_model(), experts, mtp=mtp, max_active=users)
    handles = [submit(engine, prompt) for prompt in reference()]
    finish(engine)
    for prompt, handle in zip(reference(), handles, strict=True):
        tokens, finished = outcome(handle)
        assert finished.error is None, (prompt["name"], finished.error)
        assert tokens == prompt["greedy_ids"], prompt["name"]
    assert engine.status().steps_shared > 0


@pytest.mark.slow
def test_all_prompts_at_once(tmp_path: Path) -> None:
    with remote_fleet(tmp_path, 2, "fp8") as experts:
        for mtp in (True, False):
            for users in (2, 3):
                assert_all_at_once(experts, mtp=mtp, users=users)


@pytest.mark.slow
def test_a_lost_duck_ends_both_users_with_its_name(tmp_path: Path) -> None:
    """Every call needs every duck, so both end; whoever comes afterwards is served."""
    with remote_fleet(tmp_path, 2, "fp8", RemoteOptions(call_deadline_ms=400)) as experts:
        engine = Engine(host_model(), experts)
        handles = [submit(engine, prompt) for prompt in reference()[:2]]
        for _ in range(8):
            engine.step()
        assert engine.status().steps_shared > 0
        experts.set_faults(Faults(cut_ducks=(1,)))
        finish(engine)
        for prompt, handle in zip(reference(), handles, strict=False):
            tokens, finished = outcome(handle)
            assert finished.reason == "error" and "d02" in str(finished.error)
            assert tokens == prompt["greedy_ids"][: len(tokens)]
        assert (engine.status().active, engine.status().queued) == (0, 0)
        experts.set_faults(Faults())
        wait_until(lambda: all(duck.ready for duck in experts.status()), 20, "both ducks serve")
        handles = [submit(engine, prompt) for prompt in reference()[2:4]]
        finish(engine)
        found = [outcome(handle)[0] for handle in handles]
        assert found == [prompt["greedy_ids"] for prompt in reference()[2:4]]


@pytest.mark.slow
def test_two_prompt_chunks_are_with_the_ducks_at_once(tmp_path: Path) -> None:
    with remote_fleet(tmp_path, 2, "fp8") as experts:
        recording = RecordingExperts(experts)
        engine = Engine(host_model(), recording, mtp=False, prefill_chunk=16)
        prompt = next(entry for entry in reference() if len(entry["prompt_ids"]) >= 32)
        handle = submit(engine, prompt)
        engine.step()
        config = host_model().config
        layers = [layer for layer in config.moe_layers if layer < config.num_hidden_layers]
        assert recording.log == leapfrog_log(layers, 16, 16)
        finish(engine)
        assert outcome(handle)[0] == prompt["greedy_ids"]
