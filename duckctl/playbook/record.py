"""Records of runs: a folder per run with its typed events and its result, the newest kept.

ansible-runner's own rotation is not used: it removes the oldest folder even while a run writes
there (T49). Here a run holds a lock on its folder, and only unlocked folders are removed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO

from duckctl.fleet_file import write_json
from duckctl.playbook.events import Event
from duckctl.playbook.result import PlaybookResult

RECORDS_MAX = 20


class Record:
    """The record of one run; with ``folder`` None nothing is written."""

    def __init__(self, folder: Path | None, events: IO[str] | None) -> None:
        self.folder = folder
        self._events = events

    @staticmethod
    def open(base: Path | None, run_id: str) -> Record:
        if base is None:
            return Record(None, None)
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = base / run_id
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_CREAT, 0o600)
        events = os.fdopen(descriptor, "w", encoding="utf-8")
        fcntl.flock(events, fcntl.LOCK_EX)
        return Record(folder, events)

    def write(self, event: Event) -> None:
        if self._events is not None:
            line = {"event": type(event).__name__, **dataclasses.asdict(event)}
            self._events.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._events.flush()

    def finish(self, result: PlaybookResult) -> None:
        if self.folder is not None:
            write_json(self.folder / "result.json", result.document())

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._events is not None and self.folder is not None:
            self._events.close()
            rotate(self.folder.parent, RECORDS_MAX)


def rotate(base: Path, kept: int) -> list[Path]:
    """Removes the oldest records beyond ``kept`` that no run holds; gives those removed."""
    removed = []
    folders = sorted(path for path in base.iterdir() if (path / "events.jsonl").is_file())
    for folder in folders[: max(0, len(folders) - kept)]:
        with (folder / "events.jsonl").open() as events:
            try:
                fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder)
            removed.append(folder)
    return removed
