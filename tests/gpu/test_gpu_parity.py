"""ducklet on the card answers as on the CPU: all prompts, MTP on and off, two users, rollback."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_kit import needs_cuda

from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent

pytestmark = needs_cuda
DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"
ANSWERS = 1500
PROMPTS: list[dict[str, Any]] = json.loads((DUCKLET / "reference.json").read_text())["prompts"]


@cache
def model() -> tuple[Any, Any]:
    from host_runtime.cuda.loading import load_gpu_model

    return load_gpu_model(
        DUCKLET, routed_experts="local", positions=4096, cache_dtype=torch.float32
    )


def answers(engine: Engine, prompts: list[dict[str, Any]], **params: Any) -> list[Any]:
    """Tokens and statistics of all prompts, running at the same time."""
    handles = [
        engine.submit(
            prompt["prompt_ids"],
            SamplingParams(max_tokens=len(prompt["greedy_ids"]), ignore_eos=True, **params),
        )
        for prompt in prompts
    ]
    while engine.step():
        pass
    results = []
    for handle in handles:
        *tokens, last = list(handle.events())
        assert isinstance(last, FinishedEvent)
        assert last.reason == "length", last.error
        ids = [event.token_id for event in tokens if isinstance(event, TokenEvent)]
        results.append((ids, last.stats))
    return results


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_tokens_equal_the_reference(mtp: bool) -> None:
    gpu, experts = model()
    wrong = []
    for prompt in PROMPTS:
        engine = Engine(gpu, experts, mtp=mtp)
        ((tokens, stats),) = answers(engine, [prompt])
        counts = (stats.drafts_proposed, stats.drafts_accepted)
        wanted = (prompt["mtp1_proposed"], prompt["mtp1_accepted"]) if mtp else (0, 0)
        if tokens != prompt["greedy_ids"] or counts != wanted:
            wrong.append((prompt["name"], counts, wanted))
    assert wrong == []


def test_two_users_at_once_get_their_own_answers() -> None:
    gpu, experts = model()
    results = answers(Engine(gpu, experts), PROMPTS[:2])
    assert [tokens for tokens, _ in results] == [p["greedy_ids"] for p in PROMPTS[:2]]


def test_seeded_sampling_reproduces() -> None:
    gpu, experts = model()
    first, second = (
        answers(Engine(gpu, experts), PROMPTS[:1], temperature=0.8, seed=5)[0][0] for _ in range(2)
    )
    assert first == second


def test_drafts_keep_the_distribution_of_sampled_answers() -> None:
    """Chi-square of answers of three tokens at temperature 1, with drafts and without."""
    gpu, experts = model()
    start = PROMPTS[0]["prompt_ids"][:1]  # after a prompt ducklet is nearly certain
    short = {"prompt_ids": start, "greedy_ids": [0, 0, 0]}  # only the answer's length counts
    counts: list[Counter[tuple[int, ...]]] = []
    for mtp in (True, False):
        engine = Engine(gpu, experts, mtp=mtp)
        first = ANSWERS if mtp else 0
        seen: Counter[tuple[int, ...]] = Counter()
        proposed = accepted = 0
        for seed in range(first, first + ANSWERS):
            ((tokens, stats),) = answers(engine, [short], temperature=1.0, seed=seed)
            seen[tuple(tokens)] += 1
            proposed, accepted = proposed + stats.drafts_proposed, accepted + stats.drafts_accepted
        assert (0 < accepted < proposed) if mtp else proposed == 0
        counts.append(seen)
    frequent = [answer for answer, count in (counts[0] + counts[1]).items() if count >= 20]
    assert len(frequent) >= 5, "answers that hardly differ would prove nothing"
    cells = [[seen[answer] for answer in frequent] for seen in counts]
    rows = [[*row, ANSWERS - sum(row)] for row in cells]  # the last one: all rare answers
    statistic = sum((a - b) ** 2 / (a + b) for a, b in zip(*rows, strict=True) if a + b)
    degrees = len(frequent)
    spread = 2 / (9 * degrees)  # Wilson-Hilferty, exceeded by chance once in a million
    assert statistic < degrees * (1 - spread + 4.75 * spread**0.5) ** 3


def test_a_failing_call_ends_one_request_only() -> None:
    from host_runtime.experts.base import ExpertsUnavailableError

    class Broken:
        def submit(self, *arguments: object) -> None:
            raise ExpertsUnavailableError("d02 does not answer", ["d02"])

        def status(self) -> list[object]:
            return []

    gpu, experts = model()
    engine = Engine(gpu, Broken())  # type: ignore[arg-type]
    handle = engine.submit([2], SamplingParams(max_tokens=4))
    while engine.step():
        pass
    (last,) = list(handle.events())
    assert isinstance(last, FinishedEvent)
    assert (last.reason, last.error) == ("error", "d02 does not answer")
    ((tokens, _),) = answers(Engine(gpu, experts), PROMPTS[:1])
    assert tokens == PROMPTS[0]["greedy_ids"]


def test_nan_logits_are_named() -> None:
    gpu, experts = model()
    norm = gpu.norm.clone()
    gpu.norm.fill_(torch.nan)
    try:
        engine = Engine(gpu, experts)
        handle = engine.submit(PROMPTS[0]["prompt_ids"], SamplingParams(max_tokens=4))
        while engine.step():
            pass
        *_, last = list(handle.events())
    finally:
        gpu.norm.copy_(norm)
    assert isinstance(last, FinishedEvent)
    assert "not finite" in str(last.error)


def test_too_large_a_sequence_is_refused_with_numbers() -> None:
    gpu, experts = model()
    engine = Engine(gpu, experts)
    held = gpu.new_cache(4000)
    handle = engine.submit([2, 3], SamplingParams(max_tokens=200))
    while engine.step():
        pass
    (last,) = list(handle.events())
    assert isinstance(last, FinishedEvent)
    assert "no room for a sequence of 202 positions" in str(last.error)
    assert "of 4096 cache rows" in str(last.error)
    del held
    assert answers(Engine(gpu, experts), PROMPTS[:1])[0][0] == PROMPTS[0]["greedy_ids"]


def test_an_exported_file_gives_the_same_tokens(tmp_path: Path) -> None:
    """Loaded by one read of the export (cuda/host_file.py): the reference's tokens again."""
    from host_runtime.cuda.host_file import write_host_file
    from host_runtime.cuda.loading import load_gpu_model

    write_host_file(DUCKLET, tmp_path)
    loaded: tuple[Any, Any] = load_gpu_model(
        DUCKLET,
        routed_experts="remote",
        positions=1024,
        cache_dtype=torch.float32,
        host_weights=tmp_path,
    )
    gpu, _ = loaded
    _, experts = model()
    ((tokens, _),) = answers(Engine(gpu, experts, mtp=True), PROMPTS[:1])
    assert tokens == PROMPTS[0]["greedy_ids"]
    gpu.close()
