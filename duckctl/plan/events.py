"""A discrete-event simulation in a page: processes are generators, resources serve in order.

    def lane():
        yield Use(gpu, 50e-6, "attention")      # waits for its turn, holds it, goes on
        yield from simulation.join(parts)       # waits until other processes have ended

Times are seconds. Events at the same time run in the order in which they were made, so a
simulation with the same input gives the same result.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

EVENTS_MAX = 20_000_000


@dataclass
class Resource:
    """Serves one user at a time, first come first served."""

    name: str
    free_at: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Use:
    """Hold a resource for some time, after those who asked before.

    ``also`` is held from the same request on for a time of its own; the later end counts. Then
    ``after_s`` passes, in which nothing is held.
    """

    resource: Resource
    duration_s: float
    label: str = ""
    after_s: float = 0.0
    also: Resource | None = None
    also_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delay:
    """Time passes; nothing is held."""

    duration_s: float


@dataclass(eq=False)
class Process:
    """A running generator; ``ended_at`` is set when it ends."""

    body: Generator[Use | Delay | Process, None, None]
    ended_at: float | None = None
    waiting: list[Process] = field(default_factory=list)


Body = Generator[Use | Delay | Process, None, None]


@dataclass(frozen=True, slots=True)
class Slice:
    """A resource was held: one bar of a trace."""

    resource: str
    label: str
    start_s: float
    duration_s: float


class Simulation:
    """The clock, the queue of events, and (if asked for) a record of every use."""

    def __init__(self, record: bool = False) -> None:
        self.now = 0.0
        self.slices: list[Slice] = []
        self._record = record
        self._queue: list[tuple[float, int, Process]] = []
        self._count = 0

    def spawn(self, body: Body) -> Process:
        """Starts a process now."""
        process = Process(body)
        self._resume(process, self.now)
        return process

    def join(self, processes: Sequence[Process]) -> Body:
        """Waits until all of them have ended."""
        for process in processes:
            if process.ended_at is None:
                yield process

    def run(self) -> float:
        """Runs until nothing is left to happen; gives the time of the last event."""
        while self._queue:
            self.now, _, process = heapq.heappop(self._queue)
            self._step(process)
        return self.now

    def _resume(self, process: Process, at: float) -> None:
        self._count += 1
        if self._count > EVENTS_MAX:
            raise RuntimeError(f"simulation: more than {EVENTS_MAX} events")
        heapq.heappush(self._queue, (at, self._count, process))

    def _step(self, process: Process) -> None:
        try:
            wish = next(process.body)
        except StopIteration:
            process.ended_at = self.now
            for waiter in process.waiting:
                self._resume(waiter, self.now)
            return
        if isinstance(wish, Use):
            end = self._serve(wish.resource, wish.duration_s, wish.label)
            if wish.also is not None:
                end = max(end, self._serve(wish.also, wish.also_s, wish.label))
            self._resume(process, end + wish.after_s)
        elif isinstance(wish, Delay):
            self._resume(process, self.now + wish.duration_s)
        elif wish.ended_at is None:
            wish.waiting.append(process)
        else:
            self._resume(process, self.now)

    def _serve(self, resource: Resource, duration_s: float, label: str) -> float:
        """When this use ends. Users come in the order of time, so the queue is one number."""
        start = max(self.now, resource.free_at)
        resource.free_at = start + duration_s
        resource.busy_s += duration_s
        if self._record:
            self.slices.append(Slice(resource.name, label, start, duration_s))
        return resource.free_at
