"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from duckctl.console import console, human_bytes, talk

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_INTERVAL_S = 10.0


class Reporter(Protocol):
    """What long operations tell; ``total`` and ``advance`` are bytes."""

    def start(self, title: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...
    def note(self, text: str) -> None: ...


class SilentReporter:
    """For callers that show nothing."""

    def start(self, title: str, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class LineReporter:
    """At most one line every ten seconds: for logs and pipes."""

    def __init__(
        self,
        write: Callable[[str], None] = talk,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._title = ""
        self._total = self._done = 0
        self._started = self._next_line = 0.0

    def start(self, title: str, total: int) -> None:
        self._title, self._total, self._done = title, total, 0
        self._started = self._clock()
        self._next_line = self._started + LINE_INTERVAL_S
        self._write(f"{title}: {human_bytes(total)}")

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now < self._next_line or not self._total:
            return
        self._next_line = now + LINE_INTERVAL_S
        rate = self._done / max(now - self._started, 1e-9)
        left_s = (self._total - self._done) / max(rate, 1.0)
        self._write(
            f"{self._title}: {100 * self._done / self._total:.0f} %, {human_bytes(rate)}/s, "
            f"{human_seconds(left_s)} left"
        )

    def finish(self) -> None:
        took_s = self._clock() - self._started
        self._write(f"{self._title}: done in {human_seconds(took_s)}")

    def note(self, text: str) -> None:
        self._write(text)


class BarReporter:
    """A rich progress bar per operation."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def start(self, title: str, total: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task(title, total=total)

    def advance(self, count: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def note(self, text: str) -> None:
        talk(text)


class TerminalReporter:
    """The reporter for stderr as it is; leaves the terminal in order when an error passes."""

    def __init__(self) -> None:
        bar = console(stderr=True).is_terminal
        self.reporter: BarReporter | LineReporter = BarReporter() if bar else LineReporter()

    def __enter__(self) -> Reporter:
        return self.reporter

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(self.reporter, BarReporter):
            self.reporter.finish()


def human_seconds(seconds: float) -> str:
    """75 -> "1 min 15 s"."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
