"""A prompt goes in layer by layer beside users who decode, and changes nobody's answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from host_kit import ducklet, finish_all, outcome, random_tokens, tiny, token_ids

from host_runtime.engine import Engine, RequestHandle, SamplingParams, TokenEvent
from host_runtime.engine.sequence import Sequence
from host_runtime.experts import DuckStatus, ExpertsUnavailableError, PendingExperts

CHUNK = 16
LAYERS = tiny()[0].config.num_hidden_layers
CALLS = LAYERS - tiny()[0].config.first_k_dense_replace
STEP_CALL_S = 1.0


def prompt(length: int, seed: int) -> list[int]:
    ids: list[int] = random_tokens(length, tiny()[0].config.vocab_size, seed).tolist()
    return ids


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


class SlowExperts:
    """Local experts; calls advance a clock, and those of prompt chunks go through `trouble`."""

    def __init__(self, prompt_call_s: float) -> None:
        self.prompt_call_s, self.now_s = prompt_call_s, 0.0
        self.trouble: Callable[[], None] | None = None

    def submit(self, layer: int, hidden: torch.Tensor, *rest: torch.Tensor) -> PendingExperts:
        of_prompt = len(hidden) > 2
        self.now_s += self.prompt_call_s if of_prompt else STEP_CALL_S
        if of_prompt and self.trouble is not None:
            self.trouble()
        return tiny()[1].submit(layer, hidden, *rest)

    def status(self) -> list[DuckStatus]:
        return []

    def close(self) -> None:
        pass


def slow_engine(prompt_call_s: float = 0.0) -> tuple[Engine, SlowExperts]:
    experts = SlowExperts(prompt_call_s)
    engine = Engine(tiny()[0], experts, mtp=False, prefill_chunk=CHUNK, clock=lambda: experts.now_s)
    return engine, experts


def alone(ids: list[int], params: SamplingParams) -> list[int]:
    engine, _ = slow_engine()
    handle = engine.submit(ids, params)
    finish_all(engine)
    return outcome(handle)[0]


def of(engine: Engine, handle: RequestHandle) -> Sequence:
    return next(sequence for sequence in engine._active if sequence.handle is handle)


@pytest.mark.parametrize("make", [tiny, ducklet])
@pytest.mark.parametrize(("start", "length"), [(0, 16), (21, 30), (5, 1)], ids=str)
def test_a_chunk_by_layers_has_the_bits_of_a_chunk_at_once(
    make: Callable[[], Any], start: int, length: int
) -> None:
    """Hidden states, and the caches as the next tokens see them, with another's steps between."""
    model, experts = make()
    tokens = random_tokens(start + length + 3, model.config.vocab_size, 5)
    others = random_tokens(40, model.config.vocab_size, 6)
    caches = [model.new_cache(100) for _ in range(2)]
    other, lonely = model.new_cache(60), model.new_cache(60)
    for own in caches:
        if start:
            model.forward(tokens[:start], own, experts)
    chunk = model.start_chunk(tokens[start : start + length], caches[0], experts)
    steps, hidden = 0, chunk.advance()
    while hidden is None:
        found = model.forward(others[steps : steps + 1], other, experts)
        assert torch.equal(found, model.forward(others[steps : steps + 1], lonely, experts))
        steps, hidden = steps + 1, chunk.advance()
    assert steps == model.config.num_hidden_layers - 1
    assert torch.equal(hidden, model.forward(tokens[start : start + length], caches[1], experts))
    rest = [model.forward(tokens[-3:], own, experts) for own in caches]
    assert torch.equal(*rest)


@pytest.mark.parametrize(("prompt_call_s", "turns"), [(4.0, 2), (0.5, 1)], ids=str)
def test_who_decodes_waits_for_a_turn_as_long_as_a_step(prompt_call_s: float, turns: int) -> None:
    """Or, where layers take longer, for one of them: not for a whole chunk, which has two calls."""
    engine, _ = slow_engine(prompt_call_s)
    first = engine.submit(prompt(5, 1), greedy(60))
    for _ in range(3):
        engine.step()
    late = engine.submit(prompt(4 * CHUNK, 2), greedy(4))
    finish_all(engine)
    *events, _ = list(first.events())
    times = [event.time_s for event in events if isinstance(event, TokenEvent)]
    assert token_ids(events) == alone(prompt(5, 1), greedy(60))
    assert outcome(late)[0] == alone(prompt(4 * CHUNK, 2), greedy(4))
    pauses = [after - before for before, after in pairwise(times)]
    step_s = CALLS * STEP_CALL_S
    beside = step_s + CALLS * prompt_call_s / turns
    assert max(pauses) == beside
    assert pauses.count(beside) == 4 * turns


def test_a_prompt_that_nobody_waits_beside_any_more_goes_in_at_once() -> None:
    engine, _ = slow_engine(4.0)
    first, late = middle_of_a_chunk(engine)
    first.cancel()
    assert engine.step()
    assert of(engine, late).chunk is None
    assert of(engine, late).completion_tokens == 0
    finish_all(engine)
    assert outcome(late)[0] == alone(prompt(2 * CHUNK, 2), greedy(4))


def test_a_prompt_is_cancelled_between_layers() -> None:
    engine, _ = slow_engine(4.0)
    first, late = middle_of_a_chunk(engine)
    sequence = of(engine, late)
    late.cancel()
    finish_all(engine)
    assert outcome(late)[1].reason == "cancelled"
    assert (sequence.chunk, sequence.cache) == (None, None)
    assert outcome(first)[0] == alone(prompt(5, 1), greedy(40))


def test_a_call_that_fails_between_layers_ends_its_prompt_only() -> None:
    engine, experts = slow_engine(4.0)
    first, late = middle_of_a_chunk(engine)

    def lose_duck() -> None:
        raise ExpertsUnavailableError("d02 does not answer", ["d02"])

    experts.trouble = lose_duck
    sequence = of(engine, late)
    finish_all(engine)
    finished = outcome(late)[1]
    assert (finished.reason, finished.error) == ("error", "d02 does not answer")
    assert (sequence.chunk, sequence.cache) == (None, None)
    assert outcome(first)[0] == alone(prompt(5, 1), greedy(40))


def test_prompts_of_two_users_rest_beside_a_third_one() -> None:
    """Each has a chunk of its own under way."""
    engine, _ = slow_engine(4.0)
    first = engine.submit(prompt(5, 1), greedy(60))
    engine.step()
    late = [engine.submit(prompt(2 * CHUNK, seed), greedy(6)) for seed in (2, 3)]
    resting = 0
    while engine.step():
        resting = max(resting, sum(sequence.chunk is not None for sequence in engine._active))
    assert resting == 2
    assert outcome(first)[0] == alone(prompt(5, 1), greedy(60))
    assert [outcome(handle)[0] for handle in late] == [
        alone(prompt(2 * CHUNK, seed), greedy(6)) for seed in (2, 3)
    ]


def middle_of_a_chunk(engine: Engine) -> tuple[RequestHandle, RequestHandle]:
    """One user decodes, the prompt of another rests between two layers."""
    first = engine.submit(prompt(5, 1), greedy(40))
    for _ in range(3):
        engine.step()
    late = engine.submit(prompt(2 * CHUNK, 2), greedy(4))
    while late not in [s.handle for s in engine._active] or of(engine, late).chunk is None:
        assert engine.step()
    return first, late
