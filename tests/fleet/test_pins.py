"""The host knows which duck it talks to: keys are pinned, a changed one is refused by name."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from duck_process import running_ducks

from duckctl.native import native_path
from host_runtime.errors import FileFormatError
from host_runtime.fleet import trust
from host_runtime.fleet.connect import connect
from host_runtime.fleet.pins import (
    EVENTS_KEPT,
    IdentityError,
    IdentityPolicy,
    Pin,
    PinEvent,
    PinStore,
    fingerprint,
    judge,
)
from host_runtime.transport import TransportOptions

LIBRARY = native_path("libduckhost.so")
OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
PINS = {"d01": Pin(OLD, 1, (PinEvent(5.0, "first use", OLD, 1),)), "d02": Pin(OTHER, 7, ())}


def judged(name: str, identity: bytes, boot_id: int, policy: str) -> Pin:
    return judge(name, PINS, identity, boot_id, IdentityPolicy(policy), 9.0)


@pytest.mark.parametrize(
    ("name", "identity", "boot_id", "policy", "what"),
    [
        ("d03", NEW, 4, "pinned", "first use"),
        ("d01", OLD, 1, "pinned", "first use"),
        ("d01", OLD, 2, "pinned", "first use"),
        ("d01", NEW, 2, "per_boot", "new boot"),
    ],
)
def test_good_keys(name: str, identity: bytes, boot_id: int, policy: str, what: str) -> None:
    """The first one; the same one in any boot; with per_boot a new one of a new boot."""
    pin = judged(name, identity, boot_id, policy)
    assert (pin.identity, pin.boot_id) == (identity, boot_id)
    assert pin.events[-1].what == what


@pytest.mark.parametrize(
    ("name", "identity", "boot_id", "policy", "words", "next_step"),
    [
        ("d01", NEW, 1, "pinned", "d01: its key changed (pinned", "trust accept d01"),
        ("d01", NEW, 2, "pinned", "d01: its key changed (pinned", "duck_identity: per_boot"),
        ("d01", NEW, 1, "per_boot", "d01: its key changed within one boot", "something else"),
        ("d01", OTHER, 2, "per_boot", "the duck that is pinned as d02", "trust forget d02"),
        ("d03", OLD, 2, "pinned", "the duck that is pinned as d01", "cables or the inventory"),
    ],
)
def test_wrong_keys(
    name: str, identity: bytes, boot_id: int, policy: str, words: str, next_step: str
) -> None:
    """Each refusal names the duck, both keys or the other duck, and the next step."""
    with pytest.raises(IdentityError) as caught:
        judged(name, identity, boot_id, policy)
    assert caught.value.duck_name == name
    assert words in caught.value.message
    assert next_step in caught.value.hint


def test_events_are_bounded() -> None:
    pins = dict(PINS)
    for boot in range(2, 100):
        key = boot.to_bytes(32)
        pins["d01"] = judge("d01", pins, key, boot, IdentityPolicy.PER_BOOT, float(boot))
    assert len(pins["d01"].events) == EVENTS_KEPT
    assert pins["d01"].events[-1] == PinEvent(99.0, "new boot", (99).to_bytes(32), 99)


def test_the_file(tmp_path: Path) -> None:
    """Private, replaced whole, the same after reading; several at once lose nothing."""
    path = tmp_path / "fleet.pins.json"
    store = PinStore(path, clock=lambda: 100.0)
    assert store.load() == {}
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda i: PinStore(path).check(f"d{i}", bytes([i]) * 32, i, IdentityPolicy.PINNED),
                range(20),
            )
        )
    assert sorted(store.load()) == sorted(f"d{i}" for i in range(20))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="d3: its key changed"):
        store.check("d3", NEW, 3, IdentityPolicy.PINNED)
    assert store.accept("d3", NEW, 8).events[-1] == PinEvent(100.0, "accepted", NEW, 8)
    assert store.load()["d3"].identity == NEW
    store.check("d3", NEW, 9, IdentityPolicy.PINNED)
    assert store.load()["d3"].boot_id == 9
    assert (store.forget("d3"), store.forget("d3")) == (True, False)
    store.check("d99", OLD, 1, IdentityPolicy.PINNED, keep=False)
    assert "d99" not in store.load()
    document = json.loads(path.read_text())
    document["ducks"][0]["colour"] = "green"
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="unknown key 'colour'"):
        store.load()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_file_keeps_its_owner(tmp_path: Path) -> None:
    """`sudo duckctl trust accept` while a user serves: pins and lock stay that user's."""
    store = PinStore(tmp_path / "fleet.pins.json")
    store.accept("d1", OLD, 1)
    os.chown(store.path, 12345, 23456)
    lock = tmp_path / "fleet.pins.json.lock"
    lock.unlink()
    store.accept("d1", NEW, 2)
    assert store.load()["d1"].identity == NEW
    for path in (store.path, lock):
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 23456, 0o600)
    victim = tmp_path / "victim"
    victim.touch()
    lock.unlink()
    lock.symlink_to(victim)
    with pytest.raises(FileFormatError, match="cannot be locked"):
        store.accept("d1", OLD, 3)
    assert victim.stat().st_uid == 0


def test_pins_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    """In the words of the system, as an error that says what to do."""
    store = PinStore(tmp_path / "fleet.pins.json")
    (tmp_path / f".fleet.pins.json.{os.getpid()}").mkdir()
    with pytest.raises(FileFormatError, match=r"pins\.json: cannot be written: Is a directory"):
        store.accept("d1", OLD, 1)


def ask(tmp_path: Path, *words: str) -> int:
    fleet, library = str(tmp_path / "fleet.json"), str(LIBRARY)
    return trust.main(["--fleet", fleet, "--library", library, *words])


def test_a_duck_with_another_key_is_refused_until_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reinstalled duck: refused by name at the handshake, its session ended; then accepted."""
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        with connect(fleet, LIBRARY, TransportOptions()) as transport:
            first = transport.hello(0, 3000)
            assert transport.hello(0, 3000).identity == first.identity
            ducks[0].kill()
            ducks[0].identity_file.unlink()
            ducks[0].start()
            with pytest.raises(IdentityError, match="d01: its key changed"):
                transport.hello(0, 3000)
            assert transport.duck_status(0).attached == 0
            transport.hello(1, 3000)
            assert ask(tmp_path, "accept", "d01") == 0
            accepted = transport.hello(0, 3000)
        assert ask(tmp_path, "ls") == 0
        told = json.loads(capsys.readouterr().out.split("}\n{")[-1].join(["{", ""]))
        assert told["ducks"][0]["fingerprint"] == fingerprint(accepted.identity)
        assert [event["what"] for event in told["ducks"][0]["events"]] == ["first use", "accepted"]
        assert ask(tmp_path, "forget", "d02") == 0
        assert "d02" not in PinStore(fleet.pins_file).load()
        assert ask(tmp_path, "forget", "d09") == 2
        assert "no duck 'd09'" in capsys.readouterr().err
