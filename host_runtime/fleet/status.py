"""What the fleet tells of itself: a state per duck, and a bounded list of events."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

EVENTS_KEPT = 256

log = logging.getLogger("host_runtime.fleet")


class DuckState(StrEnum):
    """State of a duck as this host sees it."""

    UNREACHABLE = "unreachable"  # never answered, or not since it was lost
    WRONG_VERSION = "wrong-version"  # answers, but does not fit this host, kernel or cache
    IDLE = "idle"  # answers and fits; nothing loaded yet
    LOADING = "loading"
    READY = "ready"  # kernel and weights are there, no compute session
    SERVING = "serving"
    FAULTED = "faulted"  # its compute session ended with an error
    LOST = "lost"  # was serving or ready and fell silent, or restarted


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
