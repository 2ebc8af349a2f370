"""What a duck shall boot next, where that differs from the inventory: one small file per fleet.

A duck without an entry boots the image that its inventory names. Entries are changed under a lock
and the file is replaced whole, so a reader sees the old or the new one.
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from duckctl.errors import DuckError
from duckctl.fleet_file import write_json
from duckctl.rights import told

SCHEMA_VERSION = 1
FILE_BYTES_MAX = 8 << 20
LOCK_TIMEOUT_S = 10.0
LOCK_POLL_S = 0.02

Action = Literal["image", "local", "held"]


class IntentError(DuckError):
    """The intents file cannot be read or changed."""


@dataclass(frozen=True)
class Intent:
    """``image``: boot ``image`` (None: the inventory's). ``local``: an address, no boot file, so
    the firmware goes on to the next device. ``held``: as local, because the duck loops.

    ``one_shot``: ends when the duck says hello; the entry ``before`` it (if any) is back then.
    ``set_at``: seconds since 1970.
    """

    action: Action
    image: str | None = None
    one_shot: bool = False
    reason: str = ""
    set_at: float = 0.0
    before: Intent | None = None

    def ends_by(self, began_s: float) -> bool:
        """True if a boot that began then (seconds since 1970) ends it, once it says hello."""
        return (self.one_shot or self.action == "held") and self.set_at < began_s


INVENTORY_INTENT = Intent("image")


class Intents:
    """The intents file of a fleet. Every method reads the file anew."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    @property
    def hellos(self) -> Path:
        """Names of ducks that came up, one a line; the boot service reads and empties it."""
        return self.path.with_name("hellos")

    def take_hellos(self) -> list[str]:
        """The ducks that came up since the last call. After an OSError they come next time."""
        taken = self.hellos.with_name(".hellos.taken")
        try:
            if not taken.exists():
                self.hellos.replace(taken)
            names = taken.read_text(encoding="utf-8", errors="replace").split()
            taken.unlink()
            return names
        except FileNotFoundError:
            return []

    def read(self) -> dict[str, Intent]:
        """Entries by duck name; ducks without one follow the inventory."""
        try:
            with self.path.open("rb") as file:
                document = json.loads(file.read(FILE_BYTES_MAX))
            if document["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version {document['schema_version']} is not known")
            return {str(name): _parse(entry) for name, entry in document["ducks"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IntentError(
                f"cannot read {self.path}: {error}",
                "move the file away; the ducks then follow the inventory",
            ) from error

    def of(self, duck: str) -> Intent:
        """The intent of one duck."""
        return self.read().get(duck, INVENTORY_INTENT)

    def set_image(
        self, duck: str, image: str | None = None, one_shot: bool = False, reason: str = ""
    ) -> None:
        """Boot an image (None: the inventory's), for good or once."""
        self._put(duck, Intent("image", image, one_shot, reason))

    def set_local(self, duck: str, one_shot: bool = False, reason: str = "") -> None:
        """Let the duck boot from its own disk, for good or once."""
        self._put(duck, Intent("local", None, one_shot, reason))

    def hold(self, duck: str, reason: str) -> None:
        """Serve the duck no boot file until it is cleared: it loops."""
        with self._changed() as entries:
            before = entries.get(duck)
            if before is None or before.action != "held":
                entries[duck] = Intent("held", None, False, reason, self._clock(), before)

    def clear(self, duck: str) -> bool:
        """Back to the inventory; False if there was nothing to clear."""
        with self._changed() as entries:
            return entries.pop(duck, None) is not None

    def hello(self, duck: str, began_s: float = math.inf) -> bool:
        """The duck answered: a one-shot intent and a hold are over. True if something changed.

        Call it when a duck came up; the loop detector counts anew from here. ``began_s``: when this
        boot began, in seconds since 1970; what was set later is for the next one. Raises DuckError
        when a file cannot be written.
        """
        with told(self.hellos):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.hellos.open("a", encoding="utf-8") as file:
                file.write(f"{duck}\n")
        entry = self.read().get(duck)
        if entry is None or not entry.ends_by(began_s):
            return False
        with self._changed() as entries:
            entry = entries.pop(duck, None)
            while entry is not None and entry.ends_by(began_s):
                entry = entry.before
            if entry is not None:
                entries[duck] = entry
        return True

    def _put(self, duck: str, intent: Intent) -> None:
        with self._changed() as entries:
            standing = entries.get(duck)
            while standing is not None and (standing.one_shot or standing.action == "held"):
                standing = standing.before
            entries[duck] = Intent(
                intent.action,
                intent.image,
                intent.one_shot,
                intent.reason,
                self._clock(),
                standing if intent.one_shot else None,
            )

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Intent]]:
        """The entries, written back when the block ends without an error."""
        lock_path = self.path.with_name(f".{self.path.name}.lock")
        with told(lock_path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            opened = lock_path.open("w")
        with opened as lock:
            _take(lock.fileno(), self.path)
            entries = self.read()
            before = dict(entries)
            yield entries
            if entries != before:
                with told(self.path):
                    write_json(self.path, _document(entries))


def _take(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise IntentError(f"{path} is locked by another duckctl", "try again") from None
            time.sleep(LOCK_POLL_S)


def _document(entries: Mapping[str, Intent]) -> dict[str, object]:
    ducks = {name: asdict(intent) for name, intent in sorted(entries.items())}
    return {"schema_version": SCHEMA_VERSION, "ducks": ducks}


def _parse(entry: dict[str, object]) -> Intent:
    action = entry["action"]
    for known in get_args(Action):
        if action == known:
            before = entry["before"]
            return Intent(
                known,
                str(entry["image"]) if entry["image"] is not None else None,
                bool(entry["one_shot"]),
                str(entry["reason"]),
                float(str(entry["set_at"])),
                _parse(before) if isinstance(before, dict) else None,
            )
    raise ValueError(f"unknown action '{action}'")
