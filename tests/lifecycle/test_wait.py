"""`duckctl wait` ends well only when all ducks are there at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lifecycle_kit import shelf

from duckctl.commands.wait import Goal, until_there
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import DuckRecord, State

NAMES = ["duck01", "duck02"]
READY, LOST, BOOTING = State.READY, State.LOST, State.BOOTING


class Ducks:
    """Two ducks whose states change from look to look; a second passes with each pause."""

    def __init__(self, folder: Path, *states: tuple[State, State]) -> None:
        self.ducks = shelf(folder).ducks[:2]
        self.states = list(states)
        self.asked: list[list[str]] = []
        self.now = 0.0

    def look(self, asked: Sequence[Duck]) -> Mapping[str, DuckRecord]:
        states = dict(
            zip(NAMES, self.states[min(len(self.asked), len(self.states) - 1)], strict=True)
        )
        self.asked.append([duck.name for duck in asked])
        return {duck.name: DuckRecord(duck.name, states[duck.name]) for duck in asked}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, timeout_s: float = 5.0) -> list[str]:
        """The names of the missing ones."""
        clock = (lambda: self.now, self.sleep)
        return [
            duck.name
            for duck in until_there(self.ducks, Goal.READY, self.look, timeout_s, *clock)[1]
        ]


def test_a_duck_that_is_lost_meanwhile_is_waited_for(tmp_path: Path) -> None:
    """It was there at the first look, the other one came later: both are asked before the end."""
    lost = Ducks(tmp_path, (READY, BOOTING), (LOST, BOOTING), (LOST, READY))
    assert lost.wait() == ["duck01"]
    back = Ducks(tmp_path, (READY, BOOTING), (LOST, READY), (LOST, READY), (READY, READY))
    assert back.wait() == []
    assert back.asked == [NAMES, ["duck02"], NAMES, ["duck01"], NAMES]


def test_what_is_there_at_once_is_asked_once(tmp_path: Path) -> None:
    """One look at all of them is enough, without any time too."""
    ducks = Ducks(tmp_path, (READY, READY))
    assert (ducks.wait(0.0), ducks.asked, ducks.now) == ([], [NAMES], 0.0)


def test_the_last_look_counts_though_the_time_is_over(tmp_path: Path) -> None:
    """The missing one came in the last second, and the other one has gone."""
    ducks = Ducks(tmp_path, (READY, BOOTING), (LOST, READY))
    assert (ducks.wait(1.0), ducks.now) == (["duck01"], 1.0)
