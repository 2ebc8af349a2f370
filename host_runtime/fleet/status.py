"""What the fleet tells of itself: a state per duck, and a bounded list of events."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

EVENTS_KEPT = 256
TEXTS_KEPT = 16  # of one duck, to know a repeated event by

log = logging.getLogger("host_runtime.fleet")


class DuckState(StrEnum):
    """State of a duck as this host sees it."""

    UNREACHABLE = "unreachable"  # never answered, or not since it was lost
    WRONG_VERSION = "wrong-version"  # answers, but does not fit this host, kernel or cache
    WRONG_IDENTITY = "wrong-identity"  # proves another key than the pinned one
    IDLE = "idle"  # answers and fits; nothing loaded yet
    LOADING = "loading"
    READY = "ready"  # kernel and weights are there, no compute session
    SERVING = "serving"
    FAULTED = "faulted"  # its compute session ended with an error
    LOST = "lost"  # was serving or ready and fell silent, or restarted


# The way up is told once for the whole fleet; what goes wrong is told for each duck.
LOG_LEVELS = {
    DuckState.UNREACHABLE: logging.WARNING,
    DuckState.WRONG_VERSION: logging.WARNING,
    DuckState.WRONG_IDENTITY: logging.ERROR,
    DuckState.IDLE: logging.DEBUG,
    DuckState.LOADING: logging.DEBUG,
    DuckState.READY: logging.DEBUG,
    DuckState.SERVING: logging.DEBUG,
    DuckState.FAULTED: logging.WARNING,
    DuckState.LOST: logging.WARNING,
}
# A duck is called slow when its mean kernel time is this many times the median of all ducks ...
STRAGGLER_RATIO = 1.5
# ... over at least this many calls: the first ones touch cold memory.
STRAGGLER_CALLS_MIN = 200


@dataclass(frozen=True)
class DuckReport:
    """One line of the fleet's status; counters are totals, units in the names."""

    name: str
    endpoint: str
    state: DuckState
    detail: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return self.state is DuckState.SERVING


@dataclass(frozen=True)
class FleetEvent:
    """Something that happened to a duck; ``repeats``: how often again until it was well."""

    time_s: float
    duck: str
    text: str
    repeats: int = 0


def name_stragglers(reports: Sequence[DuckReport]) -> list[DuckReport]:
    """Say so in the detail of each duck whose kernel takes much longer than the others'.

    Every call waits for the slowest duck, so one slow duck slows the whole fleet.
    """
    counters = [report.counters for report in reports if report.ready]
    if len(counters) < 2 or min(c["calls"] for c in counters) < STRAGGLER_CALLS_MIN:
        return list(reports)
    usual = statistics.median_low(c["kernel_ns"] / c["calls"] for c in counters)

    def judged(report: DuckReport) -> DuckReport:
        if not report.ready or report.detail:
            return report
        mean = report.counters["kernel_ns"] / report.counters["calls"]
        if mean <= STRAGGLER_RATIO * usual:
            return report
        return replace(report, detail=f"its kernel takes {mean / usual:.1f} x the usual time")

    return [judged(report) for report in reports]


@dataclass
class _Told:
    event: FleetEvent
    repeats: int = 0


class EventLog:
    """The last EVENTS_KEPT events. What a duck in trouble does again and again is told once.

    Such a duck may come to the same error at every attempt, by way of the same steps: neither
    memory nor the log file grows with them, however long that goes on. ``settle`` ends it.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[_Told] = deque(maxlen=EVENTS_KEPT)
        self._known: dict[str, dict[str, _Told]] = {}

    def add(self, duck: str, text: str, level: int = logging.INFO) -> bool:
        """False: this text of this duck was told since it was well, so it is only counted."""
        with self._lock:
            known = self._known.setdefault(duck, {})
            if text in known:
                known[text].repeats += 1
                return False
            known[text] = _Told(FleetEvent(self._clock(), duck, text))
            self._events.append(known[text])
            if len(known) > TEXTS_KEPT:
                del known[next(iter(known))]
        log.log(level, "%s: %s", duck, text)
        return True

    def settle(self, duck: str) -> None:
        """The duck is well: whatever happens to it now is told."""
        with self._lock:
            self._known.pop(duck, None)

    def recent(self) -> list[FleetEvent]:
        """Oldest first, each with its count of repeats."""
        with self._lock:
            return [replace(told.event, repeats=told.repeats) for told in self._events]
