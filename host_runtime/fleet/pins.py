"""Which key each duck has: pinned on first use, and judged at every handshake after that.

The file lies beside the fleet's key. It is changed only under a lock and replaced whole, so that
``serve``, ``health`` and ``trust`` may use it at the same time. docs/reference/trust.md tells what
the two policies promise.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from host_runtime.errors import FileFormatError, HostError
from host_runtime.jsonfile import JsonObject, read_json_object

SCHEMA_VERSION = 1
EVENTS_KEPT = 16  # per duck


class IdentityPolicy(StrEnum):
    """What a duck's key may do."""

    PINNED = "pinned"  # the key stays: the duck keeps it in a file
    PER_BOOT = "per_boot"  # a new key with each boot: the duck has nowhere to keep it


class IdentityError(HostError):
    """A duck proved another key than the one that it must have; ``duck_name`` is its name."""

    def __init__(self, duck_name: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.duck_name = duck_name


@dataclass(frozen=True)
class PinEvent:
    """When a duck's key became the pinned one, and how."""

    time_s: float
    what: str  # "first use", "new boot", "accepted"
    identity: bytes
    boot_id: int


@dataclass(frozen=True)
class Pin:
    """The key of one duck, the boot it was last seen in, and the last changes, oldest first."""

    identity: bytes
    boot_id: int
    events: tuple[PinEvent, ...]


def fingerprint(identity: bytes) -> str:
    """Enough of a key to compare by eye: ``3f2a 91bc 04d7 e6a8``."""
    text = identity.hex()[:16]
    return " ".join(text[i : i + 4] for i in range(0, 16, 4))


# ---- the rule, pure --------------------------------------------------------------------------
def judge(
    name: str,
    pins: Mapping[str, Pin],
    identity: bytes,
    boot_id: int,
    policy: IdentityPolicy,
    now_s: float,
) -> Pin:
    """The duck's pin after this handshake; IdentityError when it must not be talked to."""
    pin = pins.get(name)
    owner = next((other for other, p in pins.items() if p.identity == identity), None)
    if owner is not None and owner != name:
        raise IdentityError(
            name,
            f"{name}: at its address answers the duck that is pinned as {owner} "
            f"(key {fingerprint(identity)}): two ducks are swapped, or one key was copied",
            f"correct the cables or the inventory; if it is really {name} now: "
            f"duckctl trust forget {owner}, then duckctl trust accept {name}",
        )
    if pin is None:
        return Pin(identity, boot_id, (PinEvent(now_s, "first use", identity, boot_id),))
    if pin.identity == identity:
        return pin if pin.boot_id == boot_id else replace(pin, boot_id=boot_id)
    if policy is IdentityPolicy.PER_BOOT and pin.boot_id != boot_id:
        return _changed(pin, PinEvent(now_s, "new boot", identity, boot_id))
    raise IdentityError(name, _refusal(name, pin, identity, policy), _next_step(name, policy))


def _changed(pin: Pin, event: PinEvent) -> Pin:
    events = (*pin.events, event)[-EVENTS_KEPT:]
    return Pin(event.identity, event.boot_id, events)


def _refusal(name: str, pin: Pin, identity: bytes, policy: IdentityPolicy) -> str:
    keys = f"pinned {fingerprint(pin.identity)}, proven {fingerprint(identity)}"
    if policy is IdentityPolicy.PER_BOOT:
        return f"{name}: its key changed within one boot ({keys})"
    return f"{name}: its key changed ({keys})"


def _next_step(name: str, policy: IdentityPolicy) -> str:
    accept = f"if you replaced or reinstalled this duck: duckctl trust accept {name}"
    if policy is IdentityPolicy.PER_BOOT:
        return f"something else answers at its address; {accept}"
    return (
        f"{accept}; if it boots without a disk: duck_identity: per_boot in the inventory; "
        "otherwise something else answers at its address"
    )


# ---- the file --------------------------------------------------------------------------------
class PinStore:
    """The pins of one fleet. Every method looks at the file anew, and reads it if it has changed.

    A thousand ducks that boot at once are a thousand changes, each of a file of a thousand pins:
    what was read and what was written is remembered.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._read: tuple[tuple[int, int, int], dict[str, Pin]] | None = None
        self._texts: dict[str, tuple[Pin, str]] = {}

    def load(self) -> dict[str, Pin]:
        """All pins by name; none when there is no file yet."""
        mark = self._mark()
        if mark is None:
            return {}
        if self._read is None or self._read[0] != mark:
            self._read = (mark, self._parse())
        return dict(self._read[1])

    def _mark(self) -> tuple[int, int, int] | None:
        """Changes with the file, which is only ever replaced whole; None: there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _parse(self) -> dict[str, Pin]:
        root = read_json_object(self.path, "pins file")
        root.version(SCHEMA_VERSION)
        pins = {}
        for entry in root.children("ducks"):
            name = entry.text("name")
            pins[name] = _pin(entry)
        root.finish()
        return pins

    def check(
        self,
        name: str,
        identity: bytes,
        boot_id: int,
        policy: IdentityPolicy,
        *,
        keep: bool = True,
    ) -> Pin:
        """Judge a proven key and, with ``keep``, remember what is new; raises IdentityError."""
        if not keep:
            return judge(name, self.load(), identity, boot_id, policy, self._clock())
        with self._locked() as pins:
            pin = judge(name, pins, identity, boot_id, policy, self._clock())
            if pins.get(name) != pin:
                self._save({**pins, name: pin})
            return pin

    def accept(self, name: str, identity: bytes, boot_id: int) -> Pin:
        """This key from now on, whatever was pinned before."""
        with self._locked() as pins:
            event = PinEvent(self._clock(), "accepted", identity, boot_id)
            old = pins.get(name)
            pin = _changed(old, event) if old else Pin(identity, boot_id, (event,))
            self._save({**pins, name: pin})
            return pin

    def forget(self, name: str) -> bool:
        """The next key is a first one; False when none was pinned."""
        with self._locked() as pins:
            if name not in pins:
                return False
            self._save({other: pin for other, pin in pins.items() if other != name})
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Pin]]:
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            try:
                descriptor = self._make(lock)
            except FileExistsError:
                descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise FileFormatError(
                f"pins file {self.path}: cannot be locked: {error.strerror}",
                "its folder must be writable: the ducks' keys are remembered there",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self.load()
        finally:
            os.close(descriptor)

    def _save(self, pins: Mapping[str, Pin]) -> None:
        ducks = ",\n".join(self._text(name, pins[name]) for name in sorted(pins))
        text = f'{{"schema_version": {SCHEMA_VERSION}, "ducks": [\n{ducks}\n]}}\n'
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)
            with os.fdopen(self._make(beside), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            raise FileFormatError(
                f"pins file {self.path}: cannot be written: {error.strerror}",
                "its folder must be writable: the ducks' keys are remembered there",
            ) from error
        mark = self._mark()
        self._read = (mark, dict(pins)) if mark else None

    def _make(self, path: Path) -> int:
        """A new file, open. One that root makes belongs to who has the pins: theirs goes on.

        Never one that was there, nor what a link names: that must not change hands.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # no pins yet, or not root
            old = self.path.stat()
            os.fchown(descriptor, old.st_uid, old.st_gid)
        return descriptor

    def _text(self, name: str, pin: Pin) -> str:
        """The pin's line in the file, made once."""
        known = self._texts.get(name)
        if known is None or known[0] is not pin:
            known = self._texts[name] = (pin, json.dumps(_document(name, pin)))
        return known[1]


def _pin(entry: JsonObject) -> Pin:
    events = []
    for child in entry.children("events"):
        event = PinEvent(
            float(child.integer("time_s", 0, 1 << 62)),
            child.text("what"),
            child.digest("identity"),
            _boot_id(child),
        )
        child.finish()
        events.append(event)
    pin = Pin(entry.digest("identity"), _boot_id(entry), tuple(events))
    entry.finish()
    return pin


def _boot_id(entry: JsonObject) -> int:
    text = entry.text("boot_id")
    try:
        return int(text, 16)
    except ValueError:
        raise entry.fail("boot_id", f"'{text}' is not a hexadecimal number") from None


def _document(name: str, pin: Pin) -> dict[str, Any]:
    return {
        "name": name,
        "identity": pin.identity.hex(),
        "boot_id": f"{pin.boot_id:016x}",
        "events": [
            {
                **asdict(event),
                "time_s": int(event.time_s),
                "identity": event.identity.hex(),
                "boot_id": f"{event.boot_id:016x}",
            }
            for event in pin.events
        ],
    }
