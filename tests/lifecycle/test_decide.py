"""What a run would do with a duck follows from inventory, history and one look, nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lifecycle_kit import EXPECTED, OTHER_BUILD, answer, shelf, silence

from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord, Limits, State, Step
from duckctl.lifecycle.verify import problems_of
from duckctl.provision.decide import (
    Do,
    DuckPlan,
    Rules,
    Situation,
    batch_size,
    batches,
    plan_duck,
    settle_s,
)

PROVISION = Rules(EXPECTED, Limits())
REBOOT = Rules(EXPECTED, Limits(), restart_all=True)
NOW_S = 1000.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return shelf(tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def duck(fleet: Fleet) -> Duck:
    return fleet.ducks[0]


def plan(
    duck: Duck,
    facts: dict[str, Any],
    record: DuckRecord | None = None,
    ladder: tuple[str, ...] = ("reboot", "command"),
    rules: Rules = PROVISION,
) -> DuckPlan:
    situation = Situation(duck, record or DuckRecord(duck.name), facts, ladder)
    return plan_duck(situation, rules, NOW_S)


def booting(duck: Duck, step: Step, since_s: float) -> DuckRecord:
    return DuckRecord(duck.name, State.BOOTING, step, since_s=since_s, boot_id="a")


def test_t27_a_duck_that_is_right_is_never_touched(duck: Duck) -> None:
    """Whatever the history says: a duck that answers and is right stays as it is."""
    for state in State:
        for step in (None, *Step):
            record = DuckRecord(duck.name, state, step, since_s=NOW_S - 1)
            chosen = plan(duck, answer(duck), record)
            expected = Do.LEAVE if state is State.MAINTENANCE else Do.KEEP
            assert (chosen.do, chosen.touches) == (expected, False)


def test_a_duck_of_another_build_is_restarted(duck: Duck) -> None:
    """Its image is old: booting again cures that; the old boot id has to go."""
    chosen = plan(duck, answer(duck, "07", build=OTHER_BUILD))
    assert (chosen.do, chosen.old_boot_id, chosen.boots) == (Do.RESTART, "07", "linux")
    assert "cdcdcdcdcdcd" in chosen.why


def test_a_duck_with_the_wrong_image_is_restarted(duck: Duck) -> None:
    """It runs the other image than its inventory says."""
    assert plan(duck, answer(duck, platform="duckos")).do is Do.RESTART


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_bytes": 15 << 30},
        {"core_count": 2},
        {"name_told": "duck02"},
        {"mac_address": "a8:b8:e0:21:01:99"},
        {"cpu_features": ["fma"]},
    ],
)
def test_what_a_restart_cannot_cure_is_reported(duck: Duck, changes: dict[str, Any]) -> None:
    """Wrong hardware is named; restarting it again and again would not help."""
    chosen = plan(duck, answer(duck, **changes))
    assert (chosen.do, chosen.touches) == (Do.REPORT, False)
    assert chosen.why


def test_a_slow_link_is_a_problem(duck: Duck) -> None:
    """A 2.5 GbE port that came up with 100 Mbit/s is named with both numbers."""
    fast = replace(duck, link_mbps=2500)
    (problem,) = problems_of(fast, answer(fast, link_mbps=100), EXPECTED)
    assert "100" in problem and "2500" in problem


def test_firmware_may_take_a_part_of_the_memory(duck: Duck) -> None:
    """Graphics and firmware keep some of 32 GiB: 28 are enough, 26 are not."""
    assert problems_of(duck, answer(duck, memory_bytes=28 << 30), EXPECTED) == []
    assert problems_of(duck, answer(duck, memory_bytes=26 << 30), EXPECTED) != []


def test_a_duck_with_another_key_is_reported_and_not_switched(duck: Duck) -> None:
    """It is not the duck that was pinned: switching it would not make it so."""
    stranger = silence(duck) | {"reachable": True, "identity_ok": False}
    stranger["error"] = f"{duck.name}: its key changed"
    for rules in (PROVISION, REBOOT):
        chosen = plan(duck, stranger, rules=rules)
        assert (chosen.do, chosen.why) == (Do.REPORT, "its key changed")


def test_a_duck_of_another_protocol_version_is_restarted(duck: Duck) -> None:
    """It runs an old image: the present one cures that."""
    old = silence(duck) | {"reachable": True, "error": f"{duck.name}: speaks version 1"}
    chosen = plan(duck, old)
    assert (chosen.do, chosen.why) == (Do.RESTART, "speaks version 1")


def test_a_silent_duck_is_switched(duck: Duck) -> None:
    """Its power backends are used, the protocol's request is no switch."""
    chosen = plan(duck, silence(duck))
    assert chosen.do is Do.SWITCH
    assert "command" in chosen.why and "reboot" not in chosen.why


@pytest.mark.parametrize("step", list(Step))
def test_a_duck_that_was_started_before_is_waited_for(duck: Duck, step: Step) -> None:
    """A run that was killed goes on: within its time a booting duck is not switched again."""
    limit_s = Limits().of(step)
    early = plan(duck, silence(duck), booting(duck, step, NOW_S - limit_s + 1))
    late = plan(duck, silence(duck), booting(duck, step, NOW_S - limit_s - 1))
    assert (early.do, late.do) == (Do.WAIT, Do.SWITCH)


def test_a_duck_that_was_to_be_switched_and_is_off_is_switched(duck: Duck) -> None:
    """A run was killed before (or in the middle of) the switching: a switch that says "off" is
    believed, so nobody waits for a box without power."""
    record = booting(duck, Step.POWER, NOW_S - 1)
    situation = Situation(duck, record, silence(duck), ("command",), is_off=True)
    assert plan_duck(situation, PROVISION, NOW_S).do is Do.SWITCH


def test_t55_a_duck_without_a_switch_is_switched_by_hand(duck: Duck) -> None:
    """T55: a box that boots from the network, and that nothing can switch, is a person's work."""
    assert plan(duck, silence(duck), ladder=("reboot",)).do is Do.BY_HAND


def test_a_process_duck_without_a_switch_is_reported(duck: Duck) -> None:
    """There is no button on a process: waiting for a person would be waiting for nothing."""
    process = replace(duck, mac=None)
    assert plan(process, silence(process), ladder=()).do is Do.REPORT


def test_reboot_restarts_what_is_right_too(duck: Duck) -> None:
    """And requires another boot id; a silent duck must come back with another one as well."""
    chosen = plan(duck, answer(duck, "07"), rules=REBOOT)
    assert (chosen.do, chosen.old_boot_id) == (Do.RESTART, "07")
    lost = DuckRecord(duck.name, State.LOST, boot_id="06")
    assert plan(duck, silence(duck), lost, rules=REBOOT).old_boot_id == "06"


def test_a_restart_under_way_is_let_settle(duck: Duck) -> None:
    """An answer right after REBOOT was asked for may be the last of the old boot."""
    asked = DuckRecord(duck.name, State.REBOOTING, Step.POWER, since_s=NOW_S - 2)
    assert settle_s([asked], NOW_S) == pytest.approx(3.0)
    assert settle_s([replace(asked, since_s=NOW_S - 60)], NOW_S) == 0.0
    assert settle_s([replace(asked, since_s=NOW_S + 60)], NOW_S) == 0.0, "a clock set back"


@pytest.mark.parametrize(
    ("serial", "count", "expected"), [("25%", 32, 8), ("25%", 3, 1), ("4", 32, 4), ("100%", 5, 5)]
)
def test_batch_sizes(serial: str, count: int, expected: int) -> None:
    """A share is rounded down, and a batch has at least one duck."""
    assert batch_size(serial, count) == expected


@pytest.mark.parametrize("serial", ["0", "-1", "0%", "101%", "x", "", "%", "1.5"])
def test_batch_sizes_that_are_none(serial: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError):
        batch_size(serial, 32)


def test_batches_take_the_domains_in_turn(fleet: Fleet) -> None:
    """Half of the fleet at a time is half of each domain, and every duck is in one batch."""
    plans = [DuckPlan(duck, Do.RESTART, "") for duck in fleet.ducks]
    cut = batches(plans, "50%")
    names = [[plan.duck.name for plan in batch] for batch in cut]
    assert names == [["duck01", "duck04"], ["duck02", "duck05"]]
    assert batches(plans, None) == [[plans[0], plans[2], plans[1], plans[3]]]
    assert batches([], "25%") == []
