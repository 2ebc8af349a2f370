"""A decode row has the same bits alone and beside others, and a rollback leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from host_kit import ducklet, random_tokens, tiny

from host_runtime.experts.local import LocalExperts
from host_runtime.layers.cache import LayerCache
from host_runtime.models import DeepseekV32, SequenceCache
from host_runtime.ops.rows import ROWS_ALONE_MAX, by_rows

MODELS = {"tiny": tiny, "ducklet": ducklet}
SEED = 11


@pytest.fixture
def two_threads() -> Iterator[None]:
    tiny()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def _prefilled(
    model: DeepseekV32, experts: LocalExperts, tokens: torch.Tensor
) -> tuple[SequenceCache, torch.Tensor]:
    cache = model.new_cache(len(tokens) + 32)
    hidden = model.forward(tokens, cache, experts)
    model.mtp_forward(hidden[:-1], tokens[1:], cache, experts)
    return cache, hidden


@pytest.mark.parametrize("length", [10, 15, 40, 140])
@pytest.mark.parametrize("rows", [2, ROWS_ALONE_MAX])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_one_step_equal_single_steps(name: str, rows: int, length: int) -> None:
    _compare_rows(*MODELS[name](), rows, length)


@pytest.mark.usefixtures("two_threads")
def test_rows_of_one_step_equal_single_steps_with_two_threads() -> None:
    _compare_rows(*tiny(), 2, 40)


def _compare_rows(model: DeepseekV32, experts: LocalExperts, rows: int, length: int) -> None:
    tokens = random_tokens(length + rows + 1, model.config.vocab_size, SEED)
    prompt, step, following = tokens[:length], tokens[length:-1], tokens[length + 1 :]

    together, _ = _prefilled(model, experts, prompt)
    hidden = model.forward(step, together, experts)
    logits = model.logits(hidden)
    drafts = model.mtp_logits(model.mtp_forward(hidden, following, together, experts))

    alone, _ = _prefilled(model, experts, prompt)
    for row in range(rows):
        single = model.forward(step[row : row + 1], alone, experts)
        assert torch.equal(model.logits(single)[0], logits[row])
        mixed = model.mtp_forward(single, following[row : row + 1], alone, experts)
        assert torch.equal(model.mtp_logits(mixed)[0], drafts[row])
    for one, other in zip(alone.layers, together.layers, strict=True):
        assert torch.equal(one.latent, other.latent)
        assert torch.equal(one.rope_key, other.rope_key)
        assert torch.equal(one.index_key, other.index_key)


@pytest.mark.parametrize("rejected", [1, 2, 5, 20])
def test_rollback_leaves_no_trace(rejected: int) -> None:
    model, experts = tiny()
    tokens = random_tokens(64, model.config.vocab_size, SEED)
    wrong = random_tokens(rejected + 1, model.config.vocab_size, SEED + 1)
    kept, rest = tokens[:40], tokens[40:60]

    straight, _ = _prefilled(model, experts, kept)
    expected = model.forward(rest, straight, experts)
    expected_draft = model.mtp_forward(expected[:-1], rest[1:], straight, experts)

    cache, _ = _prefilled(model, experts, kept)
    hidden = model.forward(wrong[:-1], cache, experts)
    model.mtp_forward(hidden, wrong[1:], cache, experts)
    cache.truncate(40)
    assert cache.length == 40
    if cache.mtp is not None:
        cache.mtp.truncate(39)
    assert cache.mtp_length == 39
    actual = model.forward(rest, cache, experts)
    assert torch.equal(actual, expected)
    draft = model.mtp_forward(actual[:-1], rest[1:], cache, experts)
    assert torch.equal(draft, expected_draft)


def test_sequence_truncate_keeps_a_shorter_mtp_cache() -> None:
    model, experts = tiny()
    cache, _ = _prefilled(model, experts, random_tokens(9, model.config.vocab_size, SEED))
    assert (cache.length, cache.mtp_length) == (9, 8)
    cache.truncate(8)
    assert (cache.length, cache.mtp_length) == (8, 8)
    cache.truncate(3)
    assert (cache.length, cache.mtp_length) == (3, 3)


def test_layer_cache_grows_to_its_capacity_and_no_further() -> None:
    cache = LayerCache(1000, (3, 2, 1), torch.device("cpu"))
    rows = torch.arange(1000.0)[:, None]
    for part in torch.split(rows, 7):
        cache.append(part.expand(-1, 3), part.expand(-1, 2), part)
    assert torch.equal(cache.latent, rows.expand(-1, 3))
    assert torch.equal(cache.rope_key, rows.expand(-1, 2))
    assert torch.equal(cache.index_key, rows)
    with pytest.raises(ValueError, match="1001 positions do not fit a cache of 1000"):
        cache.append(rows[:1].expand(-1, 3), rows[:1].expand(-1, 2), rows[:1])
    for length in (-1, 1001):
        with pytest.raises(ValueError, match="cannot truncate"):
            cache.truncate(length)


@pytest.mark.parametrize("count", [1, 2, ROWS_ALONE_MAX, ROWS_ALONE_MAX + 1])
def test_by_rows_calls_once_per_row_only_for_few_rows(count: int) -> None:
    seen: list[int] = []

    def double(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(x.shape[0])
        return 2 * x, y + 1

    x, y = torch.arange(count * 3.0).view(count, 3), torch.arange(count)
    first, second = by_rows(double, x, y)
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, y + 1)
    assert seen == ([1] * count if count <= ROWS_ALONE_MAX else [count])
