"""The ladder believes only the duck itself, climbs when it must, and always comes to an end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from duckctl.power.backend import Action, PowerError, PowerState
from duckctl.power.ladder import (
    OFF_PAUSE_S,
    OFF_WAIT_S,
    TRIES_PER_BACKEND,
    PowerStep,
    cycle_duck,
)

WAIT_S = 30.0


@dataclass
class FakeClock:
    """Time that passes only by sleeping."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


@dataclass
class FakeSwitch:
    """A backend whose duck boots ``boot_s`` after it was switched, or never."""

    clock: FakeClock
    name: str = "plug"
    actions: frozenset[Action] = frozenset({Action.ON, Action.OFF})
    boot_s: float | None = None
    refuses: str = ""
    tells_state: bool = True
    obeys_off: bool = True
    is_on: bool = True
    back_at_s: float | None = None
    asked: list[Action] = field(default_factory=list)

    def describe(self) -> str:
        return f"{self.name} fake"

    def state(self) -> PowerState:
        if not self.tells_state:
            return PowerState.UNKNOWN
        return PowerState.ON if self.is_on else PowerState.OFF

    def act(self, action: Action) -> None:
        self.asked.append(action)
        if self.refuses:
            raise PowerError(self.refuses)
        if action is Action.OFF:
            self.is_on = not self.obeys_off
            return
        self.is_on = True
        if self.boot_s is not None:
            self.back_at_s = self.clock.time_s + self.boot_s

    def came_back(self) -> bool:
        return self.back_at_s is not None and self.clock.time_s >= self.back_at_s


CYCLING = frozenset(Action)


def test_a_duck_that_comes_back_ends_the_ladder() -> None:
    """The first backend worked: the second is never asked."""
    clock = FakeClock()
    first = FakeSwitch(clock, "reboot", frozenset({Action.CYCLE}), boot_s=3, tells_state=False)
    second = FakeSwitch(clock, "ipmi", CYCLING, boot_s=3)
    outcome = cycle_duck("d01", [first, second], first.came_back, WAIT_S, clock=clock)
    assert outcome.came_back
    assert [step.backend for step in outcome.steps] == ["reboot"]
    assert second.asked == []
    assert 3 <= clock.time_s <= 3.5


def test_a_hung_duck_is_escalated() -> None:
    """REBOOT is accepted and not obeyed, Wake-on-LAN wakes nothing: the BMC is asked at last."""
    clock = FakeClock()
    reboot = FakeSwitch(clock, "reboot", frozenset({Action.CYCLE}), tells_state=False)
    wol = FakeSwitch(clock, "wol", frozenset({Action.ON}), tells_state=False)
    bmc = FakeSwitch(clock, "ipmi", CYCLING, boot_s=5)
    steps: list[PowerStep] = []
    outcome = cycle_duck(
        "d01", [reboot, wol, bmc], bmc.came_back, WAIT_S, clock=clock, on_step=steps.append
    )
    assert outcome.came_back
    assert [step.backend for step in outcome.steps] == ["reboot", "wol", "wol", "ipmi"]
    assert steps == list(outcome.steps)
    assert bmc.asked == [Action.OFF, Action.ON]


def test_t39_wake_on_lan_is_not_believed() -> None:
    """A card that forgot to arm itself stays dark: after N packets the next backend is asked."""
    clock = FakeClock()
    wol = FakeSwitch(clock, "wol", frozenset({Action.ON}), tells_state=False)
    plug = FakeSwitch(clock, "http", boot_s=1)
    outcome = cycle_duck("d01", [wol, plug], plug.came_back, WAIT_S, clock=clock)
    assert wol.asked == [Action.ON] * TRIES_PER_BACKEND
    assert outcome.came_back


def test_a_duck_that_never_returns_is_told_with_every_try() -> None:
    """All backends are bounded, and the reason names each."""
    clock = FakeClock()
    dead = FakeSwitch(clock, "http", tells_state=False)
    broken = FakeSwitch(clock, "ipmi", CYCLING, refuses="no route to host")
    outcome = cycle_duck("d01", [dead, broken], lambda: False, WAIT_S, clock=clock)
    assert not outcome.came_back
    assert outcome.reason.count("not back within 30 s") == TRIES_PER_BACKEND
    assert outcome.reason.count("ipmi: no route to host") == TRIES_PER_BACKEND
    assert clock.time_s <= TRIES_PER_BACKEND * (WAIT_S + OFF_PAUSE_S) + 1


def test_off_is_seen_before_on() -> None:
    """A relay that sticks is an error, not a cycle."""
    clock = FakeClock()
    stuck = FakeSwitch(clock, "http", boot_s=1, obeys_off=False)
    outcome = cycle_duck("d01", [stuck], stuck.came_back, WAIT_S, clock=clock)
    assert not outcome.came_back
    assert f"still says 'on' {OFF_WAIT_S:.0f} s after 'off'" in outcome.reason
    assert stuck.asked == [Action.OFF] * TRIES_PER_BACKEND


def test_no_backend_at_all() -> None:
    """An empty ladder says what to put into the inventory."""
    assert "duck_power" in cycle_duck("d01", [], lambda: True, WAIT_S).reason


@pytest.mark.parametrize("after_steps", [0, 1])
def test_interrupting_ends_the_ladder(after_steps: int) -> None:
    """Ctrl-C stops before the next switch is touched."""
    clock = FakeClock()
    plug = FakeSwitch(clock, "http", tells_state=False)
    steps: list[PowerStep] = []
    outcome = cycle_duck(
        "d01",
        [plug, plug],
        lambda: False,
        WAIT_S,
        clock=clock,
        cancelled=lambda: len(steps) >= after_steps,
        on_step=steps.append,
    )
    assert not outcome.came_back
    assert len(outcome.steps) == after_steps
