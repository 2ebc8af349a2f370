"""Prompt chunks overtake each other's waiting for experts, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from host_kit import ducklet, random_tokens, tiny
from recording_experts import RecordingExperts, leapfrog_log

from host_runtime.layers.leapfrog import StartedLayer, leapfrog

MAKERS = {"tiny": tiny, "ducklet": ducklet}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("start", "lengths"), [(0, (16, 16)), (0, (40, 7)), (21, (12, 30)), (5, (1, 2, 20))], ids=str
)
def test_chunks_have_the_bits_of_one_after_the_other(
    name: str, start: int, lengths: tuple[int, ...]
) -> None:
    """Hidden states, and the caches as the next tokens see them."""
    make: Callable[[], Any] = MAKERS[name]
    model, experts = make()
    tokens = random_tokens(start + sum(lengths) + 3, model.config.vocab_size, 5)
    chunks = torch.split(tokens[start : start + sum(lengths)], list(lengths))
    caches = [model.new_cache(100) for _ in range(2)]
    for cache in caches:
        if start:
            model.forward(tokens[:start], cache, experts)
    overlapped = model.forward_chunks(chunks, caches[0], experts)
    straight = torch.cat([model.forward(chunk, caches[1], experts) for chunk in chunks])
    assert torch.equal(overlapped, straight)
    rest = [model.forward(tokens[-3:], cache, experts) for cache in caches]
    assert torch.equal(*rest)
    assert caches[0].length == caches[1].length == len(tokens)


def test_a_chunks_calls_leave_before_the_other_chunks_are_waited_for() -> None:
    model, experts = ducklet()
    recording = RecordingExperts(experts)
    chunks = torch.split(random_tokens(50, model.config.vocab_size, 6), [30, 20])
    model.forward_chunks(chunks, model.new_cache(60), recording)
    layers = [layer for layer in model.config.moe_layers if layer < model.config.num_hidden_layers]
    assert recording.log == leapfrog_log(layers, 30, 20)


def test_one_chunk_and_no_experts() -> None:
    """Dense layers wait for nobody; a single chunk is an ordinary pass."""

    def double(number: int, x: torch.Tensor) -> StartedLayer:
        return StartedLayer(x, x + number, None)

    ones = torch.ones(2, 3)
    (alone,) = leapfrog([double, double], [ones])
    assert torch.equal(alone, 4 * ones)
    first, second = leapfrog([double, double], [ones, ones])
    assert torch.equal(first, 4 * ones)
    assert torch.equal(second, 7 * ones)
