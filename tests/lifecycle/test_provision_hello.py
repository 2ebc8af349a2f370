"""The boot service is told which ducks came up: what was set for one boot ends with that boot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from lifecycle_kit import (
    BUILD,
    EXPECTED,
    NETWORK_BOOT,
    Box,
    StoredEars,
    World,
    answer,
    shelf,
    silence,
)

from duckctl.boot.intents import Intents
from duckctl.boot.plan import boot_paths
from duckctl.console import warn
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle import look as looking
from duckctl.lifecycle.greet import Greeter
from duckctl.lifecycle.look import Look, refresh
from duckctl.lifecycle.machine import DuckRecord, Event, Kind, Limits
from duckctl.lifecycle.store import Store, open_store
from duckctl.provision.decide import Rules, Situation, plan_duck
from duckctl.provision.engine import Senses
from duckctl.provision.run import Runner, Survey, _other_images
from duckctl.provision.show import Show

LADDER = ("reboot", "command")
NOW_S = 1_000_000.0


class Told:
    """A display that shows nothing."""

    def change(self, duck: Duck, record: DuckRecord) -> None:
        """Not kept."""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return shelf(tmp_path)


def intents_of(fleet: Fleet, at_s: float = NOW_S) -> Intents:
    return Intents(boot_paths(fleet).intents, lambda: at_s)


def reboot(fleet: Fleet, world: World, names: list[str]) -> dict[str, DuckRecord]:
    """A run of `duckctl reboot`, as the command does it."""
    ducks = [duck for duck in fleet.ducks if duck.name in names]
    with open_store(fleet, "reboot", clock=world.wall_s) as store:
        answers = {str(entry["name"]): entry for entry in world.answers(names)}
        rules, records = Rules(EXPECTED, Limits(), restart_all=True), store.states(names)
        images = _other_images(fleet)
        plans = [
            plan_duck(
                Situation(
                    *(duck, records[duck.name], answers[duck.name], LADDER),
                    other_image=images.get(duck.name, ""),
                ),
                rules,
                world.wall_s(),
            )
            for duck in ducks
        ]
        assert [plan.boots for plan in plans] == [images.get(name, "linux") for name in names]
        ladders = dict.fromkeys(names, LADDER)
        survey = Survey(Look(BUILD, answers), records, ladders, tuple(plans), rules)
        runner = Runner(fleet, store, survey, cast(Show, Told()))
        runner._senses = Senses(world, world, StoredEars(world, store), world)
        runner.run(plans)
        return runner.records


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "ready"), ({"state": "serving"}, "serving"), ({"platform": "duckos"}, "failed(verify)")],
)
def test_a_one_shot_ends_with_the_boot_that_it_was_for(
    fleet: Fleet, changes: Mapping[str, Any], state: str
) -> None:
    """Whatever the duck does when it is first seen, and also where the image of that one boot is
    not the inventory's. A duck that did not boot keeps its own."""
    world = World(
        [Box(duck, NETWORK_BOOT, boot=1, up_after_s=20.0, answers=True) for duck in fleet.ducks],
        NOW_S,
    )
    world.boxes["duck01"].changes = changes
    for name in ("duck01", "duck02"):
        intents_of(fleet, NOW_S - 1).set_image(name, "duckos", one_shot=True)
    records = reboot(fleet, world, ["duck01"])
    assert records["duck01"].describe() == state
    assert list(intents_of(fleet).read()) == ["duck02"]
    assert intents_of(fleet).take_hellos() == ["duck01"]


def status(
    fleet: Fleet, store: Store, answers: Mapping[str, Any], patch: pytest.MonkeyPatch
) -> None:
    """One look by `duckctl status` at NOW_S; ducks that are not named are silent."""
    ducks = [answers.get(duck.name) or silence(duck) for duck in fleet.ducks]
    patch.setattr(looking, "probe_all", lambda *_: {"build": BUILD, "ducks": ducks})
    patch.setattr("time.time", lambda: NOW_S)
    refresh(fleet, store, fleet.ducks)
    patch.undo()


def test_a_start_outside_of_any_run_is_seen_by_the_next_look(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """duck01 was switched by hand after its one-shot was set, duck02 runs since before that, though
    nobody has looked at it yet; duck04 is in maintenance."""
    for duck in fleet.ducks[:3]:
        intents_of(fleet, NOW_S - 60).set_image(duck.name, "duckos", one_shot=True)
    up_s = dict(zip(("duck01", "duck02", "duck04"), (30.0, 90.0, 30.0), strict=True))
    answers = {
        duck.name: answer(duck, "07", uptime_s=up_s[duck.name])
        for duck in fleet.ducks
        if duck.name in up_s
    }
    with open_store(fleet, clock=lambda: NOW_S - 100) as store:
        store.record("duck04", Event(Kind.MAINTENANCE_ON, NOW_S - 90))
        status(fleet, store, answers, monkeypatch)
        assert list(intents_of(fleet).read()) == ["duck02"]
        assert intents_of(fleet).take_hellos() == ["duck01", "duck02", "duck04"]
        status(fleet, store, answers, monkeypatch)
        assert intents_of(fleet).take_hellos() == []  # no new boot, nothing to end
        answers["duck02"] |= {"boot_id": "08", "uptime_s": 10.0}
        status(fleet, store, answers, monkeypatch)
    assert intents_of(fleet).read() == {}
    assert intents_of(fleet).take_hellos() == ["duck02"]


def test_a_hello_that_cannot_be_written_ends_no_run(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, not one a duck."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    greeter = Greeter(fleet, warn)
    monkeypatch.setattr(Path, "open", refuse)
    with caplog.at_level(logging.WARNING):
        for duck in fleet.ducks:
            greeter.greet(duck, DuckRecord(duck.name), answer(duck), NOW_S)
    monkeypatch.undo()
    greeter.greet(fleet.ducks[0], DuckRecord("duck01"), answer(fleet.ducks[0]), NOW_S)
    assert intents_of(fleet).take_hellos() == ["duck01"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is not told which ducks came up: cannot write" in line
