"""Reads both boot logs: once, from where one stopped before, or following them while they grow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from duckctl.boot.dnsmasq_log import BootLog
from duckctl.boot.events import BootEvent
from duckctl.boot.leases import read_leases
from duckctl.boot.plan import BootPaths
from duckctl.inventory import Fleet

POLL_S = 0.2
READ_BYTES_MAX = 1 << 20  # of each log, at once
LINE_BYTES_MAX = 8192
SETTLED_S = 1.0  # a packet's lines are written within milliseconds


@dataclass
class _Tail:
    """One growing file, read line by line; a file that was replaced is read from its beginning."""

    path: Path
    inode: int = 0
    offset: int = 0

    def lines(self) -> list[tuple[int, str]]:
        """Whole lines after ``offset`` with the offsets of their beginnings; moves on."""
        try:
            with self.path.open("rb") as file:
                found = self.path.stat()
                if found.st_ino != self.inode or found.st_size < self.offset:
                    self.inode, self.offset = found.st_ino, 0
                file.seek(self.offset)
                data = file.read(READ_BYTES_MAX)
        except OSError:
            return []
        lines = []
        at = self.offset
        for piece in data.split(b"\n")[:-1]:
            text = piece[:LINE_BYTES_MAX].decode("utf-8", errors="replace")
            lines.append((at, text))
            at += len(piece) + 1
        if not lines and len(data) == READ_BYTES_MAX:
            at += len(data)  # a line that long is no log line
        self.offset = at
        return lines

    def skip(self) -> None:
        """Only what comes from now on counts."""
        try:
            found = self.path.stat()
        except OSError:
            return
        self.inode, self.offset = found.st_ino, found.st_size


class LogReader:
    """Both logs of a fleet. ``position`` is a text from which a later reader goes on."""

    def __init__(
        self,
        fleet: Fleet,
        paths: BootPaths,
        position: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dnsmasq, self._web = _Tail(paths.dnsmasq_log), _Tail(paths.http_log)
        if position:
            (self._dnsmasq.inode, self._dnsmasq.offset), (self._web.inode, self._web.offset) = (
                json.loads(position)
            )
        self._log = BootLog(fleet, str(paths.tftp), clock, read_leases(paths.leases))
        self._clock = clock
        self._group_at: int | None = None
        self._moved_at = clock()

    @property
    def position(self) -> str:
        """Where to go on: before the packet whose lines are not all there yet."""
        offset = self._dnsmasq.offset if self._group_at is None else self._group_at
        place = [[self._dnsmasq.inode, offset], [self._web.inode, self._web.offset]]
        return json.dumps(place)

    def skip(self) -> None:
        """Leaves out all that is in the logs now."""
        self._dnsmasq.skip()
        self._web.skip()

    def read(self, at_end: bool = False) -> list[BootEvent]:
        """What is new, in order of time; bounded, so call it again until it gives nothing.

        A packet whose lines may still be coming is kept back, unless this is ``at_end``.
        """
        events: list[BootEvent] = []
        lines = self._dnsmasq.lines()
        for offset, text in lines:
            events += self._log.line(text)
            if self._log.at_group_start:
                self._group_at = offset
        if lines:
            self._moved_at = self._clock()
        settled = self._clock() - self._moved_at > SETTLED_S
        if at_end or settled or not self._log.in_group:
            events += self._log.flush()
            self._group_at = None
        for _, text in self._web.lines():
            events += self._log.request(text)
        return sorted(events, key=lambda event: event.time)


def follow_log(
    fleet: Fleet,
    paths: BootPaths,
    stop: Callable[[], bool] = lambda: False,
    from_start: bool = False,
    poll_s: float = POLL_S,
) -> Iterator[BootEvent]:
    """Events as they happen, until ``stop`` says so (asked every ``poll_s``).

    Times of dnsmasq's log are whole seconds, those of the HTTP log are exact.
    """
    reader = LogReader(fleet, paths)
    if not from_start:
        reader.skip()
    while True:
        ending = stop()
        events = reader.read(at_end=ending)
        yield from events
        if ending and not events:
            return
        if not events:
            time.sleep(poll_s)


def read_log(fleet: Fleet, paths: BootPaths) -> list[BootEvent]:
    """All events that the logs hold now, in order of time."""
    reader = LogReader(fleet, paths)
    events: list[BootEvent] = []
    while new := reader.read(at_end=True):
        events += new
    return sorted(events, key=lambda event: event.time)
