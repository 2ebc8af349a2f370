"""The life of a duck as a pure function: (record, event) -> record. Nothing here waits or asks.

    unknown -> discovered -> registered -> booting{power, dhcp, boot_file, image, hello, verify}
            -> ready -> loading -> serving
    beside it: draining, rebooting, maintenance, lost, failed(step, reason, at)

``booting(step)`` names what is waited for next, so a duck that failed there tells how far it came.
Every state that waits has a deadline (``Limits``). An event that means nothing in a state leaves
the record as it is: the network may say anything at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """Where a duck is in its life."""

    UNKNOWN = "unknown"  # the inventory names it; nothing is known of it
    DISCOVERED = "discovered"  # a box has asked for an address, and no inventory names it
    REGISTERED = "registered"  # adopted: the inventory names it, it has not booted yet
    BOOTING = "booting"
    READY = "ready"  # answers, and everything was verified
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"  # serves still, and is to leave
    REBOOTING = "rebooting"  # was asked to go down, and has not gone yet
    MAINTENANCE = "maintenance"  # a person works on it: nobody may touch it
    LOST = "lost"  # was up, and does not answer
    FAILED = "failed"


class Step(StrEnum):
    """What a booting duck is waited for."""

    POWER = "power"  # somebody switches it
    DHCP = "dhcp"  # it asks for an address
    BOOT_FILE = "boot_file"  # it fetches what it was told to boot
    IMAGE = "image"  # the boot loader fetches kernel and initramfs
    HELLO = "hello"  # the image answers the host
    VERIFY = "verify"  # the host checks what answered


class Kind(StrEnum):
    """What can happen to a duck."""

    DISCOVER = "discover"  # its card was seen before it had a name
    REGISTER = "register"
    BOOT = "boot"  # the host is about to switch it on or off and on
    POWERED = "powered"  # the switching is done
    REBOOT = "reboot"  # the host is about to ask it to restart
    KEEP = "keep"  # the host found that a restart that was asked for is not needed
    DHCP = "dhcp"  # it asked for an address: DISCOVER, so it has just been started
    BOOT_FILE = "boot_file"
    IMAGE = "image"
    HELLO = "hello"
    VERIFIED = "verified"
    MISFIT = "misfit"  # it answers, and is not what it should be
    SILENT = "silent"
    IDLE = "idle"  # it says that nothing is loaded or served
    LOAD = "load"
    SERVE = "serve"
    DRAIN = "drain"
    FAIL = "fail"  # the host could not do its part (power, image)
    DEADLINE = "deadline"
    MAINTENANCE_ON = "maintenance_on"
    MAINTENANCE_OFF = "maintenance_off"
    NOTE = "note"  # worth remembering, changes no state


UP = frozenset({State.READY, State.LOADING, State.SERVING, State.DRAINING})
WAITING = frozenset({State.BOOTING, State.REBOOTING})
STEPS = tuple(Step)


@dataclass(frozen=True)
class Event:
    """Something that happened at ``at_s`` (seconds since 1970).

    ``is_image``: the boot file that was fetched is the whole image, no second stage follows.
    """

    kind: Kind
    at_s: float
    reason: str = ""
    boot_id: str = ""
    build: str = ""
    is_image: bool = False


@dataclass(frozen=True)
class DuckRecord:
    """What is known of one duck."""

    duck: str
    state: State = State.UNKNOWN
    step: Step | None = None  # booting: waited for; rebooting: power; failed: where it failed
    reason: str = ""
    since_s: float = 0.0  # in this state and step
    boot_id: str = ""  # of the last boot that answered
    old_boot_id: str = ""  # the boot that has to end; empty when none was asked to
    build: str = ""
    attempts: int = 0  # times it was switched or restarted since it was last ready
    boots: int = 0  # different boots that answered
    verified: bool = False  # this boot was
    seen_s: float = 0.0  # the last sign of life

    @property
    def is_up(self) -> bool:
        return self.state in UP

    def describe(self) -> str:
        """``booting(hello)``, ``failed(dhcp)``, ``ready``."""
        return f"{self.state}({self.step})" if self.step else str(self.state)


@dataclass(frozen=True)
class Limits:
    """Seconds that each step may take. A small PC may spend over a minute in its firmware, and
    a switch with spanning tree holds the first packets back for up to 50 s."""

    power: float = 60.0
    dhcp: float = 180.0
    boot_file: float = 90.0
    image: float = 180.0
    hello: float = 120.0
    verify: float = 60.0

    def of(self, step: Step) -> float:
        return float(getattr(self, step.value))

    def at_most(self, seconds: float) -> Limits:
        """The same, with no step longer than ``seconds``."""
        return Limits(**{step.value: min(self.of(step), seconds) for step in Step})

    def due_s(self, record: DuckRecord) -> float | None:
        """The moment at which the present wait has failed; None when nothing is waited for."""
        if record.state not in WAITING or record.step is None:
            return None
        return record.since_s + self.of(record.step)


WAITED_FOR: Mapping[Step, str] = {
    Step.POWER: "it was not seen to go down",
    Step.DHCP: "it was switched on, and asked for no address",
    Step.BOOT_FILE: "it asked for an address, and fetched no boot file",
    Step.IMAGE: "it fetched the boot loader, and not the image",
    Step.HELLO: "it fetched the image, and does not answer",
    Step.VERIFY: "it answered, and then fell silent before it was verified",
}


def transition(record: DuckRecord, event: Event) -> DuckRecord:
    """The record after the event; the same object when the event means nothing now."""
    if event.kind in LOGGED and event.at_s + LOG_RESOLUTION_S < record.since_s:
        return record  # read late, or read again: the record knows better
    if record.state is State.MAINTENANCE and event.kind is not Kind.MAINTENANCE_OFF:
        return _seen(record, event)
    return _RULES[event.kind](_seen(record, event), event)


# What a log tells: it may be read late or twice, and has whole seconds.
LOGGED = frozenset({Kind.DHCP, Kind.BOOT_FILE, Kind.IMAGE})
LOG_RESOLUTION_S = 1.0
SIGNS_OF_LIFE = frozenset(
    {Kind.DHCP, Kind.BOOT_FILE, Kind.IMAGE, Kind.HELLO, Kind.IDLE, Kind.LOAD, Kind.SERVE}
)


def _seen(record: DuckRecord, event: Event) -> DuckRecord:
    if event.kind not in SIGNS_OF_LIFE or event.at_s <= record.seen_s:
        return record
    return replace(record, seen_s=event.at_s)


def _to(record: DuckRecord, event: Event, state: State, step: Step | None = None) -> DuckRecord:
    if (record.state, record.step, record.reason) == (state, step, event.reason):
        return record
    return replace(record, state=state, step=step, reason=event.reason, since_s=event.at_s)


# ---- what the host does --------------------------------------------------------------------------


def _discover(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(record, event, State.DISCOVERED) if record.state is State.UNKNOWN else record


def _register(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state in (State.UNKNOWN, State.DISCOVERED):
        return _to(record, event, State.REGISTERED)
    return record


def _boot(record: DuckRecord, event: Event) -> DuckRecord:
    """``boot_id``: the boot that has to end. Without one, a silent duck that answers is well."""
    asked = replace(
        record,
        attempts=record.attempts + 1,
        old_boot_id=event.boot_id or record.old_boot_id,
        verified=False,
    )
    return _to(asked, event, State.BOOTING, Step.POWER)


def _powered(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state is State.BOOTING and record.step is Step.POWER:
        return _to(record, event, State.BOOTING, Step.DHCP)
    return record


def _reboot(record: DuckRecord, event: Event) -> DuckRecord:
    asked = replace(
        record,
        attempts=record.attempts + 1,
        old_boot_id=event.boot_id or record.boot_id,
        verified=False,
    )
    return _to(asked, event, State.REBOOTING, Step.POWER)


def _keep(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state not in WAITING:
        return record
    return _to(replace(record, old_boot_id=""), event, State.REGISTERED)


def _drain(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(record, event, State.DRAINING) if record.is_up else record


def _fail(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(record, event, State.FAILED, record.step or Step.POWER)


def _deadline(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state not in WAITING or record.step is None:
        return record
    reason = event.reason or WAITED_FOR[record.step]
    return _to(record, replace(event, reason=reason), State.FAILED, record.step)


def _maintenance_on(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(record, event, State.MAINTENANCE)


def _maintenance_off(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state is not State.MAINTENANCE:
        return record
    # What it did meanwhile nobody knows: the next look decides.
    return _to(replace(record, verified=False), event, State.REGISTERED)


# ---- what the network shows ----------------------------------------------------------------------


def _dhcp(record: DuckRecord, event: Event) -> DuckRecord:
    """DISCOVER comes from firmware and boot loaders only: whatever ran before has ended."""
    if record.state is State.DISCOVERED:
        return record
    if record.is_up and event.at_s <= record.since_s:
        return record  # of the boot that has just ended well; the log has whole seconds
    if record.state is State.BOOTING and _order(record.step) >= _order(Step.BOOT_FILE):
        # The second stage (iPXE) asks again; a box that starts over does too. The clock runs on.
        return record
    return _to(replace(record, verified=False), event, State.BOOTING, Step.BOOT_FILE)


def _boot_file(record: DuckRecord, event: Event) -> DuckRecord:
    target = Step.HELLO if event.is_image else Step.IMAGE
    return _forward(record, event, target)


def _image(record: DuckRecord, event: Event) -> DuckRecord:
    return _forward(record, event, Step.HELLO)


def _forward(record: DuckRecord, event: Event, step: Step) -> DuckRecord:
    """A booting duck only moves on: a file that is fetched twice is no step back."""
    if record.is_up or record.state is State.DISCOVERED:
        return record
    if record.state is State.BOOTING and _order(record.step) >= _order(step):
        return record
    return _to(replace(record, verified=False), event, State.BOOTING, step)


def _hello(record: DuckRecord, event: Event) -> DuckRecord:
    """An answer. A duck that was asked to restart has done so only when its boot id is another."""
    if record.old_boot_id and event.boot_id == record.old_boot_id and record.state in WAITING:
        return record
    is_new = event.boot_id != record.boot_id
    known = replace(
        record,
        boot_id=event.boot_id,
        build=event.build,
        old_boot_id="",
        boots=record.boots + is_new,
        verified=record.verified and not is_new,
    )
    if known.verified:  # the same boot as before: it was only silent for a while
        return known if known.is_up else _to(known, event, State.READY)
    return _to(known, event, State.BOOTING, Step.VERIFY)


def _verified(record: DuckRecord, event: Event) -> DuckRecord:
    if record.is_up:
        return replace(record, verified=True) if not record.verified else record
    if not _has_answered(record):
        return record
    return _to(replace(record, attempts=0, verified=True), event, State.READY)


def _misfit(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(replace(record, verified=False), event, State.FAILED, Step.VERIFY)


def _has_answered(record: DuckRecord) -> bool:
    return record.step is Step.VERIFY and record.state in (State.BOOTING, State.FAILED)


def _silent(record: DuckRecord, event: Event) -> DuckRecord:
    return _to(record, event, State.LOST) if record.is_up else record


def _idle(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state in (State.LOADING, State.SERVING):
        return _to(record, event, State.READY)
    return record


def _load(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state in (State.READY, State.SERVING):
        return _to(record, event, State.LOADING)
    return record


def _serve(record: DuckRecord, event: Event) -> DuckRecord:
    if record.state in (State.READY, State.LOADING):
        return _to(record, event, State.SERVING)
    return record


def _note(record: DuckRecord, event: Event) -> DuckRecord:
    return record


def _order(step: Step | None) -> int:
    return -1 if step is None else STEPS.index(step)


_RULES: Mapping[Kind, Callable[[DuckRecord, Event], DuckRecord]] = {
    Kind.DISCOVER: _discover,
    Kind.REGISTER: _register,
    Kind.BOOT: _boot,
    Kind.POWERED: _powered,
    Kind.REBOOT: _reboot,
    Kind.KEEP: _keep,
    Kind.DHCP: _dhcp,
    Kind.BOOT_FILE: _boot_file,
    Kind.IMAGE: _image,
    Kind.HELLO: _hello,
    Kind.VERIFIED: _verified,
    Kind.MISFIT: _misfit,
    Kind.SILENT: _silent,
    Kind.IDLE: _idle,
    Kind.LOAD: _load,
    Kind.SERVE: _serve,
    Kind.DRAIN: _drain,
    Kind.FAIL: _fail,
    Kind.DEADLINE: _deadline,
    Kind.MAINTENANCE_ON: _maintenance_on,
    Kind.MAINTENANCE_OFF: _maintenance_off,
    Kind.NOTE: _note,
}
