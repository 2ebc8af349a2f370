"""The state file: bounded, crash-safe, readable while written, honest about its version."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lifecycle_kit import shelf

from duckctl.errors import UsageError
from duckctl.inventory import Fleet
from duckctl.lifecycle import store as store_module
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.machine import Event, Kind, State
from duckctl.lifecycle.store import Sighting, Store, StoreError, open_store


def test_a_record_survives_the_process(tmp_path: Path) -> None:
    """What was recorded is read back equal, field by field."""
    with Store(tmp_path / "x.db", run="r1") as store:
        store.record("d1", Event(Kind.REGISTER, 1.0))
        store.record("d1", Event(Kind.BOOT, 2.0, "by hand"))
        written = store.record("d1", Event(Kind.HELLO, 3.0, boot_id="b", build="x"))
    with Store(tmp_path / "x.db") as store:
        assert store.state_of("d1") == written
        assert [len(store.events(run=run)) for run in ("r1", "r2", "")] == [3, 0, 3]
        assert [(e.kind, e.before, e.after, e.run) for e in store.events()] == [
            ("register", "unknown", "registered", "r1"),
            ("boot", "registered", "booting(power)", "r1"),
            ("hello", "booting(power)", "booting(verify)", "r1"),
        ]


def test_events_that_change_nothing_are_not_kept(tmp_path: Path) -> None:
    """A duck that stays as it is does not fill the disk, however often it is looked at."""
    with Store(tmp_path / "x.db") as store:
        store.record("d1", Event(Kind.HELLO, 1.0, boot_id="b"))
        store.record("d1", Event(Kind.VERIFIED, 1.0))
        for at_s in range(100):
            store.record("d1", Event(Kind.HELLO, 2.0 + at_s, boot_id="b"))
            store.record("d1", Event(Kind.VERIFIED, 2.0 + at_s))
        assert len(store.events()) == 2
        assert store.state_of("d1").seen_s == 101.0


def test_the_history_is_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    """The oldest events go; numbers go on, and records of ducks stay."""
    with Store(tmp_path / "x.db", events_max=50) as store:
        for number in range(500):
            store.record("d1", Event(Kind.NOTE, float(number), f"n{number}"))
        events = store.events()
    assert 50 <= len(events) <= 100
    assert (events[-1].reason, events[-1].number) == ("n499", 500)


def test_the_history_of_many_short_commands_is_bounded(tmp_path: Path) -> None:
    """Each process adds a few events and ends."""
    for number in range(60):
        with Store(tmp_path / "x.db", events_max=50) as store:
            store.record_all([("d1", Event(Kind.NOTE, float(number), "n"))] * 5)
    with Store(tmp_path / "x.db") as store:
        events = store.events()
    assert 50 <= len(events) <= 100
    assert events[-1].number == 300


def test_t30_made_up_cards_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T30: boxes with random addresses push out the oldest sightings, not the disk."""
    monkeypatch.setattr(store_module, "SIGHTINGS_MAX", 10)
    with Store(tmp_path / "x.db") as store:
        for number in range(100):
            mac = f"a8:00:00:00:00:{number:02x}"
            store.sight([Sighting(mac, float(number), float(number), 1, "domain1", "")])
        found = store.sightings()
    assert [sighting.mac for sighting in found] == [
        f"a8:00:00:00:00:{n:02x}" for n in range(99, 89, -1)
    ]


def test_sightings_of_one_card_are_counted(tmp_path: Path) -> None:
    """First and last time, count and the newest detail of a card are kept in one row."""
    with Store(tmp_path / "x.db") as store:
        store.sight([Sighting("a8:00:00:00:00:01", 5.0, 7.0, 3, "domain1", "arch 7")])
        store.sight([Sighting("a8:00:00:00:00:01", 8.0, 9.0, 2, "", "")])
        assert store.sightings() == [
            Sighting("a8:00:00:00:00:01", 5.0, 9.0, 5, "domain1", "arch 7")
        ]


WRITER = """
import sys
from pathlib import Path
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import Store
store = Store(Path(sys.argv[1]))
for number in range(1_000_000):
    events = [(f"d{i}", Event(Kind.BOOT if number % 2 else Kind.HELLO, float(number), f"n{number}",
               boot_id=str(number))) for i in range(20)]
    store.record_all(events)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_transactions(tmp_path: Path) -> None:
    """kill -9 at any moment: records and events agree, and what was acknowledged is there."""
    path = tmp_path / "x.db"
    for round_number in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(3 + 2 * round_number):
                acknowledged = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
        with Store(path) as store:
            newest = {event.duck: event for event in store.events(last=20)}
            assert len(newest) == 20
            assert len({event.reason for event in newest.values()}) == 1, "a part of a transaction"
            for duck, event in newest.items():
                record = store.state_of(duck)
                assert record.describe() == event.after
                assert record.since_s == event.at_s
                assert event.at_s >= acknowledged


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Threads with a store each write at once: every event is there, in one order for all."""
    path = tmp_path / "x.db"
    Store(path).close()

    def write(name: str) -> None:
        with Store(path) as store:
            for number in range(100):
                store.record(name, Event(Kind.NOTE, float(number), f"{name} {number}"))

    threads = [threading.Thread(target=write, args=(f"d{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(path) as store:
        for n in range(4):
            reasons = [event.reason for event in store.events(ducks=[f"d{n}"])]
            assert reasons == [f"d{n} {number}" for number in range(100)]


def test_a_nested_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    """An error in the outer block takes back what inner calls have written."""
    with Store(tmp_path / "x.db") as store:
        with pytest.raises(RuntimeError), store.writing():
            store.record("d1", Event(Kind.REGISTER, 1.0))
            store.remember({"place": "7"})
            raise RuntimeError
        assert (store.events(), store.fact("place")) == ([], "")


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A file of a newer duckctl is neither read wrongly nor changed."""
    path = tmp_path / "x.db"
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema version 99"):
        Store(path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b""])
def test_a_foreign_file_is_refused_or_new(tmp_path: Path, content: bytes) -> None:
    """Something else under the name is named as such; an empty file is a new one."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    if content:
        with pytest.raises(StoreError, match=r"x\.db"):
            Store(path)
        assert path.read_bytes() == content
    else:
        with Store(path) as store:
            assert store.events() == []


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """An SQLite file without our mark is left alone."""
    path = tmp_path / "x.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (a)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="none of duckctl's"):
        Store(path)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return shelf(tmp_path)


def test_patterns_know_states(fleet: Fleet) -> None:
    """@failed, @up and exclusions by state select by the history."""
    with open_store(fleet) as store:
        store.record("duck01", Event(Kind.FAIL, 1.0, "no power"))
        store.record_all(
            [("duck02", Event(Kind.HELLO, 1.0, boot_id="b")), ("duck02", Event(Kind.VERIFIED, 1.0))]
        )
    assert [duck.name for duck in choose(fleet, "@failed")] == ["duck01"]
    assert [duck.name for duck in choose(fleet, "all,!@failed")] == ["duck02", "duck04", "duck05"]
    assert [duck.name for duck in choose(fleet, "domain1,&@up")] == ["duck02"]
    with pytest.raises(UsageError, match="no duck is lost"):
        choose(fleet, "@lost")
    with pytest.raises(UsageError, match="did you mean '@failed'"):
        choose(fleet, "@faild")


def test_ducks_of_the_inventory_are_registered_once(fleet: Fleet) -> None:
    """Opening the store registers new ducks; a second time nothing happens."""
    for _ in range(2):
        with open_store(fleet) as store:
            states = store.states([duck.name for duck in fleet.ducks])
            assert {record.state for record in states.values()} == {State.REGISTERED}
            assert len(store.events()) == 4
