"""Speeds follow their definitions, and only differences beyond the noise are called changes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from bench_kit import make_sample

from duckctl.bench_serve.archive import request_bars, running_tpot_ms, step_times_ms
from duckctl.bench_serve.measure import stages
from duckctl.bench_serve.statistics import judge, summarise


def test_metrics_of_equal_steps() -> None:
    """20 steps of 20 ms give 40 tokens after the first: TPOT 10 ms."""
    sample = make_sample(step_s=0.02, steps=20)
    assert sample.metrics["tpot_ms"] == pytest.approx(10.0)
    assert sample.metrics["decode_tokens_per_s"] == pytest.approx(100.0)
    assert sample.metrics["prefill_tokens_per_s"] == pytest.approx(30.0)
    assert sample.acceptance == 1.0
    assert [value for _, value in step_times_ms(sample)] == pytest.approx([20.0] * 20)
    index, tpot_ms = running_tpot_ms(sample)[-1]
    assert (index, round(tpot_ms, 6)) == (40, 10.0)


def test_bars_of_a_request_touch_and_do_not_overlap() -> None:
    bars = [bar for bar in request_bars(make_sample()) if bar.track == "lane 0"]
    assert len(bars) == 20
    for before, after in pairwise(bars):
        assert before.start_s + before.duration_s == pytest.approx(after.start_s)


def test_stages_are_what_counters_gained() -> None:
    before = {"d01": {"calls": 1.0, "call_ns": 5e6, "kernel_ns": 1e6, "sent_bytes": 10.0}}
    after = {
        "d01": {"calls": 3.0, "call_ns": 25e6, "kernel_ns": 9e6, "sent_bytes": 30.0},
        "d02": {"calls": 2.0, "call_ns": 30e6, "kernel_ns": 5e6, "sent_bytes": 5.0},
    }
    found = stages(before, after, {"queue_s": 0.1, "ttft_s": 0.2, "decode_s": 0.4})
    assert found is not None
    document = found.document()
    assert document["request_ms"] == pytest.approx(500)
    assert document["kernel_ms"] == pytest.approx(8)
    assert document["wire_and_wait_ms"] == pytest.approx(22)
    assert document["host_ms"] == pytest.approx(470)
    assert document["sent_bytes"] == 25
    assert stages({}, {}, {}) is None


def test_summary() -> None:
    summary = summarise([3.0, 1.0, 2.0])
    assert (summary.median, summary.smallest, summary.largest, summary.count) == (2.0, 1.0, 3.0, 3)
    assert summary.spread == 1.0
    assert summarise([5.0]).deviation == 0.0


def test_verdicts() -> None:
    steady, faster = [10.0, 10.1, 9.9], [12.0, 12.1, 11.9]
    assert judge(steady, faster, higher_is_better=True) == "faster"
    assert judge(steady, faster, higher_is_better=False) == "slower"
    assert judge(faster, steady, higher_is_better=True) == "slower"
    assert judge([10.0, 14.0, 7.0], [12.0, 9.0, 15.0], higher_is_better=True) == "noise"
    assert judge([10.0, 10.0], [10.1, 10.1], higher_is_better=True) == "noise"  # below 2 %
    assert judge([10.0], [20.0], higher_is_better=True) == "one repeat"


@pytest.mark.parametrize("repeats", [3, 5])
def test_noise_is_seldom_called_a_change(repeats: int) -> None:
    """Two draws from one distribution: at most 7 % of 2,000 trials may differ (95 % test)."""
    numbers = random.Random(repeats)  # the seed is in the name of the test

    def draw() -> list[float]:
        return [numbers.gauss(100, 8) for _ in range(repeats)]

    wrong = sum(judge(draw(), draw(), higher_is_better=True) != "noise" for _ in range(2000))
    assert wrong <= 140
