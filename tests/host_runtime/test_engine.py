"""The engine serves requests fairly, refuses bad ones, and outlives every failure of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from host_kit import ducklet, finish_all, outcome, random_tokens, reference, tiny, token_ids
from markov_model import MarkovModel, markov_engine

from host_runtime.engine import (
    ContextTooLongError,
    Engine,
    FinishedEvent,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
    TokenEvent,
)
from host_runtime.errors import HostError
from host_runtime.experts import DuckStatus, ExpertsUnavailableError, PendingExperts
from host_runtime.experts.local import LocalExperts

GREEDY_8 = SamplingParams(max_tokens=8, ignore_eos=True)


class TroubledExperts:
    """Local experts whose calls go through `trouble` first, which may raise or spoil the result."""

    def __init__(self, experts: LocalExperts) -> None:
        self.experts = experts
        self.trouble: Callable[[int, torch.Tensor], torch.Tensor] | None = None
        self.ducks: list[DuckStatus] = []

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        if self.trouble is not None:
            hidden = self.trouble(layer, hidden)
        return self.experts.submit(layer, hidden, expert_ids, expert_weights)

    def status(self) -> list[DuckStatus]:
        return self.ducks

    def close(self) -> None:
        pass


def _engine(**options: Any) -> Engine:
    model, experts = tiny()
    return Engine(model, TroubledExperts(experts), **options)


def _prompt(length: int, seed: int = 1) -> list[int]:
    ids: list[int] = random_tokens(length, tiny()[0].config.vocab_size, seed).tolist()
    return ids


def _solo(prompt: list[int], params: SamplingParams) -> list[int]:
    engine = _engine()
    handle = engine.submit(prompt, params)
    finish_all(engine)
    return outcome(handle)[0]


@pytest.fixture
def running() -> Iterator[Engine]:
    engine = _engine()
    engine.start()
    yield engine
    engine.stop()


# ---------------------------------------------------------------- scheduling
@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_interleaved_requests_equal_their_solo_runs(mtp: bool) -> None:
    engine = _engine(mtp=mtp, prefill_chunk=16)
    sampled = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
    requests = [(_prompt(40), GREEDY_8), (_prompt(7, 2), sampled), (_prompt(70, 3), GREEDY_8)]
    handles = [engine.submit(prompt, params) for prompt, params in requests]
    finish_all(engine)
    together = [outcome(handle)[0] for handle in handles]
    for (prompt, params), tokens in zip(requests, together, strict=True):
        alone = _engine(mtp=mtp, prefill_chunk=16)
        handle = alone.submit(prompt, params)
        finish_all(alone)
        assert outcome(handle)[0] == tokens


def test_no_more_requests_run_than_may() -> None:
    engine = _engine(mtp=False, max_active=2, prefill_chunk=16)
    handles = [engine.submit(_prompt(length), GREEDY_8) for length in (48, 4, 5)]
    for _ in range(4):
        assert engine.step()
        assert (engine.status().active, engine.status().queued) == (2, 1)
    finish_all(engine)
    assert [outcome(handle)[1].reason for handle in handles] == ["length"] * 3


def test_prefill_chunks_change_no_greedy_token() -> None:
    answers = []
    for chunk in (1, 7, 64):
        engine = _engine(prefill_chunk=chunk)
        handle = engine.submit(_prompt(45), GREEDY_8)
        finish_all(engine)
        answers.append(outcome(handle)[0])
    assert answers[0] == answers[1] == answers[2]


def test_statistics_and_times_come_from_the_clock() -> None:
    ticks = iter(range(1000))
    engine = _engine(mtp=False, prefill_chunk=4, clock=lambda: float(next(ticks)))
    handle = engine.submit(_prompt(10), SamplingParams(max_tokens=3, ignore_eos=True))  # tick 0
    finish_all(engine)  # start: 1, first token: 2, steps: 3 to 5 and 6 to 8
    *events, last = handle.events()
    assert [event.time_s for event in events if isinstance(event, TokenEvent)] == [2.0, 4.0, 7.0]
    assert isinstance(last, FinishedEvent)
    stats = last.stats
    assert (stats.prompt_tokens, stats.completion_tokens) == (10, 3)
    assert (stats.queue_s, stats.ttft_s, stats.decode_s) == (1.0, 2.0, 5.0)


# ---------------------------------------------------------------- ends of requests
def test_eos_ends_the_answer_and_is_not_emitted() -> None:
    prompt = next(entry for entry in reference() if entry["name"] == "en-hello")
    end = prompt["first_eos"]
    engine = Engine(*ducklet())
    handle = engine.submit(prompt["prompt_ids"], SamplingParams(max_tokens=64))
    finish_all(engine)
    tokens, finished = outcome(handle)
    assert tokens == prompt["greedy_ids"][:end]
    assert (finished.reason, finished.stats.completion_tokens) == ("stop", end)


def test_accepted_drafts_are_marked() -> None:
    prompt = next(entry for entry in reference() if entry["name"] == "en-prime-97")
    engine = Engine(*ducklet())
    handle = engine.submit(prompt["prompt_ids"], SamplingParams(max_tokens=9, ignore_eos=True))
    finish_all(engine)
    events = [event for event in handle.events() if isinstance(event, TokenEvent)]
    # every draft is right: token 0 comes from prefill, then draft and next token in turn
    assert [event.accepted_draft for event in events] == [False] + [True, False] * 4
    assert all(event.logprob is not None and event.logprob <= 0 for event in events)


def test_stop_tokens() -> None:
    free = _solo(_prompt(9), GREEDY_8)
    end = next(place for place in range(1, 8) if free[place] not in free[:place])
    params = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(free[end],))
    engine = _engine()
    handle = engine.submit(_prompt(9), params)
    finish_all(engine)
    tokens, finished = outcome(handle)
    assert (tokens, finished.reason) == (free[:end], "stop")


def test_one_token_and_the_whole_context() -> None:
    limit = tiny()[0].config.max_position_embeddings
    for length, count in ((limit - 1, 1), (limit - 5, 5), (1, 3)):
        engine = _engine()
        handle = engine.submit(_prompt(length), SamplingParams(max_tokens=count, ignore_eos=True))
        finish_all(engine)
        tokens, finished = outcome(handle)
        assert (len(tokens), finished.reason) == (count, "length")


def test_cancel_between_steps() -> None:
    engine = _engine(mtp=False, max_active=1)
    first, second = (engine.submit(_prompt(5, seed), GREEDY_8) for seed in (1, 2))
    third = engine.submit(_prompt(6), GREEDY_8)
    for _ in range(3):
        engine.step()
    first.cancel()
    third.cancel()  # still waiting
    finish_all(engine)
    tokens, finished = outcome(first)
    assert (len(tokens), finished.reason, finished.stats.completion_tokens) == (3, "cancelled", 3)
    tokens, finished = outcome(second)
    assert (tokens, finished.reason) == (_solo(_prompt(5, 2), GREEDY_8), "length")
    assert outcome(third)[1].reason == "cancelled"
    assert list(third.events()) == []  # a finished request has no further events


def test_cancel_while_running(running: Engine) -> None:
    handle = running.submit(_prompt(5), SamplingParams(max_tokens=200, ignore_eos=True))
    events = handle.events()
    token_ids([next(events) for _ in range(3)])
    handle.cancel()
    *_, last = events
    assert isinstance(last, FinishedEvent)
    assert last.reason == "cancelled"
    follower = running.submit(_prompt(5), GREEDY_8)
    assert outcome(follower)[0] == _solo(_prompt(5), GREEDY_8)


# ---------------------------------------------------------------- refusals
def test_context_too_long() -> None:
    engine = _engine(max_context=64)
    with pytest.raises(ContextTooLongError) as error:
        engine.submit(_prompt(60), SamplingParams(max_tokens=5))
    assert (error.value.prompt_tokens, error.value.max_tokens, error.value.limit) == (60, 5, 64)
    assert "60 tokens and 5 more are requested: 65 exceed" in error.value.message
    engine.submit(_prompt(60), SamplingParams(max_tokens=4))


def test_queue_full() -> None:
    engine = _engine(max_active=1, max_queue=2)
    handles = [engine.submit(_prompt(4), GREEDY_8) for _ in range(3)]
    with pytest.raises(QueueFullError):
        engine.submit(_prompt(4), GREEDY_8)
    finish_all(engine)
    engine.submit(_prompt(4), GREEDY_8)
    assert [outcome(handle)[1].reason for handle in handles] == ["length"] * 3


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY_8, "the prompt has no tokens"),
        ([1, 384], GREEDY_8, "prompt token 1 is 384, expected an id in 0..383"),
        ([-1], GREEDY_8, "prompt token 0 is -1"),
        ([5], SamplingParams(max_tokens=0), "max_tokens is 0"),
        ([5], SamplingParams(1, temperature=-0.1), "temperature is -0.1"),
        ([5], SamplingParams(1, temperature=float("nan")), "temperature is nan"),
        ([5], SamplingParams(1, top_p=0.0), "top_p is 0.0"),
        ([5], SamplingParams(1, top_p=1.01), "top_p is 1.01"),
        ([5], SamplingParams(1, top_k=-1), "top_k is -1"),
        ([5], SamplingParams(1, seed=2**63), "seed is 9223372036854775808"),
        ([5], SamplingParams(1, seed=-(2**63) - 1), "seed is -9223372036854775809"),
        ([5], SamplingParams(1, stop_token_ids=(400,)), "stop_token_ids is 400"),
    ],
)
def test_invalid_requests(prompt: list[int], params: SamplingParams, message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        _engine().submit(prompt, params)
    assert message in error.value.message


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_the_largest_seeds_sample(seed: int) -> None:
    engine = _engine()
    params = SamplingParams(2, temperature=1.0, seed=seed, ignore_eos=True)
    handle = engine.submit(_prompt(3), params)
    finish_all(engine)
    assert outcome(handle)[1].reason == "length"


@pytest.mark.parametrize(
    "options",
    [{"max_context": 257}, {"max_context": 1}, {"prefill_chunk": 0}, {"prefill_chunk": 513}],
    ids=str,
)
def test_invalid_options(options: dict[str, int]) -> None:
    with pytest.raises(HostError, match="expected"):
        _engine(**options)


# ---------------------------------------------------------------- failures
def _lose_duck(layer: int, hidden: torch.Tensor) -> torch.Tensor:
    raise ExpertsUnavailableError("d02 does not answer: no packet for 3.0 s", ["d02"])


def _spoil(layer: int, hidden: torch.Tensor) -> torch.Tensor:
    return hidden * torch.nan


def _break(layer: int, hidden: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("a defect")


def _spoil_draft(layer: int, hidden: torch.Tensor) -> torch.Tensor:
    return hidden * torch.nan if layer == 4 else hidden


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (_lose_duck, "d02 does not answer: no packet for 3.0 s"),
        (_spoil, "the model's logits are not finite"),
        (_spoil_draft, "the model's draft logits are not finite"),
        (_break, "internal error: ZeroDivisionError: a defect"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2], ids=["in-prefill", "in-decode"])
def test_a_failing_request_ends_alone(
    steps: int, trouble: Callable[[int, torch.Tensor], torch.Tensor], message: str
) -> None:
    engine = _engine()
    experts = cast(TroubledExperts, engine.experts)
    failing = engine.submit(_prompt(5), GREEDY_8)
    for _ in range(steps):
        engine.step()
    experts.trouble = trouble
    engine.step()
    experts.trouble = None
    waiting = engine.submit(_prompt(6), GREEDY_8)
    finish_all(engine)
    tokens, finished = outcome(failing)
    assert finished.reason == "error"
    assert finished.error is not None and message in finished.error
    assert finished.stats.completion_tokens == len(tokens)
    assert outcome(waiting)[0] == _solo(_prompt(6), GREEDY_8)
    assert (engine.status().active, engine.status().queued) == (0, 0)


def test_readiness_names_the_ducks_that_are_away(running: Engine) -> None:
    experts = cast(TroubledExperts, running.experts)
    assert running.status().ready
    experts.ducks = [
        DuckStatus("d01", True, "serving"),
        DuckStatus("d02", False, "lost", "no packet for 3.0 s"),
        DuckStatus("d03", False, "loading"),
    ]
    status = running.status()
    assert (status.ready, status.reason) == (False, "d02: no packet for 3.0 s; d03: loading")
    assert status.ducks == experts.ducks


def test_draft_totals_and_the_warning_about_a_useless_mtp_module(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = torch.eye(8).roll(1, 0)
    engine = markov_engine(MarkovModel(table, draft_table=-table), mtp=True)  # never right
    handles = []
    for token in range(6):  # one after the other: drafts are for a request that is alone
        handles.append(engine.submit([token], SamplingParams(max_tokens=60)))
        finish_all(engine)
    stats = [outcome(handle)[1].stats for handle in handles]
    status = engine.status()
    assert status.drafts_proposed == sum(entry.drafts_proposed for entry in stats) == 6 * 59
    assert status.drafts_accepted == sum(entry.drafts_accepted for entry in stats) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "drafts are accepted" in caplog.text


def test_stopping_ends_every_request() -> None:
    engine = _engine(max_active=1)
    assert (engine.status().ready, engine.status().reason) == (False, "the engine is not running")
    engine.start()
    endless = SamplingParams(max_tokens=200, ignore_eos=True)
    handles = [engine.submit(_prompt(5), endless) for _ in range(3)]
    next(handles[0].events())
    engine.stop()
    for handle in handles:
        finished = outcome(handle)[1]
        assert (finished.reason, finished.error) == ("error", "the engine was stopped")
    with pytest.raises(HostError, match="stopping"):
        engine.submit(_prompt(5), GREEDY_8)
    assert not engine.status().ready
