"""Calls through mailboxes: native threads and Python ones give the bits of a submitted call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from duck_process import wait_until
from emulated_card import Card
from random_experts import RandomExperts, random_call
from serving_experts import limit_calls, serving

from host_runtime import wire
from host_runtime.bench.lanes import PythonOnly
from host_runtime.cuda.link import CallLink, PythonLanes
from host_runtime.cuda.mailbox import HostLane
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, ExpertsUnavailableError, PendingExperts
from host_runtime.experts.remote import RemoteOptions
from host_runtime.fleet.status import DuckState
from host_runtime.transport import Faults

SEED = 47
EXPERTS = RandomExperts(SEED)
TOP_K = 3
ERROR_S_MAX = 5.0
Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@contextmanager
def linked(card: Card) -> Iterator[CallLink]:
    link = CallLink([HostLane(box) for box in card.boxes])
    try:
        yield link
    finally:
        link.close()


def one_row(seed: int) -> Call:
    """A call of one token whose magnitudes spread over many powers of two."""
    hidden, ids, weights = random_call(EXPERTS, seed, 1, TOP_K)
    return hidden * 2.0 ** (seed % 17 - 8), ids, weights


@pytest.mark.parametrize(
    ("activation", "result"),
    [
        (wire.Dtype.F32, wire.Dtype.F32),
        (wire.Dtype.BF16, wire.Dtype.F32),
        (wire.Dtype.FP8, wire.Dtype.BF16),
    ],
    ids=["f32", "bf16", "fp8-bf16"],
)
def test_all_ways_give_the_same_bits(
    tmp_path: Path, activation: wire.Dtype, result: wire.Dtype
) -> None:
    """Two lanes in turns, 3 ducks, a lossy wire; against calls that are submitted one by one."""
    faults = Faults(seed=SEED, drop=0.05, duplicate=0.05, reorder=0.05)
    options = RemoteOptions(activation_dtype=activation, result_dtype=result, faults=faults)
    card = Card(TOP_K, EXPERTS.hidden)
    with serving(EXPERTS, tmp_path, 3, options) as (_, remote), linked(card) as link:
        for experts in (remote, PythonOnly(remote)):
            for step in range(4):
                with link.serving(experts):
                    for number in range(6):
                        calls = [one_row(100 * step + 2 * number + lane) for lane in range(2)]
                        layer = 1 + number % 2
                        for lane, call in enumerate(calls):
                            card.post(lane, layer, *call)
                        for lane, call in enumerate(calls):
                            found = card.result(lane)
                            assert torch.equal(found, remote.submit(layer, *call).wait())
                            assert found.abs().max() > 0


def test_a_wrong_call_ends_its_lane_only(tmp_path: Path) -> None:
    """Named after the step; the lane's later calls are answered with zeros, the other lane's are
    not, and the next step is as if nothing had been."""
    card = Card(TOP_K, EXPERTS.hidden)
    hidden, ids, weights = one_row(1)
    with serving(EXPERTS, tmp_path, 2) as (_, remote), linked(card) as link:
        good = remote.submit(1, hidden, ids, weights).wait()
        for experts in (remote, PythonOnly(remote)):
            for layer, wrong_ids, words in (
                (1, ids + EXPERTS.experts, "expert id"),
                (77, ids, "layer 77 has no experts"),
            ):
                with pytest.raises(HostError, match=words), link.serving(experts):
                    card.post(0, layer, hidden, wrong_ids, weights)
                    assert not card.result(0).any()
                    card.post(0, 1, hidden, ids, weights)
                    assert not card.result(0).any()
                    card.post(1, 1, hidden, ids, weights)
                    assert torch.equal(card.result(1), good)
            with link.serving(experts):
                card.post(0, 1, hidden, ids, weights)
                assert torch.equal(card.result(0), good)


def test_a_dead_duck_is_named_and_the_card_gets_answers(tmp_path: Path) -> None:
    options = RemoteOptions(call_deadline_ms=500)
    card = Card(TOP_K, EXPERTS.hidden)
    call = one_row(2)
    with serving(EXPERTS, tmp_path, 2, options) as (ducks, remote), linked(card) as link:
        with link.serving(remote):
            card.post(0, 1, *call)
            good = card.result(0)
        ducks[1].kill()
        begin = time.monotonic()
        with pytest.raises(ExpertsUnavailableError, match="d02") as caught, link.serving(remote):
            for lane in range(2):
                card.post(lane, 1, *call)
            assert not any(card.result(lane).any() for lane in range(2))
        assert time.monotonic() - begin < ERROR_S_MAX
        assert caught.value.duck_names == ["d02"]
        with pytest.raises(ExpertsUnavailableError, match="d02"), link.serving(remote):
            raise AssertionError("the step must not run")
        ducks[1].start()
        states = (DuckState.SERVING,)
        wait_until(
            lambda: all(status.state in states for status in remote.status()), 20, "both serve"
        )
        with link.serving(remote):
            card.post(1, 1, *call)
            assert torch.equal(card.result(1), good)


def test_a_step_that_uses_up_the_call_numbers_is_the_only_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_calls(monkeypatch, 3)
    card = Card(TOP_K, EXPERTS.hidden)
    call = one_row(5)
    with serving(EXPERTS, tmp_path, 2) as (_, remote), linked(card) as link:
        good = remote.submit(1, *call).wait()
        with (
            pytest.raises(ExpertsUnavailableError, match="all 3 call numbers") as caught,
            link.serving(remote),
        ):
            for expected in (good, good, torch.zeros_like(good)):
                card.post(0, 1, *call)
                assert torch.equal(card.result(0), expected)
        assert caught.value.duck_names == ["d01", "d02"]
        wait_until(lambda: all(status.ready for status in remote.status()), 20, "both serve")
        with link.serving(remote):
            card.post(1, 1, *call)
            assert torch.equal(card.result(1), good)


def test_threads_sleep_between_steps_and_end_with_the_experts(tmp_path: Path) -> None:
    """Without a step nothing is answered and no processor time is used."""
    card = Card(TOP_K, EXPERTS.hidden)
    call = one_row(3)
    with serving(EXPERTS, tmp_path, 1) as (_, remote), linked(card) as link:
        with link.serving(remote):
            card.post(0, 1, *call)
            good = card.result(0)
        card.post(0, 1, *call)
        before = time.process_time()
        time.sleep(0.3)
        assert not card.is_answered(0)
        assert time.process_time() - before < 0.15, "two spinning threads would take 0.3 s or more"
        with link.serving(remote):
            assert torch.equal(card.result(0), good)
        remote.close()
        with pytest.raises(ExpertsUnavailableError, match="closed"), link.serving(remote):
            raise AssertionError("the step must not run")


def test_traced_calls_of_lanes_have_their_layer_and_wait(tmp_path: Path) -> None:
    card = Card(TOP_K, EXPERTS.hidden)
    with serving(EXPERTS, tmp_path, 2) as (_, remote), linked(card) as link:
        remote.set_trace(16)
        with link.serving(remote):
            for number in range(3):
                card.post(number % 2, 1 + number % 2, *one_row(number))
                card.result(number % 2)
        calls = remote.trace()
    assert [call["layer"] for call in calls] == [1, 2, 1]
    for call in calls:
        assert call["submit_s"] <= call["wait_begin_s"] <= call["wait_end_s"]
        assert [duck["name"] for duck in call["ducks"]] == ["d01", "d02"]
        assert all(duck["done_s"] <= call["wait_end_s"] for duck in call["ducks"])


def test_defects_of_python_experts_come_out_as_they_are() -> None:
    class Broken:
        def submit(self, *arguments: object) -> PendingExperts:
            raise ZeroDivisionError("a defect")

        def status(self) -> list[DuckStatus]:
            return []

        def close(self) -> None:
            pass

    card = Card(TOP_K, EXPERTS.hidden)
    lanes = PythonLanes(card.boxes)
    lanes.experts = Broken()
    lanes.begin()
    card.post(0, 1, *one_row(4))
    assert not card.result(0).any()
    with pytest.raises(ZeroDivisionError, match="a defect"):
        lanes.end()
    lanes.close()
