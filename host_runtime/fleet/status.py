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
# ... over a window of at least so many calls (the first ones touch cold memory) and so much time.
STRAGGLER_CALLS_MIN = 200
STRAGGLER_WINDOW_S = 60.0
STRAGGLER_LOOK_S = 10.0  # between looks at whether the window is full


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


class Stragglers:
    """Which ducks' kernels take much longer than the others', judged window by window.

    Every call waits for the slowest duck, so one slow duck slows the whole fleet. Only what was
    counted since the last verdict is compared: a day of good calls hides no slow minute, and a duck
    that is well again is no longer named. `look` from one thread, `named` from any.
    """

    def __init__(self) -> None:
        self._looked_s = -STRAGGLER_LOOK_S
        self._begin_s = 0.0
        self._begin: Mapping[str, tuple[float, float]] = {}
        self._slow: Mapping[str, float] = {}

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a look."""
        return now_s - self._looked_s >= STRAGGLER_LOOK_S

    def look(self, reports: Sequence[DuckReport], now_s: float) -> None:
        """Judge the window and begin the next one, once it is old enough and every duck has calls.

        When other ducks serve than at its beginning it begins anew, and nobody is slow.
        """
        self._looked_s = now_s
        counted = {
            report.name: (report.counters["calls"], report.counters["kernel_ns"])
            for report in reports
            if report.ready
        }
        if counted.keys() != self._begin.keys():
            self._begin_s, self._begin, self._slow = now_s, counted, {}
            return
        calls = {name: count - self._begin[name][0] for name, (count, _) in counted.items()}
        is_young = now_s - self._begin_s < STRAGGLER_WINDOW_S
        if is_young or min(calls.values(), default=0) < STRAGGLER_CALLS_MIN:
            return
        means = {
            name: (kernel_ns - self._begin[name][1]) / calls[name]
            for name, (_, kernel_ns) in counted.items()
        }
        usual = statistics.median_low(means.values())
        times = {name: mean / max(usual, 1.0) for name, mean in means.items()}
        self._slow = {name: ratio for name, ratio in times.items() if ratio > STRAGGLER_RATIO}
        self._begin_s, self._begin = now_s, counted

    def named(self, reports: Sequence[DuckReport]) -> list[DuckReport]:
        """Says so in the detail of each slow duck that serves."""
        slow = self._slow
        return [
            replace(report, detail=f"its kernel takes {slow[report.name]:.1f} x the usual time")
            if report.ready and not report.detail and report.name in slow
            else report
            for report in reports
        ]


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
