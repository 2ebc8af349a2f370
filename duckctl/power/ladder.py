"""A duck's power backends in the order of its inventory, and climbing them until it is back.

A switch that answers "done" proves nothing: Wake-on-LAN has no answer at all, a smart plug switches
whatever hangs on it, and a hung duck accepts a reboot request that it never obeys. So the caller
says what "back" means (a new boot id, read from the duck), and the next backend is tried when that
does not come true in time. Every wait is bounded, so is the number of tries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from duckctl.console import detail
from duckctl.inventory import Duck, Fleet
from duckctl.power.backend import (
    Action,
    PowerBackend,
    PowerError,
    PowerState,
    PowerTarget,
    what_went_wrong,
)
from duckctl.power.registry import make_backend

TRIES_PER_BACKEND = 2
POLL_S = 0.5
OFF_WAIT_S = 10.0  # a switch that can tell must say "off" within this time
OFF_PAUSE_S = 2.0  # capacitors of a mini-PC's supply hold it up for about a second


class Clock(Protocol):
    """Time as the ladder needs it; tests bring their own."""

    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's monotonic clock. ``stop`` ends every sleep at once."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)


@dataclass(frozen=True)
class PowerStep:
    """One try with one backend. ``problem`` is empty when the duck came back."""

    backend: str
    action: Action
    seconds: float
    problem: str = ""


@dataclass(frozen=True)
class PowerOutcome:
    """How a duck was switched: the tries in order; ``came_back`` is the last one's success."""

    duck: str
    came_back: bool
    steps: tuple[PowerStep, ...] = field(default_factory=tuple)

    @property
    def reason(self) -> str:
        """Why it did not come back, every backend named; empty when it did."""
        if self.came_back:
            return ""
        if not self.steps:
            return "no power backend can switch it; give it one in the inventory (duck_power)"
        return "; ".join(f"{step.backend}: {step.problem}" for step in self.steps)


def power_ladder(duck: Duck, fleet: Fleet) -> list[PowerBackend]:
    """The duck's backends in inventory order; ``none`` gives no backend."""
    target = PowerTarget(duck, fleet)
    backends = (make_backend(power, target) for power in duck.power)
    return [backend for backend in backends if backend is not None]


def cycle_duck(
    duck: str,
    ladder: Sequence[PowerBackend],
    came_back: Callable[[], bool],
    wait_s: float,
    *,
    clock: Clock | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_step: Callable[[PowerStep], None] = lambda _step: None,
) -> PowerOutcome:
    """Restarts a duck by whatever means it takes.

    Each backend of ``ladder`` is asked at most TRIES_PER_BACKEND times and ``came_back`` is polled
    for ``wait_s`` seconds after each. A backend that can only switch on (Wake-on-LAN) does so. The
    protocol's own request is asked once: a duck that did not obey it is hung.
    """
    clock = clock or SystemClock()
    steps: list[PowerStep] = []
    for backend in ladder:
        if not backend.actions & {Action.CYCLE, Action.ON}:
            continue
        tries = 1 if backend.name == "reboot" else TRIES_PER_BACKEND
        for _ in range(tries):
            if cancelled():
                return PowerOutcome(duck, False, tuple(steps))
            step = _try(backend, came_back, wait_s, clock, cancelled)
            detail(f"{duck}: {backend.describe()} {step.action}: {step.problem or 'came back'}")
            steps.append(step)
            on_step(step)
            if not step.problem:
                return PowerOutcome(duck, True, tuple(steps))
    return PowerOutcome(duck, False, tuple(steps))


def _try(
    backend: PowerBackend,
    came_back: Callable[[], bool],
    wait_s: float,
    clock: Clock,
    cancelled: Callable[[], bool],
) -> PowerStep:
    begin = clock.now_s()
    problem = ""
    can_restart = Action.CYCLE in backend.actions or Action.OFF in backend.actions
    try:
        restart(backend, clock)
        if not _wait(came_back, wait_s, clock, cancelled):
            problem = "interrupted" if cancelled() else f"not back within {wait_s:.0f} s"
    except Exception as error:  # noqa: BLE001 - the next backend is tried
        problem = what_went_wrong(error)
    action = Action.CYCLE if can_restart else Action.ON
    return PowerStep(backend.name, action, clock.now_s() - begin, problem)


def restart(backend: PowerBackend, clock: Clock) -> None:
    """Off, seen to be off where the switch can tell, and on; else the backend's own cycle."""
    can_switch = {Action.ON, Action.OFF} <= backend.actions
    tells = can_switch and backend.state() is not PowerState.UNKNOWN
    if Action.CYCLE in backend.actions and not tells:
        backend.act(Action.CYCLE)
        return
    if can_switch:
        backend.act(Action.OFF)
        if tells and not _wait(
            lambda: backend.state() is PowerState.OFF, OFF_WAIT_S, clock, lambda: False
        ):
            raise PowerError(f"{backend.describe()} still says 'on' {OFF_WAIT_S:.0f} s after 'off'")
        clock.sleep(OFF_PAUSE_S)
    backend.act(Action.ON)


def _wait(
    condition: Callable[[], bool], wait_s: float, clock: Clock, cancelled: Callable[[], bool]
) -> bool:
    """Polls; the last look is at the deadline itself."""
    deadline = clock.now_s() + wait_s
    while not condition():
        left = deadline - clock.now_s()
        if left <= 0 or cancelled():
            return False
        clock.sleep(min(POLL_S, left))
    return True
