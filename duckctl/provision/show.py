"""What a person sees of a run (stderr): bars on a terminal, elsewhere a line per change."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duckctl.console import console, detail, plain, talk
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import UP, DuckRecord, State

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

NAMES_MAX = 8


def name_some(names: Sequence[str]) -> str:
    """``duck01, duck02, duck03 and 29 more``."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


class Show:
    """Tells how a run goes. Never writes to stdout, which is for results."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._states: dict[str, DuckRecord] = {}

    def stage(self, text: str) -> None:
        """A new part of the run begins."""
        talk(f"== {text}")

    @contextmanager
    def bars(self, count: int) -> Iterator[None]:
        """While ducks are brought up."""
        if not sys.stderr.isatty() or count == 0:
            yield
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (TextColumn("ducks up"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(
            *columns, TextColumn("{task.fields[rest]}"), console=console(stderr=True)
        ) as progress:
            self._progress = progress
            self._task = progress.add_task("", total=count, rest="")
            try:
                yield
            finally:
                self._progress = None

    def change(self, duck: Duck, record: DuckRecord) -> None:
        """A duck's state or its reason has changed."""
        self._states[duck.name] = record
        reason = f": {record.reason}" if record.reason else ""
        line = f"{time.strftime('%H:%M:%S')} {duck.name} {record.describe()}{reason}"
        if self._progress is None or self._task is None:
            talk(line)
            return
        detail(line)
        up = sum(state.state in UP for state in self._states.values())
        waiting: dict[str, int] = {}
        for state in self._states.values():
            if state.state not in UP:
                waiting[state.describe()] = waiting.get(state.describe(), 0) + 1
        rest = ", ".join(f"{count} {name}" for name, count in sorted(waiting.items()))
        self._progress.update(self._task, completed=up, rest=rest)
        if record.state is State.FAILED:
            self._progress.console.print(plain(line), markup=False)
