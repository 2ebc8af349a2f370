"""On the card: two users' tokens are the lanes of one step, prompt chunks overtake each other."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_kit import needs_cuda
from recording_experts import RecordingExperts, leapfrog_log

from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent
from host_runtime.experts.base import ExpertsUnavailableError

pytestmark = needs_cuda
DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"
CHUNK = 16


@cache
def model() -> tuple[Any, Any]:
    from host_runtime.cuda.loading import load_gpu_model

    return load_gpu_model(
        DUCKLET, routed_experts="local", positions=8192, cache_dtype=torch.float32
    )


def tokens_of(length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, model()[0].config.vocab_size, (length,), generator=generator)


def request(length: int, seed: int, count: int, *, sampled: bool) -> tuple[Any, SamplingParams]:
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    if sampled:
        params = SamplingParams(max_tokens=count, temperature=1.0, seed=seed, ignore_eos=True)
    return tokens_of(length, seed).tolist(), params


def answers(engine: Engine, requests: list[tuple[Any, SamplingParams]]) -> list[list[int]]:
    """Of requests that run at the same time."""
    handles = [engine.submit(*each) for each in requests]
    return outcomes(engine, handles)


def outcomes(engine: Engine, handles: list[Any]) -> list[list[int]]:
    """Tokens of requests that all end well."""
    while engine.step():
        pass
    found = []
    for handle in handles:
        *events, last = list(handle.events())
        assert isinstance(last, FinishedEvent)
        assert last.reason == "length", last.error
        found.append([event.token_id for event in events if isinstance(event, TokenEvent)])
    return found


def until_shared(engine: Engine) -> None:
    """Both prompts are in, and both users decode."""
    while not engine.status().steps_shared:
        assert engine.step()


@pytest.mark.parametrize("lengths", [(5, 9), (300, 12), (126, 125), (700, 40)], ids=str)
def test_a_row_has_the_same_bits_beside_another_sequence(lengths: tuple[int, int]) -> None:
    """Beyond index_topk (128) the short one goes through the chosen positions too."""
    gpu, experts = model()
    tokens = [tokens_of(length + 3, length) for length in lengths]

    def filled() -> list[Any]:
        caches = [gpu.new_cache(length + 8) for length in lengths]
        for ids, length, own in zip(tokens, lengths, caches, strict=True):
            for chunk in torch.split(ids[:length], 512):
                gpu.forward(chunk, own, experts)
        return caches

    single, together = filled(), filled()
    for step in range(3):
        own = torch.stack([ids[length + step] for ids, length in zip(tokens, lengths, strict=True)])
        expected = [
            gpu.forward(own[row : row + 1], cache, experts) for row, cache in enumerate(single)
        ]
        assert torch.equal(gpu.decode(own, together, experts), torch.cat(expected))
    assert [cache.length for cache in together] == [length + 3 for length in lengths]


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_answers_equal_those_of_each_user_alone(mtp: bool) -> None:
    """Three users on two lanes, greedy and seeded, a long prompt beside answers under way."""
    gpu, experts = model()
    requests = [
        request(7, 1, 40, sampled=False),
        request(150, 2, 12, sampled=True),
        request(33, 3, 30, sampled=True),
    ]
    engine = Engine(gpu, experts, mtp=mtp, prefill_chunk=CHUNK)
    together = answers(engine, requests)
    assert engine.status().steps_shared > 0
    for each, found in zip(requests, together, strict=True):
        assert answers(Engine(gpu, experts, mtp=mtp, prefill_chunk=CHUNK), [each]) == [found]


def test_a_step_that_fails_as_a_whole_harms_nobody() -> None:
    """Calls of the shared step fail in one lane now and then: both go on alone."""

    class Failing:
        """Serves mailboxes by Python threads. Every 24th call fails while both users are there:
        those of a shared step, whose two retries have 8 calls."""

        def __init__(self) -> None:
            self.calls = self.failed = 0
            self.armed = False
            self.lock = threading.Lock()

        def submit(self, layer: int, hidden: torch.Tensor, *rest: torch.Tensor) -> Any:
            with self.lock:
                self.calls += self.armed
                fails = self.armed and self.calls % 24 == 0 and len(engine._active) == 2
                self.failed += fails
            if fails:
                raise ExpertsUnavailableError("d02 does not answer", ["d02"])
            return model()[1].submit(layer, hidden, *rest)

        def status(self) -> list[Any]:
            return []

        def close(self) -> None:
            pass

    gpu, experts = model()
    requests = [request(7, 1, 20, sampled=False), request(9, 2, 20, sampled=True)]
    expected = [answers(Engine(gpu, experts, mtp=False), [each])[0] for each in requests]
    failing = Failing()
    engine = Engine(gpu, failing, mtp=False)
    handles = [engine.submit(*each) for each in requests]
    until_shared(engine)
    failing.armed = True
    assert outcomes(engine, handles) == expected
    assert failing.failed > 2


def test_nan_in_one_lane_ends_that_user_only() -> None:
    gpu, experts = model()
    requests = [request(7, 1, 20, sampled=False), request(9, 2, 20, sampled=False)]
    (expected,) = answers(Engine(gpu, experts), requests[1:])
    engine = Engine(gpu, experts)
    handles = [engine.submit(*each) for each in requests]
    until_shared(engine)
    spoilt = next(s for s in engine._active if s.handle is handles[0])
    rows = spoilt.cache.base, spoilt.cache.base + spoilt.cache.length  # type: ignore[union-attr]
    gpu.pool.layers[2].kv[slice(*rows)] = torch.nan
    while engine.step():
        pass
    gpu.pool.layers[2].kv[slice(*rows)] = 0
    *_, last = list(handles[0].events())
    assert isinstance(last, FinishedEvent)
    assert "not finite" in str(last.error)
    *events, last = list(handles[1].events())
    assert [event.token_id for event in events if isinstance(event, TokenEvent)] == expected


@pytest.mark.parametrize(("start", "lengths"), [(0, (64, 64)), (0, (512, 77)), (31, (40, 2))])
def test_chunks_have_the_bits_of_one_after_the_other(start: int, lengths: tuple[int, int]) -> None:
    gpu, experts = model()
    tokens = tokens_of(start + sum(lengths) + 3, 5)
    chunks = torch.split(tokens[start : start + sum(lengths)], list(lengths))
    caches = [gpu.new_cache(len(tokens)) for _ in range(2)]
    for own in caches:
        if start:
            gpu.forward(tokens[:start], own, experts)
    overlapped = gpu.forward_chunks(chunks, caches[0], experts)
    straight = torch.cat([gpu.forward(chunk, caches[1], experts) for chunk in chunks])
    assert torch.equal(overlapped, straight)
    assert torch.equal(*(gpu.forward(tokens[-3:], own, experts) for own in caches))


@pytest.mark.parametrize(("start", "length"), [(0, 64), (0, 512), (31, 300), (5, 2)])
def test_a_chunk_by_layers_has_the_bits_of_a_chunk_at_once(start: int, length: int) -> None:
    """Another sequence's steps, which replay the lanes' graph, come between its layers."""
    gpu, experts = model()
    tokens, others = tokens_of(start + length + 3, 5), tokens_of(20, 6)
    caches = [gpu.new_cache(len(tokens)) for _ in range(2)]
    other, lonely = gpu.new_cache(30), gpu.new_cache(30)
    for own in caches:
        if start:
            gpu.forward(tokens[:start], own, experts)
    chunk = gpu.start_chunk(tokens[start : start + length], caches[0], experts)
    steps, hidden = 0, chunk.advance()
    while hidden is None:
        found = gpu.forward(others[steps : steps + 1], other, experts)
        assert torch.equal(found, gpu.forward(others[steps : steps + 1], lonely, experts))
        steps, hidden = steps + 1, chunk.advance()
    assert steps == (0 if length <= 2 else gpu.config.num_hidden_layers - 1)
    assert torch.equal(hidden, gpu.forward(tokens[start : start + length], caches[1], experts))
    assert torch.equal(*(gpu.forward(tokens[-3:], own, experts) for own in caches))


def test_a_chunks_calls_leave_before_the_other_chunks_are_waited_for() -> None:
    gpu, experts = model()
    recording = RecordingExperts(experts)
    chunks = torch.split(tokens_of(50, 6), [30, 20])
    gpu.forward_chunks(chunks, gpu.new_cache(60), recording)
    layers = [layer for layer in gpu.config.moe_layers if layer < gpu.config.num_hidden_layers]
    assert recording.log == leapfrog_log(layers, 30, 20)
