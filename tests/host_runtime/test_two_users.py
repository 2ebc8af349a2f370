"""Two users share decode steps: each gets the answer it gets alone, whatever happens to the other.

"Alone" is an engine that serves one request; every comparison is token for token.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from host_kit import ducklet, finish_all, outcome, random_tokens, reference, tiny
from markov_model import MarkovModel, markov_engine

from host_runtime.engine import Engine, RequestHandle, SamplingParams
from host_runtime.engine.engine import PREFILL_CHUNKS
from host_runtime.experts import DuckStatus, ExpertsUnavailableError, PendingExperts
from host_runtime.models import DeepseekV32, SequenceCache

SEED = 20261130
CHUNK = 16
LAYERS = tiny()[0].config.num_hidden_layers
Request = tuple[list[int], SamplingParams]


def prompt(length: int, seed: int) -> list[int]:
    ids: list[int] = random_tokens(length, tiny()[0].config.vocab_size, seed).tolist()
    return ids


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def sampled(count: int, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=1.0, top_p=0.9, seed=seed, ignore_eos=True)


def engine_of(**options: Any) -> Engine:
    return Engine(*tiny(), **{"prefill_chunk": CHUNK, **options})


def alone(request: Request, *, mtp: bool) -> list[int]:
    engine = engine_of(mtp=mtp)
    handle = engine.submit(*request)
    finish_all(engine)
    return outcome(handle)[0]


# ---------------------------------------------------------------- the model
@pytest.mark.parametrize("lengths", [(5, 9), (40, 12), (140, 141), (70, 40)], ids=str)
@pytest.mark.parametrize("make", [tiny, ducklet])
def test_a_row_has_the_same_bits_beside_another_sequence(
    make: Callable[[], Any], lengths: tuple[int, int]
) -> None:
    """Short and long contexts together: tiny's indexer chooses beyond 32 positions."""
    model, experts = make()
    tokens = [random_tokens(length + 3, model.config.vocab_size, length) for length in lengths]

    def filled() -> list[SequenceCache]:
        caches = [model.new_cache(200) for _ in lengths]
        for ids, length, cache in zip(tokens, lengths, caches, strict=True):
            model.forward(ids[:length], cache, experts)
        return caches

    together, single = filled(), filled()
    for step in range(3):
        own = torch.stack([ids[length + step] for ids, length in zip(tokens, lengths, strict=True)])
        hidden = model.decode(own, together, experts)
        expected = [
            model.forward(own[row : row + 1], cache, experts) for row, cache in enumerate(single)
        ]
        assert torch.equal(hidden, torch.cat(expected))
        assert torch.equal(model.logits(hidden), torch.cat([model.logits(x) for x in expected]))
    assert [cache.length for cache in together] == [length + 3 for length in lengths]


# ---------------------------------------------------------------- answers
@pytest.mark.slow
@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
@pytest.mark.parametrize("users", [2, 3, 4])
def test_answers_equal_those_of_each_user_alone(users: int, mtp: bool) -> None:
    """Greedy and seeded sampling, short and long prompts, answers of different lengths."""
    requests: list[Request] = [
        (prompt(7, 1), greedy(30)),
        (prompt(50, 2), sampled(12, seed=3)),
        (prompt(33, 3), sampled(40, seed=4)),
        (prompt(4, 4), greedy(9)),
    ][:users]
    engine = engine_of(mtp=mtp)
    handles = [engine.submit(*request) for request in requests]
    finish_all(engine)
    found = [outcome(handle)[0] for handle in handles]
    assert found == [alone(request, mtp=mtp) for request in requests]
    assert engine.status().steps_shared > 0


def test_seeded_tokens_are_the_same_with_drafts_and_without() -> None:
    """One random number per token: a draft decides how fast a token comes, not which."""
    table = 1.5 * torch.randn(6, 6, generator=torch.Generator().manual_seed(SEED))
    model = MarkovModel(table, draft_table=table.roll(1, 0) + table)
    answers, drafts = [], []
    for mtp in (True, False):
        engine = markov_engine(model, mtp=mtp)
        handle = engine.submit([1], SamplingParams(max_tokens=60, temperature=1.0, seed=5))
        finish_all(engine)
        tokens, finished = outcome(handle)
        answers.append(tokens)
        drafts.append((finished.stats.drafts_proposed, finished.stats.drafts_accepted))
    assert answers[0] == answers[1]
    assert 0 < drafts[0][1] < drafts[0][0]  # both ways were taken
    assert drafts[1] == (0, 0)


@pytest.mark.slow
def test_ducklets_reference_answers_for_four_users_at_once() -> None:
    prompts = reference()[:4]
    engine = Engine(*ducklet())
    handles = [
        engine.submit(entry["prompt_ids"], greedy(len(entry["greedy_ids"]))) for entry in prompts
    ]
    finish_all(engine)
    for entry, handle in zip(prompts, handles, strict=True):
        assert outcome(handle)[0] == entry["greedy_ids"], entry["name"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_users_who_come_and_go_change_nobodys_answer(seed: int) -> None:
    """A random timetable of requests and cancellations; what was cut short is a beginning."""
    chooser = random.Random(SEED + seed)
    engine = engine_of(max_active=3)
    started: list[tuple[Request, RequestHandle, bool]] = []
    for number in range(7):
        count = chooser.randint(2, 40)
        params = chooser.choice([greedy(count), sampled(count, seed=number)])
        request = (prompt(chooser.choice((2, 15, 16, 17, 60)), number), params)
        leaves = chooser.random() < 0.3
        started.append((request, engine.submit(*request), leaves))
        for _ in range(chooser.randint(0, 12)):
            engine.step()
        for _, handle, gone in started:
            if gone:
                handle.cancel()
    finish_all(engine)
    for request, handle, gone in started:
        tokens, finished = outcome(handle)
        expected = alone(request, mtp=True)
        assert tokens == expected[: len(tokens)], f"timetable {SEED + seed}"
        assert gone or len(tokens) == len(expected)
        assert finished.reason in (("cancelled", "length") if gone else ("length",))
    assert engine.status().steps_shared > 0, f"timetable {SEED + seed}"


# ---------------------------------------------------------------- drafts
def test_drafts_are_for_users_who_are_alone() -> None:
    """None while two decode; again as soon as one is left, after the module has caught up."""
    entry = next(entry for entry in reference() if entry["name"] == "en-prime-97")
    engine = Engine(*ducklet(), prefill_chunk=CHUNK)
    short = engine.submit(entry["prompt_ids"], greedy(40))
    long = engine.submit(entry["prompt_ids"], greedy(64))
    while not engine.status().steps_shared:
        engine.step()  # the short one has had steps, with drafts, between the long one's layers
    ahead = next(s for s in engine._active if s.handle is short)
    early_drafts, early_tokens = ahead.drafts_proposed, ahead.completion_tokens - 1
    finish_all(engine)
    expected = entry["greedy_ids"]
    (first, short_end), (second, long_end) = outcome(short), outcome(long)
    assert (first, second) == (expected[:40], expected[:64])
    assert short_end.stats.drafts_proposed == early_drafts
    shared = engine.status().steps_shared
    assert shared == 40 - early_tokens
    # The rest is left to the long one: one by itself, then a draft for every step.
    proposed, accepted = long_end.stats.drafts_proposed, long_end.stats.drafts_accepted
    left = 64 - 1 - shared
    assert proposed + accepted in (left - 1, left)  # the last may be of a token beyond the limit
    assert accepted >= 0.8 * proposed, "a module that had not followed would guess badly"


def test_the_module_follows_in_chunks_while_steps_are_shared() -> None:
    """What it still has to see is bounded by a prompt chunk."""
    engine = engine_of()
    for seed in (1, 2):
        engine.submit(prompt(5, seed), greedy(60))
    behind = []
    while engine.step():
        behind += [sequence.behind_rows for sequence in engine._active]
        for sequence in engine._active:
            if sequence.cache is not None and sequence.chunk is None:
                followed = sequence.cache.mtp_length + sequence.behind_rows
                assert followed == sequence.cache.length
    assert max(behind) == CHUNK - 1


# ---------------------------------------------------------------- turns
def progress(engine: Engine) -> dict[int, tuple[int, int]]:
    """Tokens, and cache rows in all layers, of the active requests, by handle."""
    return {
        id(sequence.handle): (
            len(sequence.tokens) - len(sequence.prompt),
            0 if sequence.cache is None else sum(one.length for one in sequence.cache.layers),
        )
        for sequence in engine._active
    }


def turns_of(engine: Engine, names: dict[int, str], count: int) -> list[str]:
    """Who was served in each turn."""
    turns = []
    for _ in range(count):
        before = progress(engine)
        assert engine.step()
        served = [
            names[key] for key, now in progress(engine).items() if now != before.get(key, (0, 0))
        ]
        turns.append("+".join(sorted(served)))
    return turns


def test_everybody_gets_the_same_share_of_the_turns() -> None:
    """Three who decode take the two lanes in turns; a prompt goes in layer by layer between."""
    engine = engine_of(mtp=False, clock=lambda: 0.0)  # a step takes no time: a turn is one layer
    handles = {name: engine.submit(prompt(3, at), greedy(60)) for at, name in enumerate("abc")}
    names = {id(handle): name for name, handle in handles.items()}
    turns = turns_of(engine, names, 3 * LAYERS)
    assert turns[0] == "a"
    assert (turns.count("b"), turns.count("c")) == (LAYERS, LAYERS)
    assert turns_of(engine, names, 6) == ["a+b", "a+c", "b+c"] * 2
    late = engine.submit(prompt(3 * CHUNK, 9), greedy(8))
    names[id(late)] = "late"
    turns = turns_of(engine, names, 9 * LAYERS)
    assert turns.count("late") == 3 * LAYERS, "three chunks, a layer a turn"
    shares = {name: sum(name in turn.split("+") for turn in turns) for name in "abc"}
    assert set(shares.values()) == {4 * LAYERS}


def test_a_prompt_goes_in_two_chunks_a_turn_when_nobody_waits_for_tokens() -> None:
    engine = engine_of(mtp=False, clock=lambda: 0.0)
    first = engine.submit(prompt(4 * CHUNK, 1), greedy(16))
    second = engine.submit(prompt(3 * CHUNK, 2), greedy(8))
    names = {id(first): "first", id(second): "second"}
    assert PREFILL_CHUNKS == 2
    # 64 + 48 tokens in pairs of chunks; the last of the second prompt goes beside a decoder
    expected = ["first", "second", "first", *["second", "first"] * (LAYERS - 1), "second"]
    assert turns_of(engine, names, len(expected)) == expected
    assert turns_of(engine, names, 1) == ["first+second"]


# ---------------------------------------------------------------- what happens to the other
class Troubled:
    """Local experts whose calls go through `trouble` first."""

    def __init__(self) -> None:
        self.trouble: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.calls_of_two = 0

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        self.calls_of_two += len(hidden) == 2
        if self.trouble is not None:
            hidden = self.trouble(hidden)
        return tiny()[1].submit(layer, hidden, expert_ids, expert_weights)

    def status(self) -> list[DuckStatus]:
        return []

    def close(self) -> None:
        pass


REQUESTS: list[Request] = [(prompt(6, 21), greedy(20)), (prompt(9, 22), sampled(20, seed=8))]


@pytest.fixture(params=[True, False], ids=["mtp", "plain"])
def shared(request: pytest.FixtureRequest) -> tuple[Engine, Troubled, list[RequestHandle]]:
    """Two users in the middle of their answers."""
    experts = Troubled()
    engine = Engine(tiny()[0], experts, mtp=request.param, prefill_chunk=CHUNK)
    handles = [engine.submit(*each) for each in REQUESTS]
    while engine.status().steps_shared < 3:
        assert engine.step()
    assert experts.calls_of_two > 0, "one call per layer carries both users' rows"
    return engine, experts, handles


Shared = tuple[Engine, Troubled, list[RequestHandle]]


def test_a_step_that_fails_as_a_whole_harms_nobody(shared: Shared) -> None:
    """Both users go on alone, from the caches as they were."""
    engine, experts, handles = shared
    failures: list[None] = []

    def fail_halfway(hidden: torch.Tensor) -> torch.Tensor:
        if len(hidden) == 2:
            failures.append(None)
            if len(failures) % 3 == 2:
                raise ExpertsUnavailableError("d02 does not answer", ["d02"])
        return hidden

    experts.trouble = fail_halfway
    finish_all(engine)
    assert len(failures) > 10
    for each, handle in zip(REQUESTS, handles, strict=True):
        assert outcome(handle)[0] == alone(each, mtp=engine.mtp)


def test_nan_in_one_lane_ends_that_user_only(shared: Shared) -> None:
    engine, experts, handles = shared

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.clone()
        hidden[1] = torch.nan
        return hidden

    experts.trouble = spoil
    engine.step()
    experts.trouble = None
    spoilt = [not any(s.handle is handle for s in engine._active) for handle in handles]
    assert sorted(spoilt) == [False, True]
    finish_all(engine)
    for is_spoilt, each, handle in zip(spoilt, REQUESTS, handles, strict=True):
        tokens, finished = outcome(handle)
        if is_spoilt:
            assert "logits are not finite" in str(finished.error)
        else:
            assert tokens == alone(each, mtp=engine.mtp)


class FailingFor:
    """The model, but steps with one user's cache fail."""

    def __init__(self, model: DeepseekV32, broken: object) -> None:
        self._model, self._broken = model, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def decode(
        self, tokens: torch.Tensor, caches: list[SequenceCache], experts: Any
    ) -> torch.Tensor:
        self._model.decode(tokens, caches, experts)  # caches have grown before it fails
        raise ExpertsUnavailableError("one of the two calls was refused")

    def forward(self, tokens: torch.Tensor, cache: SequenceCache, experts: Any) -> torch.Tensor:
        if cache is self._broken:
            raise ExpertsUnavailableError("this user's call was refused")
        return self._model.forward(tokens, cache, experts)


def test_a_call_that_always_fails_ends_its_user_only(shared: Shared) -> None:
    engine, _, handles = shared
    broken = next(s for s in engine._active if s.handle is handles[1])
    engine.model = cast(DeepseekV32, FailingFor(tiny()[0], broken.cache))
    finish_all(engine)
    assert outcome(handles[0])[0] == alone(REQUESTS[0], mtp=engine.mtp)
    tokens, finished = outcome(handles[1])
    assert (finished.reason, finished.error) == ("error", "this user's call was refused")
    assert tokens == alone(REQUESTS[1], mtp=engine.mtp)[: len(tokens)]


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_user_leaves_the_other_stays(shared: Shared, leaver: int) -> None:
    engine, _, handles = shared
    handles[leaver].cancel()
    finish_all(engine)
    stayer = 1 - leaver
    assert outcome(handles[leaver])[1].reason == "cancelled"
    tokens, finished = outcome(handles[stayer])
    assert tokens == alone(REQUESTS[stayer], mtp=engine.mtp)
    if engine.mtp:
        assert finished.stats.drafts_proposed > 0, "alone again, with drafts"
