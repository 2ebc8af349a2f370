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
    """Something that happened to a duck; ``repeats`` counts the same text in a row."""

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


class EventLog:
    """The last EVENTS_KEPT events. The same text for the same duck in a row is one event.

    So neither memory nor the log file grows while a duck stays away, however long that is.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[FleetEvent] = deque(maxlen=EVENTS_KEPT)
        self._last: dict[str, FleetEvent] = {}

    def add(self, duck: str, text: str, level: int = logging.INFO) -> None:
        with self._lock:
            last = self._last.get(duck)
            if last is not None and last.text == text:
                self._last[duck] = replace(last, repeats=last.repeats + 1)
                return
            event = FleetEvent(self._clock(), duck, text)
            self._last[duck] = event
            self._events.append(event)
        log.log(level, "%s: %s", duck, text)

    def recent(self) -> list[FleetEvent]:
        """Oldest first; the newest event of each duck with its count of repeats."""
        with self._lock:
            newest = {(event.duck, event.time_s): event for event in self._last.values()}
            return [newest.get((event.duck, event.time_s), event) for event in self._events]
