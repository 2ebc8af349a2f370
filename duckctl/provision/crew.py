"""The real eyes and hands of a run: probes and power switches, in threads of their own.

The threads die with the process: what they have begun (a probe, a power command) ends by itself.
The engine waits for every job, so each tells how it went, whatever was raised in it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from duckctl.console import detail
from duckctl.health import probe
from duckctl.inventory import Duck, Fleet
from duckctl.power.backend import Action, PowerBackend, PowerState, what_went_wrong
from duckctl.power.ladder import SystemClock as PowerClock
from duckctl.power.ladder import power_ladder, restart
from duckctl.provision.engine import Means

Item = TypeVar("Item")

LOOK_TIMEOUT_S = 1.0
RESTART_TIMEOUT_S = 2.0
LOOKERS = 2
SWITCHERS = 32  # power commands at once; most of them wait for a device
RESTARTERS = 2


class SystemClock:
    """The machine's clocks."""

    def wall_s(self) -> float:
        return time.time()

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Workers:
    """A few daemon threads that do jobs in the order in which they come."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._count, self._name, self._started = count, name, 0

    def do(self, job: Callable[[], None]) -> None:
        if self._started < self._count:
            self._started += 1
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class ProbeEyes:
    """Looks by the probe of host_runtime."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._workers = Workers(LOOKERS, "look")
        self._done: queue.SimpleQueue[tuple[list[str], Mapping[str, Any] | None]]
        self._done = queue.SimpleQueue()

    def look(self, ducks: Sequence[Duck]) -> None:
        def job() -> None:
            names = [duck.name for duck in ducks]
            try:
                document = probe(self._fleet, ducks, LOOK_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - the engine waits for an answer
                why = what_went_wrong(error)
                detail(f"looking at {names[0]} and {len(names) - 1} more: {why}")
                self._done.put((names, None))
            else:
                self._done.put((names, document))

        self._workers.do(job)

    def seen(self) -> list[tuple[list[str], Mapping[str, Any] | None]]:
        return _all_of(self._done)


class PowerHands:
    """Restarts by protocol, and by the inventory's power backends."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._switchers = Workers(SWITCHERS, "switch")
        self._restarters = Workers(RESTARTERS, "restart")
        self._done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def restart(self, ducks: Sequence[Duck]) -> None:
        def job() -> None:
            try:
                extra = [word for duck in ducks for word in ("--reboot", duck.name)]
                document = probe(self._fleet, ducks, RESTART_TIMEOUT_S, extra)
                answers = {entry["name"]: _restart_problem(entry) for entry in document["ducks"]}
            except Exception as error:  # noqa: BLE001 - the engine waits for an answer
                answers = {duck.name: what_went_wrong(error) for duck in ducks}
            for duck in ducks:
                self._done.put((duck.name, answers.get(duck.name, "the probe left it out")))

        self._restarters.do(job)

    def switch(self, duck: Duck, means: Means) -> None:
        def job() -> None:
            problem = ""
            try:
                _switch(power_ladder(duck, self._fleet)[means.rung])
            except Exception as error:  # noqa: BLE001 - the engine waits for an answer
                problem = f"{means.backend}: {what_went_wrong(error)}"
            self._done.put((duck.name, problem))

        self._switchers.do(job)

    def done(self) -> list[tuple[str, str]]:
        return _all_of(self._done)


def ladder_names(duck: Duck, fleet: Fleet) -> list[str]:
    """The duck's usable power backends, in the inventory's order."""
    return [backend.name for backend in power_ladder(duck, fleet)]


def _switch(backend: PowerBackend) -> None:
    """On, where the switch says that it is off; else off and on again."""
    if Action.ON in backend.actions and backend.state() is PowerState.OFF:
        backend.act(Action.ON)
    else:
        restart(backend, PowerClock())


def switched_off(ducks: Sequence[Duck], fleet: Fleet) -> set[str]:
    """Those of whom a power backend says that they are off; one that cannot tell says nothing."""
    if not ducks:
        return set()
    with ThreadPoolExecutor(SWITCHERS) as pool:
        states = list(pool.map(lambda duck: _is_off(duck, fleet), ducks))
    return {duck.name for duck, is_off in zip(ducks, states, strict=True) if is_off}


def _is_off(duck: Duck, fleet: Fleet) -> bool:
    for backend in power_ladder(duck, fleet):
        if backend.name == "reboot":
            continue
        try:
            state = backend.state()
        except Exception as error:  # noqa: BLE001 - the next backend, and the other ducks, go on
            detail(f"{duck.name}: {backend.name}: {what_went_wrong(error)}")
            continue
        if state is not PowerState.UNKNOWN:
            return state is PowerState.OFF
    return False


def _restart_problem(entry: Mapping[str, Any]) -> str:
    if entry.get("rebooted"):
        return ""
    return str(entry.get("error") or "it did not confirm REBOOT")


def _all_of(source: queue.SimpleQueue[Item]) -> list[Item]:
    found: list[Item] = []
    while True:
        try:
            found.append(source.get_nowait())
        except queue.Empty:
            return found
