"""The hands and eyes of a run always come back with an answer, whatever goes wrong in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from lifecycle_kit import EXPECTED, SWITCHED, Box, StoredEars, World, shelf, write_inventory

from duckctl.cli import run as duckctl
from duckctl.errors import ExitCode
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord, Limits
from duckctl.lifecycle.store import open_store
from duckctl.power.backend import Action, PowerState
from duckctl.provision import crew
from duckctl.provision.crew import PowerHands, ProbeEyes, switched_off
from duckctl.provision.decide import Rules, Situation, plan_duck
from duckctl.provision.engine import Engine, Means, Senses

DONE_S = 20.0
ERRORS = [
    ValueError("no number: '22/tcp'"),
    TypeError("'NoneType' object is not iterable"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RuntimeError("whatever a library may raise"),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return shelf(tmp_path)


@dataclass
class Broken:
    """A backend whose every answer is an error that nobody has thought of."""

    error: Exception
    name: str = "ssh"
    actions: frozenset[Action] = frozenset(Action)
    asked: list[Action] = field(default_factory=list)

    def describe(self) -> str:
        raise self.error

    def state(self) -> PowerState:
        raise self.error

    def act(self, action: Action) -> None:
        raise self.error


@dataclass
class Working(Broken):
    """One that does what it is asked for."""

    name: str = "http"
    actions: frozenset[Action] = frozenset({Action.ON, Action.OFF})

    def describe(self) -> str:
        return self.name

    def state(self) -> PowerState:
        return PowerState.OFF

    def act(self, action: Action) -> None:
        self.asked.append(action)


def broken_for(
    monkeypatch: pytest.MonkeyPatch, error: Exception, names: tuple[str, ...], *more: Broken
) -> None:
    """The ladder of these ducks begins with a broken backend."""

    def ladder(duck: Duck, _fleet: Fleet) -> list[Broken]:
        return [*([Broken(error)] if duck.name in names else []), *more]

    monkeypatch.setattr(crew, "power_ladder", ladder)
    monkeypatch.setattr("duckctl.commands.power.power_ladder", ladder)


def wait_for(ask: Callable[[], list[Any]], count: int = 1) -> list[Any]:
    """What came within a time in which it must have come."""
    found: list[Any] = []
    deadline = time.monotonic() + DONE_S
    while len(found) < count and time.monotonic() < deadline:
        found += ask()
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_switch_always_answers(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error of any kind is a problem with a name, not a run that waits for ever."""
    broken_for(monkeypatch, error, ("duck01",))
    hands = PowerHands(fleet)
    hands.switch(fleet.ducks[0], Means("ssh", 0))
    ((name, problem),) = wait_for(hands.done)
    assert name == "duck01"
    assert problem == f"ssh: {type(error).__name__}: {error}"


def fail(*_words: object, **_more: object) -> NoReturn:
    raise TypeError("not what it should be")


def test_a_restart_always_answers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each duck that was asked for has a result: a probe that raises, and one that is malformed."""
    hands = PowerHands(fleet)
    for probe, words in ((fail, "not what it should be"), (lambda *_: {}, "ducks")):
        monkeypatch.setattr(crew, "probe", probe)
        hands.restart(fleet.ducks)
        found = dict(wait_for(hands.done, len(fleet.ducks)))
        assert sorted(found) == [duck.name for duck in fleet.ducks]
        assert all(words in problem for problem in found.values())


def test_a_look_always_answers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that went wrong is one that saw nobody."""
    monkeypatch.setattr(crew, "probe", fail)
    eyes = ProbeEyes(fleet)
    eyes.look(fleet.ducks)
    assert wait_for(eyes.seen) == [([duck.name for duck in fleet.ducks], None)]


def test_who_is_off_is_asked_of_the_next_backend(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that breaks hides neither the next backend nor the other ducks."""
    broken_for(monkeypatch, ERRORS[0], ("duck01",), Working(ERRORS[0]))
    assert switched_off(fleet.ducks, fleet) == {duck.name for duck in fleet.ducks}


@pytest.mark.timeout(60)
def test_a_broken_switch_fails_its_duck_and_the_run_ends(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine with the real hands: failed(power), with the reason, after two tries."""
    broken_for(monkeypatch, ERRORS[1], tuple(duck.name for duck in fleet.ducks))
    world = World([Box(duck) for duck in fleet.ducks])
    answers = {entry["name"]: entry for entry in world.answers([d.name for d in fleet.ducks])}
    rules, ladder = Rules(EXPECTED, Limits()), ("ssh",)
    with open_store(fleet, clock=world.wall_s) as store:
        senses = Senses(world, PowerHands(fleet), StoredEars(world, store), world)
        plans = [
            plan_duck(
                Situation(duck, DuckRecord(duck.name), answers[duck.name], ladder), rules, 0.0
            )
            for duck in fleet.ducks
        ]
        engine = Engine(store, senses, EXPECTED, Limits())
        engine.run(plans, dict.fromkeys(answers, ladder), answers)
    assert sorted(engine.records) == [duck.name for duck in fleet.ducks]
    for record in engine.records.values():
        assert (record.describe(), record.attempts) == ("failed(power)", 2)
        assert record.reason == f"ssh: TypeError: {ERRORS[1]}"


@pytest.mark.slow
def test_the_second_of_two_backends_of_one_kind_is_used(tmp_path: Path) -> None:
    """The rung of the ladder decides, not the name: one command each, by what it leaves behind."""
    first, second = (tmp_path / name for name in ("first", "second"))
    commands = ", ".join(
        f"{{backend: command, on: 'touch {path}', off: 'true'}}" for path in (first, second)
    )
    fleet = shelf(tmp_path, f"[{commands}]")
    hands = PowerHands(fleet)
    hands.switch(fleet.ducks[0], Means("command", 1))
    assert wait_for(hands.done) == [("duck01", "")]
    assert (first.exists(), second.exists()) == (False, True)


def test_power_goes_on_with_the_other_ducks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`duckctl power` names the duck whose backend broke; the others are switched and asked."""
    path = write_inventory(tmp_path, SWITCHED)
    works = Working(ERRORS[0])
    ladders = {"duck01": [Broken(ERRORS[0])], "duck02": [Broken(ERRORS[0]), works]}

    def ladder(duck: Duck, _fleet: Fleet) -> list[Broken]:
        if duck.name == "duck04":
            raise ERRORS[1]
        return ladders.get(duck.name, [works])

    monkeypatch.setattr("duckctl.commands.power.power_ladder", ladder)
    monkeypatch.setattr("duckctl.commands.power.STAGGER_S", 0.0)
    for words, good in ((["status", "all"], "off"), (["on", "all"], "on sent")):
        code = duckctl(["power", *words, "--inventory", str(path), "--json"])
        found = {duck["name"]: duck for duck in json.loads(capsys.readouterr().out)["ducks"]}
        assert code == ExitCode.PARTIAL
        assert found["duck01"]["problem"] == f"ValueError: {ERRORS[0]}"
        assert found["duck04"]["problem"] == f"TypeError: {ERRORS[1]}"
        assert [found[name]["state"] for name in ("duck02", "duck05")] == [good, good]
    assert works.asked == [Action.ON, Action.ON]
