"""The history of a fleet in one SQLite file: a record per duck, and the events that made it.

Events are only ever added; the oldest go when there are more than EVENTS_MAX. A record and its
event are written in one transaction, so a kill at any moment leaves both or none. WAL: readers
(`status -w`, `events -f`) never wait for a writer. Several processes may write.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from duckctl.console import warn
from duckctl.errors import DuckError
from duckctl.inventory import Fleet
from duckctl.lifecycle.machine import DuckRecord, Event, Kind, State, Step, transition
from duckctl.rights import refusal

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6475636B  # "duck"
EVENTS_MAX = 200_000  # about 40 MB
EVENTS_SLACK = 2_000  # so many more before the oldest are dropped
SIGHTINGS_MAX = 4_096  # a box that makes up addresses must not fill the disk
BUSY_S = 10.0
DETAIL_CHARACTERS_MAX = 2_000

SCHEMA = """
CREATE TABLE ducks (
    duck TEXT PRIMARY KEY, state TEXT NOT NULL, step TEXT, reason TEXT NOT NULL,
    since_s REAL NOT NULL, boot_id TEXT NOT NULL, old_boot_id TEXT NOT NULL, build TEXT NOT NULL,
    attempts INTEGER NOT NULL, boots INTEGER NOT NULL, verified INTEGER NOT NULL,
    seen_s REAL NOT NULL
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, duck TEXT NOT NULL,
    kind TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, reason TEXT NOT NULL,
    run TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_duck ON events (duck, id);
CREATE TABLE sightings (
    mac TEXT PRIMARY KEY, first_s REAL NOT NULL, last_s REAL NOT NULL, count INTEGER NOT NULL,
    place TEXT NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""
# From version n to n + 1, in order; each runs once inside a transaction.
MIGRATIONS: tuple[str, ...] = (SCHEMA,)


DAMAGED = (
    "if it is damaged, move it away: states are found anew by `duckctl status`, only the history "
    "is lost"
)
NO_RIGHT = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
# By SQLite's primary code; whatever else it says may mean a damaged file.
HINTS: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: "another duckctl writes it; run the command again",
    sqlite3.SQLITE_FULL: "the disk is full: make room and run the command again",
    sqlite3.SQLITE_IOERR: "the disk does not read or write it: see `dmesg`, and whether it is full",
    **dict.fromkeys(NO_RIGHT, "is it a file, and may this user read and write it and its folder?"),
}


class StoreError(DuckError):
    """The state file cannot be used."""


class StoreRightsError(StoreError):
    """The state file, or its folder, may not be written by this user."""


@dataclass(frozen=True)
class StoredEvent:
    """One line of the history; ``before`` and ``after`` as DuckRecord.describe() gives them."""

    number: int
    at_s: float
    duck: str
    kind: str
    before: str
    after: str
    reason: str
    run: str


@dataclass(frozen=True)
class Sighting:
    """A network card that asked for an address and that no inventory names."""

    mac: str
    first_s: float
    last_s: float
    count: int
    place: str  # the domain in which it asked
    detail: str  # what it said of itself: architecture, vendor class


def store_path(fleet: Fleet) -> Path:
    """``<folder of the inventory>/<fleet>.state.db``."""
    return fleet.path.resolve().parent / f"{fleet.name}.state.db"


class Store:
    """One open state file. Use it from one thread.

    ``copy``: what is in the file now, in memory; nothing that is written stays.
    """

    def __init__(
        self,
        path: Path,
        run: str = "",
        events_max: int = EVENTS_MAX,
        read_only: bool = False,
        copy: bool = False,
    ) -> None:
        self.path = path
        self.run = run
        self._events_max = events_max
        self._db = _open_copy(path) if copy else _open(path, read_only)
        self._added = 0
        self._is_counted = False  # events of other processes were, once
        self._depth = 0

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: all of it or nothing, and no other writer in between. May be nested."""
        if self._depth:
            yield
            return
        with _told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1
            self._db.execute("COMMIT")

    # ---- ducks ---------------------------------------------------------------------------------

    def state_of(self, duck: str) -> DuckRecord:
        """The record of a duck; a new one for a duck that nothing has happened to."""
        with _told(self.path):
            row = self._db.execute("SELECT * FROM ducks WHERE duck = ?", (duck,)).fetchone()
        return _record(row) if row else DuckRecord(duck)

    def states(self, ducks: Sequence[str]) -> dict[str, DuckRecord]:
        """The records of these ducks, in this order."""
        with _told(self.path):
            rows = self._db.execute("SELECT * FROM ducks").fetchall()
        known = {row["duck"]: _record(row) for row in rows}
        return {duck: known.get(duck, DuckRecord(duck)) for duck in ducks}

    def record(self, duck: str, event: Event) -> DuckRecord:
        """Lets an event happen to a duck and gives its new record."""
        return self.record_all([(duck, event)])[duck]

    def record_all(self, events: Sequence[tuple[str, Event]]) -> dict[str, DuckRecord]:
        """The same for many, in one transaction. Gives the records of the ducks concerned."""
        changed: dict[str, DuckRecord] = {}
        if not events:
            return changed
        with self.writing():
            for duck, event in events:
                before = changed.get(duck) or self.state_of(duck)
                after = transition(before, event)
                changed[duck] = after
                moved = before.describe() != after.describe() or before.reason != after.reason
                if moved or event.kind is Kind.NOTE:
                    self._append(duck, event, before, after)
                if after != before:
                    self._put(after)
            self._prune()
        return changed

    def forget(self, ducks: Sequence[str]) -> None:
        """Drops the records of ducks that the inventory no longer names; events stay."""
        with self.writing():
            self._db.executemany("DELETE FROM ducks WHERE duck = ?", [(duck,) for duck in ducks])

    def _put(self, record: DuckRecord) -> None:
        values = asdict(record)
        names = ", ".join(values)
        places = ", ".join(f":{name}" for name in values)
        self._db.execute(f"INSERT OR REPLACE INTO ducks ({names}) VALUES ({places})", values)

    # ---- events --------------------------------------------------------------------------------

    def _append(self, duck: str, event: Event, before: DuckRecord, after: DuckRecord) -> None:
        reason = (event.reason or after.reason)[:DETAIL_CHARACTERS_MAX]
        self._db.execute(
            "INSERT INTO events (at_s, duck, kind, before, after, reason, run) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(event.at_s, duck, event.kind.value, before.describe(), after.describe()),
                *(reason, self.run),
            ),
        )
        self._added += 1

    def _prune(self) -> None:
        """Drops the oldest events, at most now and then: counting costs more than adding.

        With the first event it looks how many there are: most commands add only a few, and end.
        """
        if not self._added:
            return
        slack = min(EVENTS_SLACK, self._events_max)
        if not self._is_counted:
            self._is_counted = True
            oldest = self._db.execute("SELECT min(id) FROM events").fetchone()[0]
            newest = self._db.execute("SELECT max(id) FROM events").fetchone()[0]
            self._added = max(self._added, newest - oldest + 1 - self._events_max)
        if self._added < slack:
            return
        self._added = 0
        self._db.execute(
            "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (self._events_max,)
        )

    def events(
        self,
        after: int = 0,
        ducks: Sequence[str] | None = None,
        last: int | None = None,
        run: str = "",
    ) -> list[StoredEvent]:
        """Events with a higher number than ``after``, oldest first; ``last``: only so many."""
        wanted = json.dumps(list(ducks)) if ducks is not None else None
        with _told(self.path):
            rows = self._db.execute(
                "SELECT * FROM events WHERE id > ? AND (? IS NULL OR duck IN "
                "(SELECT value FROM json_each(?))) AND (? = '' OR run = ?) "
                "ORDER BY id DESC LIMIT ?",
                (after, wanted, wanted, run, run, -1 if last is None else last),
            ).fetchall()
        return [
            StoredEvent(
                *(row["id"], row["at_s"], row["duck"], row["kind"], row["before"]),
                *(row["after"], row["reason"], row["run"]),
            )
            for row in reversed(rows)
        ]

    # ---- unknown boxes -------------------------------------------------------------------------

    def sight(self, sightings: Sequence[Sighting]) -> None:
        """Cards that nobody knows have asked for an address."""
        if not sightings:
            return
        with self.writing():
            self._db.executemany(
                "INSERT INTO sightings VALUES (:mac, :first_s, :last_s, :count, :place, :detail) "
                "ON CONFLICT (mac) DO UPDATE SET last_s = max(last_s, :last_s), "
                "count = count + :count, place = CASE :place WHEN '' THEN place ELSE :place END, "
                "detail = CASE :detail WHEN '' THEN detail ELSE :detail END",
                [asdict(sighting) for sighting in sightings],
            )
            self._db.execute(
                "DELETE FROM sightings WHERE mac IN (SELECT mac FROM sightings "
                "ORDER BY last_s DESC LIMIT -1 OFFSET ?)",
                (SIGHTINGS_MAX,),
            )

    def sightings(self) -> list[Sighting]:
        """Unknown cards, the newest first."""
        with _told(self.path):
            rows = self._db.execute("SELECT * FROM sightings ORDER BY last_s DESC, mac").fetchall()
        return [Sighting(**dict(row)) for row in rows]

    def unsight(self, mac: str) -> None:
        """The card is known now."""
        with self.writing():
            self._db.execute("DELETE FROM sightings WHERE mac = ?", (mac,))

    # ---- facts ---------------------------------------------------------------------------------

    def fact(self, key: str) -> str:
        """A remembered text, e.g. how far a log was read; empty when there is none."""
        with _told(self.path):
            row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return str(row["value"]) if row else ""

    def remember(self, facts: Mapping[str, str]) -> None:
        with self.writing():
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))


def open_store(fleet: Fleet, run: str = "", clock: Callable[[], float] = time.time) -> Store:
    """The state file of a fleet; ducks that the inventory names are registered in it."""
    return _with_ducks(Store(store_path(fleet), run), fleet, clock)


def open_to_read(fleet: Fleet, insist: bool = False) -> Store:
    """The state file for a command that only shows what is in it.

    Where this user may not write it, a copy; with ``insist`` that is an error: what others write
    later would not be seen.
    """
    try:
        return open_store(fleet)
    except StoreRightsError as error:
        if insist:
            raise
        warn(f"{error.message}; what is found out now is shown and not kept")
    return _with_ducks(Store(store_path(fleet), copy=True), fleet, time.time)


def _with_ducks(store: Store, fleet: Fleet, clock: Callable[[], float]) -> Store:
    known = store.states([duck.name for duck in fleet.ducks])
    new = [name for name, record in known.items() if record.state is State.UNKNOWN]
    event = Event(Kind.REGISTER, clock())
    store.record_all([(name, event) for name in new])
    return store


def _record(row: sqlite3.Row) -> DuckRecord:
    values: dict[str, Any] = dict(row)
    step = values.pop("step")
    return replace(
        DuckRecord(**values),
        state=State(values["state"]),
        step=Step(step) if step else None,
        verified=bool(values["verified"]),
    )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors in words that name the file and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _explained(path, error) from error


def _explained(path: Path, error: sqlite3.DatabaseError) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary one
    if code in NO_RIGHT and (refused := _refusal(path)):
        message, hint = refused
        return StoreRightsError(f"the state file {path} cannot be used: {message}", hint)
    return StoreError(f"the state file {path} cannot be used: {error}", HINTS.get(code, DAMAGED))


def _refusal(path: Path) -> tuple[str, str] | None:
    """SQLite keeps two files beside its own (WAL): it needs the folder and each of them."""
    beside = [path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")]
    found = (refusal(file) for file in beside)
    return next((refused for refused in found if refused), None)


def _open_copy(path: Path) -> sqlite3.Connection:
    """Reads a file that may not be written. Without a log beside it nobody is writing it, and
    SQLite is told so: it would make the log's files otherwise."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    memory.row_factory = sqlite3.Row
    with _told(path):
        if path.exists():
            alone = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
            address = f"file:{quote(str(path))}?mode=ro{alone}"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as db:
                db.backup(memory)
        _migrate(memory, path)
    return memory


def _open(path: Path, read_only: bool) -> sqlite3.Connection:
    try:
        return _open_file(path, read_only)
    except StoreRightsError:
        if not read_only:
            raise
        return _open_copy(path)


def _open_file(path: Path, read_only: bool) -> sqlite3.Connection:
    with _told(path):
        if not path.parent.is_dir():
            raise StoreError(f"there is no folder {path.parent} for the state file")
        # Autocommit: transactions begin where _writing says so.
        db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if read_only:
            db.execute("PRAGMA query_only = ON")
        else:
            _migrate(db, path)
        return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Brings an older file to the present schema; refuses a newer or a foreign one."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        owner = int(db.execute("PRAGMA application_id").fetchone()[0])
        is_empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not is_empty and owner != APPLICATION_ID:
            raise StoreError(f"{path} is an SQLite file, but none of duckctl's")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path} has schema version {version}, this duckctl knows {SCHEMA_VERSION}",
                "use the newer duckctl, or move the file away",
            )
        for migration in MIGRATIONS[version:]:
            for statement in migration.split(";"):
                if statement.strip():
                    db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
