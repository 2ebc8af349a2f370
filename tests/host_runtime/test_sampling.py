"""Sampling follows the stated distribution, with drafts exactly as without, and seeds reproduce."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from host_kit import finish_all, outcome
from markov_model import MarkovModel, markov_engine

from host_runtime.engine import SamplingParams
from host_runtime.engine.sampling import Sampler, probabilities
from host_runtime.errors import NumericsError

SEED = 1234
VOCABULARY = 5


def _chi_square(counts: list[int], chances: list[float]) -> float:
    total = sum(counts)
    return sum(
        (count - total * chance) ** 2 / (total * chance)
        for count, chance in zip(counts, chances, strict=True)
    )


def _chi_square_limit(degrees: int) -> float:
    """Exceeded by chance once in about a million (Wilson-Hilferty approximation, z = 4.75)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4.75 * math.sqrt(spread)) ** 3)


def _table(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)


@pytest.mark.parametrize("draft", range(VOCABULARY))
def test_verification_keeps_the_distribution(draft: int) -> None:
    logits = _table(SEED)[0]
    params = SamplingParams(max_tokens=1, temperature=0.8, seed=SEED + draft)
    sampler, chances = Sampler(params), probabilities(logits, params)
    choices = [sampler.verify(logits, draft) for _ in range(4000)]
    counts = Counter(choice.token for choice in choices)
    statistic = _chi_square([counts[token] for token in range(VOCABULARY)], chances.tolist())
    assert statistic < _chi_square_limit(VOCABULARY - 1)
    assert all(choice.accepted_draft == (choice.token == draft) for choice in choices)


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
@pytest.mark.slow
def test_whole_answers_keep_the_distribution(mtp: bool) -> None:
    """Chi-square over all answers of three tokens: drafts accepted, rejected, rolled back."""
    table, start, requests = _table(SEED), 0, 1500
    model = MarkovModel(table, draft_table=_table(SEED + 1))
    engine = markov_engine(model, mtp=mtp)
    counts: Counter[tuple[int, ...]] = Counter()
    proposed = accepted = 0
    for seed in range(requests):
        params = SamplingParams(max_tokens=3, temperature=1.0, seed=seed)
        handle = engine.submit([3, start], params)
        finish_all(engine)
        tokens, finished = outcome(handle)
        counts[tuple(tokens)] += 1
        proposed += finished.stats.drafts_proposed
        accepted += finished.stats.drafts_accepted
    chances = table.double().softmax(-1)
    answers = [
        (a, b, c) for a in range(VOCABULARY) for b in range(VOCABULARY) for c in range(VOCABULARY)
    ]
    expected = [float(chances[start, a] * chances[a, b] * chances[b, c]) for a, b, c in answers]
    frequent = [place for place, chance in enumerate(expected) if chance * requests >= 5]
    rest = [place for place in range(len(answers)) if place not in set(frequent)]
    seen = [counts[answers[place]] for place in frequent]
    seen.append(sum(counts[answers[place]] for place in rest))
    wanted = [expected[place] for place in frequent] + [sum(expected[place] for place in rest)]
    assert _chi_square(seen, wanted) < _chi_square_limit(len(seen) - 1)
    if mtp:
        assert 0 < accepted < proposed  # both ways were taken


def test_greedy_with_a_bad_draft_model_equals_plain_greedy() -> None:
    model = MarkovModel(_table(SEED), draft_table=_table(SEED + 2))
    answers = []
    for mtp in (True, False):
        engine = markov_engine(model, mtp=mtp)
        handle = engine.submit([1], SamplingParams(max_tokens=40))
        finish_all(engine)
        answers.append(outcome(handle)[0])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_seeds_reproduce(mtp: bool) -> None:
    model = MarkovModel(_table(SEED), draft_table=_table(SEED + 1))
    engine = markov_engine(model, mtp=mtp)
    answers = {}
    for turn in range(2):
        for seed in (1, 2, None):
            handle = engine.submit([1], SamplingParams(max_tokens=50, temperature=1.0, seed=seed))
            finish_all(engine)
            answers[turn, seed] = outcome(handle)[0]
    assert answers[0, 1] == answers[1, 1]
    assert answers[0, 2] == answers[1, 2]
    assert answers[0, 1] != answers[0, 2]
    assert answers[0, None] != answers[1, None]


def test_filters() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]).log()
    plain = probabilities(logits, SamplingParams(1, temperature=1.0)).tolist()
    assert plain == pytest.approx([0.1, 0.4, 0.2, 0.2, 0.1])
    top_2 = probabilities(logits, SamplingParams(1, temperature=1.0, top_k=2)).tolist()
    assert top_2 == pytest.approx([0, 2 / 3, 1 / 3, 0, 0])  # the lower id wins the tie
    nucleus = probabilities(logits, SamplingParams(1, temperature=1.0, top_p=0.55)).tolist()
    assert nucleus == pytest.approx([0, 2 / 3, 1 / 3, 0, 0])
    both = SamplingParams(1, temperature=1.0, top_k=3, top_p=0.6)
    assert probabilities(logits, both).tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0, 0])
    cold = probabilities(logits, SamplingParams(1, temperature=1e-300)).tolist()
    assert cold == [0, 1, 0, 0, 0]
    sharp = probabilities(logits, SamplingParams(1, temperature=0.5)).tolist()
    assert sharp == pytest.approx([1 / 26, 16 / 26, 4 / 26, 4 / 26, 1 / 26])
    tiny_nucleus = probabilities(logits, SamplingParams(1, temperature=1.0, top_p=1e-9)).tolist()
    assert tiny_nucleus == [0, 1, 0, 0, 0]


def test_log_probabilities_are_those_before_filters() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]).log() + 3
    choice = Sampler(SamplingParams(1, temperature=0.01, top_k=1)).choose(logits)
    assert choice.token == 1
    assert math.exp(choice.logprob) == pytest.approx(0.4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(temperature: float, bad: float) -> None:
    sampler = Sampler(SamplingParams(1, temperature=temperature))
    logits = torch.tensor([0.0, bad, 1.0])
    with pytest.raises(NumericsError, match="not finite"):
        sampler.choose(logits)
    with pytest.raises(NumericsError, match="not finite"):
        sampler.verify(logits, 0)
