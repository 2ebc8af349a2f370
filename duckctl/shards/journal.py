"""The journal of finished pieces: what a conversion need not do again.

One header line and one line per piece, each with its CRC-32 in front: a line that was cut short by
a kill or changed by a failing disk is dropped, and its piece made again.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from duckctl.shards.manifest import JOURNAL_NAME
from duckctl.shards.store import write_atomically

JOURNAL_VERSION = 1
FileStates = list[list[object]]


@dataclass(frozen=True)
class JournalEntry:
    """One finished piece. Squared errors and sums are of gate, up, down against the source."""

    slice_index: int
    layer: int
    size_bytes: int
    sha256: str
    source: str  # digest of the layer's source tensors
    squared_error: tuple[float, ...]
    squared_sum: tuple[float, ...]


@dataclass
class Journal:
    """Finished pieces of the conversion with this plan key."""

    path: Path
    plan_key: str
    files: FileStates  # states of the source files when they were read
    entries: dict[tuple[int, int], JournalEntry]  # (layer, slice)

    @staticmethod
    def open(directory: Path, plan_key: str, files: FileStates) -> Journal:
        """The journal of this key, or a new one."""
        path = directory / JOURNAL_NAME
        found, is_whole = _read(path, plan_key) or (Journal(path, plan_key, files, {}), False)
        if not is_whole:
            found.rewrite()
        return found

    @staticmethod
    def peek(directory: Path, plan_key: str) -> Mapping[tuple[int, int], JournalEntry]:
        """Entries of the journal of this key, none without one; nothing is written."""
        found = _read(directory / JOURNAL_NAME, plan_key)
        return found[0].entries if found else {}

    def rewrite(self) -> None:
        """Writes header and entries anew."""
        header = _line([JOURNAL_VERSION, self.plan_key, self.files])
        lines = [header, *(_line(astuple(entry)) for entry in self.entries.values())]
        write_atomically(self.path, "".join(lines).encode())

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Records finished pieces durably; their files must be durable already."""
        with self.path.open("ab") as file:
            file.write("".join(_line(astuple(entry)) for entry in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        self.entries.update({(entry.layer, entry.slice_index): entry for entry in entries})

    def forget(self, keys: Sequence[tuple[int, int]]) -> None:
        """Drops pieces whose file or source is not what it was."""
        for key in keys:
            self.entries.pop(key, None)
        if keys:
            self.rewrite()


def _line(value: Sequence[object]) -> str:
    text = json.dumps(value, allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _value(line: bytes) -> list[Any] | None:
    """What a line says, or None when it is not as it was written (the CRC vouches for types)."""
    checksum, _, text = line.partition(b" ")
    if checksum.decode(errors="replace") != f"{zlib.crc32(text):08x}":
        return None
    value: list[Any] = json.loads(text)
    return value


def _read(path: Path, plan_key: str) -> tuple[Journal, bool] | None:
    """The journal, and whether every line of it is good."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    header = _value(lines[0])
    if header is None or header[:2] != [JOURNAL_VERSION, plan_key]:
        return None
    journal = Journal(path, plan_key, header[2], {})
    whole = lines[-1] == b""  # a whole journal ends with a line feed
    for line in lines[1:-1]:
        fields = _value(line)
        if fields is None:
            whole = False
            continue
        entry = JournalEntry(*fields[:5], *map(tuple, fields[5:]))
        if not all(map(math.isfinite, (*entry.squared_error, *entry.squared_sum))):
            whole = False  # an earlier duckctl packed codes of 0 / 0 in it
            continue
        journal.entries[(entry.layer, entry.slice_index)] = entry
    return journal, whole
