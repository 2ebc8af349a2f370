"""The loop that brings ducks up, in a simulated world in which time moves only when it is slept."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lifecycle_kit import (
    EXPECTED,
    NETWORK_BOOT,
    OTHER_BUILD,
    Box,
    World,
    engine_for,
    shelf,
    silence,
)

from duckctl.errors import ExitCode
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord, Event, Kind, Limits, State, Step
from duckctl.lifecycle.store import Store, open_store
from duckctl.provision.decide import Do, DuckPlan, Rules, Situation, plan_duck
from duckctl.provision.run import RunResult

LADDER = ("reboot", "command")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return shelf(tmp_path)


class Killed(BaseException):
    """The process is gone at this moment."""


def make_plans(
    fleet: Fleet, world: World, store: Store, limits: Limits, restart_all: bool = False
) -> list[DuckPlan]:
    """What the command does before the loop: one look, one plan per duck."""
    names = [duck.name for duck in fleet.ducks]
    answers = {entry["name"]: entry for entry in world.answers(names)}
    records = store.states(names)
    rules = Rules(EXPECTED, limits, restart_all)
    return [
        plan_duck(
            Situation(duck, records[duck.name], answers[duck.name], LADDER), rules, world.wall_s()
        )
        for duck in fleet.ducks
    ]


def run(
    fleet: Fleet,
    world: World,
    restart_all: bool = False,
    limits: Limits = Limits(),
    ladder: Sequence[str] = LADDER,
) -> dict[str, DuckRecord]:
    with open_store(fleet, clock=world.wall_s) as store:
        plans = make_plans(fleet, world, store, limits, restart_all)
        engine = engine_for(world, store, limits)
        names = [duck.name for duck in fleet.ducks]
        answers = {entry["name"]: entry for entry in world.answers(names)}
        engine.run(plans, dict.fromkeys(names, ladder), answers)
        return engine.records


def boxes(fleet: Fleet, change: Callable[[Box], None] = lambda _box: None) -> list[Box]:
    made = [Box(duck, NETWORK_BOOT, up_after_s=20.0) for duck in fleet.ducks]
    for box in made:
        change(box)
    return made


def test_dark_boxes_become_ready(fleet: Fleet) -> None:
    """Each is switched once, boots, and is verified; the history has every step."""
    world = World(boxes(fleet))
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}
    assert all(box.switched == ["command"] for box in world.boxes.values())
    with open_store(fleet) as store:
        history = [event.after for event in store.events(ducks=["duck01"])]
    assert history == [
        *("registered", "booting(power)", "booting(dhcp)", "booting(boot_file)"),
        *("booting(hello)", "booting(verify)", "ready"),
    ]


def test_a_second_run_touches_nothing(fleet: Fleet) -> None:
    """All are up and right: no switch is used and no event is added."""
    world = World(boxes(fleet))
    run(fleet, world)
    with open_store(fleet) as store:
        before = len(store.events())
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}
    assert all(box.boot == 1 for box in world.boxes.values())
    with open_store(fleet) as store:
        assert len(store.events()) == before


def test_t3_a_hung_boot_is_switched_again_and_then_given_up(fleet: Fleet) -> None:
    """T3: a stage that does not end is cut off, tried a bounded number of times, and reported with
    the last stage reached."""

    def hang(box: Box) -> None:
        if box.duck.name == "duck02":
            box.up_after_s = None

    world = World(boxes(fleet, hang))
    records = run(fleet, world)
    assert world.boxes["duck02"].switched == ["command", "command"]
    assert records["duck02"].describe() == "failed(hello)"
    assert "fetched the image, and does not answer" in records["duck02"].reason
    assert records["duck02"].attempts == 2
    others = [records[name].state for name in records if name != "duck02"]
    assert others == [State.READY] * 3


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ((), "failed(dhcp)"),
        (((5.0, Kind.DHCP),), "failed(boot_file)"),
        (((5.0, Kind.DHCP), (6.0, Kind.BOOT_FILE)), "failed(hello)"),
    ],
)
def test_a_duck_that_never_returns_is_reported_with_its_last_stage(
    fleet: Fleet, script: Sequence[tuple[float, Kind]], expected: str
) -> None:
    """How far it came is in its state, in words in the reason."""

    def stop(box: Box) -> None:
        box.script, box.up_after_s = script, None

    records = run(fleet, World(boxes(fleet, stop)))
    assert {record.describe() for record in records.values()} == {expected}
    assert all("waited" in record.reason for record in records.values())


def test_a_switch_that_fails_is_tried_twice(fleet: Fleet) -> None:
    """The next means is taken at once; the reason is the switch's own words."""
    world = World(boxes(fleet))
    world.refuses = {"command"}
    records = run(fleet, world)
    assert {record.describe() for record in records.values()} == {"failed(power)"}
    assert records["duck01"].reason == "command: no answer"
    assert world.boxes["duck01"].switched == ["command", "command"]


def test_two_backends_of_one_kind_are_each_tried_twice(fleet: Fleet) -> None:
    """In the inventory's order, told apart by their place in it."""

    def stay_dark(box: Box) -> None:
        box.up_after_s = None

    world = World(boxes(fleet, stay_dark))
    run(fleet, world, ladder=("reboot", "command", "wol", "command"))
    assert world.boxes["duck01"].switched == ["command"] * 2 + ["wol"] * 2 + ["command"] * 2
    assert world.boxes["duck01"].rungs == [1, 1, 2, 2, 3, 3]


def test_reboot_escalates_from_protocol_to_power(fleet: Fleet) -> None:
    """A hung system accepts REBOOT and does not obey it: only a new boot id ends the wait, then the
    power switch is used."""
    world = World(boxes(fleet))
    run(fleet, world)
    world.boxes["duck04"].obeys = False
    records = run(fleet, world, restart_all=True)
    assert {record.state for record in records.values()} == {State.READY}
    assert world.boxes["duck04"].switched == ["command", "reboot", "command"]
    assert world.boxes["duck01"].switched == ["command", "reboot"]
    assert [record.boots for record in records.values()] == [2, 2, 2, 2]


def test_t6_a_warm_reboot_that_gets_no_address_is_followed_by_a_cold_one(fleet: Fleet) -> None:
    """Some cards ask for no address after a warm restart: when that wait is over the box is
    switched off and on."""

    class ColdOnly(World):
        def _start(self, box: Box) -> None:
            super()._start(box)
            warm = box.switched[-1] == "reboot"
            box.script = () if warm else NETWORK_BOOT
            box.up_after_s = None if warm else 20.0

    world = ColdOnly(boxes(fleet))
    run(fleet, world)
    records = run(fleet, world, restart_all=True)
    assert {record.state for record in records.values()} == {State.READY}
    assert world.boxes["duck01"].switched == ["command", "reboot", "command"]


def test_t25_a_switch_port_that_is_slow_to_forward_is_waited_for(fleet: Fleet) -> None:
    """Spanning tree holds packets back for up to 50 s: the first address request comes that late,
    and nobody is switched again meanwhile."""

    def slow(box: Box) -> None:
        box.script = ((52.0, Kind.DHCP), (54.0, Kind.BOOT_FILE))
        box.up_after_s = 60.0

    world = World(boxes(fleet, slow))
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}
    assert all(box.boot == 1 for box in world.boxes.values())


def test_a_stale_duck_is_restarted_and_must_come_back_right(fleet: Fleet) -> None:
    """A duck of another build is restarted once; if it comes back the same it has failed, once."""

    def age(box: Box) -> None:
        box.boot, box.answers, box.started_s = 1, True, 1000.0
        if box.duck.name == "duck01":
            box.changes = {"build": OTHER_BUILD}

    world = World(boxes(fleet, age))
    records = run(fleet, world)
    assert world.boxes["duck01"].switched == ["reboot"]
    assert records["duck01"].describe() == "failed(verify)"
    assert "runs build cdcdcdcdcdcd" in records["duck01"].reason
    assert [world.boxes[name].boot for name in ("duck02", "duck04", "duck05")] == [1, 1, 1]


def test_a_box_in_maintenance_is_left_alone(fleet: Fleet) -> None:
    """It is neither looked at nor switched, and the run does not wait for it."""
    world = World(boxes(fleet))
    with open_store(fleet) as store:
        store.record("duck05", Event(Kind.MAINTENANCE_ON, 1.0, "fan"))
    records = run(fleet, world)
    assert records["duck05"].state is State.MAINTENANCE
    assert world.boxes["duck05"].switched == []


@pytest.mark.parametrize("during_s", [0.0, 5.0])
def test_a_duck_put_into_maintenance_during_a_run_is_not_switched(
    fleet: Fleet, during_s: float
) -> None:
    """After the plan was made (0 s) or after its first start failed: no switch from then on, and
    the run neither waits for it nor counts it."""

    def hang(box: Box) -> None:
        box.boot, box.answers = 1, True
        if box.duck.name == "duck05":
            box.script, box.up_after_s = (), None

    class Person(World):
        """Takes duck05 apart while the run goes on."""

        def restart(self, ducks: Sequence[Duck]) -> None:
            super().restart(ducks)
            begin.append(self.time_s)

        def heard(self) -> list[tuple[str, Event]]:
            if begin and self.time_s - begin[0] >= during_s and "duck05" not in begun:
                begun.append("duck05")
                take_apart()
            return super().heard()

    begin: list[float] = []
    begun: list[str] = []
    world = Person(boxes(fleet, hang))
    names = [duck.name for duck in fleet.ducks]
    with open_store(fleet, clock=world.wall_s) as store, open_store(fleet) as other:

        def take_apart() -> None:
            other.record("duck05", Event(Kind.MAINTENANCE_ON, world.time_s, "open"))

        answers = {entry["name"]: entry for entry in world.answers(names)}
        plans = make_plans(fleet, world, store, Limits(), restart_all=True)
        if not during_s:
            take_apart()
        engine = engine_for(world, store, Limits())
        engine.run(plans, dict.fromkeys(names, LADDER), answers)
    assert world.boxes["duck05"].switched == (["reboot"] if during_s else [])
    assert engine.records["duck05"].describe() == "maintenance"
    result = RunResult("run", tuple(plans), engine.records, 1.0)
    assert (result.failed, result.exit_code) == ([], ExitCode.OK)


def test_a_clock_that_jumps_does_not_end_waits(fleet: Fleet) -> None:
    """Deadlines are monotonic: an hour's jump of the wall clock in the middle fails no duck."""

    class Jumping(World):
        def wall_s(self) -> float:
            return self.time_s + (3600.0 if self.time_s > 1_000_008.0 else 0.0)

    world = Jumping(boxes(fleet))
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}
    assert all(box.boot == 1 for box in world.boxes.values())


def turns_of(fleet: Fleet, world: World, kill_after: int | None) -> int:
    """A run that is killed after so many steps of the world; gives how many it took."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if kill_after is not None and steps > kill_after:
            raise Killed

    class Dying(World):
        """The kill may come before or behind everything that the loop does to the world."""

    dying = Dying([])
    dying.__dict__ = world.__dict__
    for name in ("restart", "switch", "look", "seen", "heard", "done", "sleep"):
        inner = getattr(world, name)

        def outer(*values: object, _inner: Callable[..., object] = inner) -> object:
            count()
            result = _inner(*values)
            count()
            return result

        setattr(dying, name, outer)
    try:
        run(fleet, dying)
    finally:
        for name in ("restart", "switch", "look", "seen", "heard", "done", "sleep"):
            dying.__dict__.pop(name, None)
    return steps


@pytest.mark.parametrize("seed", range(40))
def test_a_run_killed_anywhere_is_gone_on_with(tmp_path: Path, seed: int) -> None:
    """Killed at a random step, also between a switch and its record, and run again (twice killed
    for some): all ducks are ready, and none was switched a second time."""
    generator = random.Random(seed)
    fleet = shelf(tmp_path)
    whole = turns_of(fleet, World(boxes(fleet)), None)
    (tmp_path / "shelf.state.db").unlink()
    world = World(boxes(fleet))
    for kill in range(1 + seed % 2):
        try:
            turns_of(fleet, world, generator.randrange(whole))
            assert kill == 1, f"the first run was not killed, seed {seed}"
        except Killed:
            world._looks, world._done = [], []  # threads died with the process
            world.time_s += generator.choice([0.0, 1.0, 8.0])
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}
    assert {name: box.boot for name, box in world.boxes.items()} == dict.fromkeys(world.boxes, 1)


def test_no_duck_is_forgotten_by_a_look_that_failed(fleet: Fleet) -> None:
    """A probe that could not run is repeated; it is no answer of the duck."""

    class Blinking(World):
        blinks = 0

        def seen(self) -> list[tuple[list[str], Mapping[str, Any] | None]]:
            found = super().seen()
            if found and self.blinks < 3:
                self.blinks += 1
                return [(names, None) for names, _ in found]
            return found

    world = Blinking(boxes(fleet))
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}


def test_wait_plans_still_fail_in_the_end(fleet: Fleet) -> None:
    """A duck that an earlier run has started and that never comes is switched, then given up."""
    from duckctl.lifecycle.machine import Event

    def dead(box: Box) -> None:
        box.up_after_s, box.script = None, ()

    world = World(boxes(fleet, dead))
    with open_store(fleet) as store:
        for duck in fleet.ducks:
            store.record(duck.name, Event(Kind.BOOT, world.time_s - 10))
            store.record(duck.name, Event(Kind.POWERED, world.time_s - 9))
        plans = make_plans(fleet, world, store, Limits())
    assert {plan.do for plan in plans} == {Do.WAIT}
    records = run(fleet, world)
    assert {record.step for record in records.values()} == {Step.DHCP}
    assert world.boxes["duck01"].switched == ["command", "command"]


def test_a_duck_that_served_is_waited_for_until_it_serves_again(fleet: Fleet) -> None:
    """The serving host loads it; when nobody does, the run ends all the same."""

    class Served(World):
        """What the ducks say they do depends on how long they are up."""

        host_lives = True

        def answers(self, names: Sequence[str]) -> list[dict[str, Any]]:
            found = super().answers(names)
            for entry in found:
                box = self.boxes[entry["name"]]
                up_s = self.time_s - (box.started_s or 0.0) - 20.0
                if entry["reachable"] and self.host_lives:
                    entry["state"] = "idle" if up_s < 5 else "loading" if up_s < 90 else "serving"
            return found

    world = Served(boxes(fleet))
    run(fleet, world)
    world.time_s += 600.0
    records = run(fleet, world, restart_all=True)
    assert {record.state for record in records.values()} == {State.SERVING}
    world.time_s += 600.0
    begin_s, start = world.time_s, world._start

    def start_without_host(box: Box) -> None:
        start(box)
        world.host_lives = False

    world._start = start_without_host  # type: ignore[method-assign]
    records = run(fleet, world, restart_all=True)
    assert {record.state for record in records.values()} == {State.READY}
    assert world.time_s - begin_s < 120.0


def test_late_results_of_a_batch_before_are_let_pass(fleet: Fleet) -> None:
    """A switch or a probe that a finished batch has begun reports to the next one: no harm."""

    class Late(World):
        """The first look and the first switch are those of ducks that this run does not have."""

        def answers(self, names: Sequence[str]) -> list[dict[str, Any]]:
            known = [name for name in names if name in self.boxes]
            others = [name for name in names if name not in self.boxes]
            strangers = [{"name": name, "reachable": False} for name in others]
            return super().answers(known) + strangers

    world = Late(boxes(fleet))
    world._done = [("duck99", "too late")]
    world._looks = [["duck98"]]
    records = run(fleet, world)
    assert {record.state for record in records.values()} == {State.READY}


def test_a_duck_that_dies_while_it_is_waited_for_is_brought_back(fleet: Fleet) -> None:
    """It was back and ready, was to be loaded, and fell silent: after a while it is switched."""

    class Dying(World):
        """duck02 dies 3 s after its first restart; a serving host loads what lives."""

        def answers(self, names: Sequence[str]) -> list[dict[str, Any]]:
            found = super().answers(names)
            for number, entry in enumerate(found):
                box = self.boxes[entry["name"]]
                up_s = self.time_s - (box.started_s or 0.0) - 20.0
                if box.duck.name == "duck02" and box.boot == 2 and up_s > 3.0:
                    found[number] = silence(box.duck)
                elif entry["reachable"]:
                    entry["state"] = "idle" if up_s < 5 else "serving"
            return found

    world = Dying(boxes(fleet))
    run(fleet, world)
    world.time_s += 600.0
    records = run(fleet, world, restart_all=True)
    assert {record.state for record in records.values()} == {State.SERVING}
    assert world.boxes["duck02"].switched == ["command", "reboot", "command"]
