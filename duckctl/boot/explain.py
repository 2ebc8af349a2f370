"""What a duck would be answered in every way that it may ask, and what it asked last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckctl.boot.answers import BootAnswer, BootRequest, decide
from duckctl.boot.arch import ARCHS
from duckctl.boot.events import BootEvent
from duckctl.boot.plan import BootPlan
from duckctl.boot.watch import Finding
from duckctl.inventory import Duck

LAST_EVENTS = 12


@dataclass(frozen=True)
class Explained:
    """One way to ask, and its answer."""

    asker: str
    arch: int | None
    ipxe: bool
    answer: BootAnswer


def explain_duck(plan: BootPlan, duck: Duck) -> list[Explained]:
    """Answers to every firmware, to iPXE on either, and to a system that is up. Pure."""
    mac = duck.mac or ""
    ways: list[tuple[str, int | None, bool]] = [
        (arch.text, code, False) for code, arch in ARCHS.items()
    ]
    ways += [
        ("iPXE on BIOS", 0, True),
        ("iPXE on UEFI", 7, True),
        ("a system that is up", None, False),
    ]
    return [
        Explained(text, arch, ipxe, decide(plan, BootRequest(duck.domain, mac, arch, ipxe)))
        for text, arch, ipxe in ways
    ]


def last_asked(events: Sequence[BootEvent], duck: Duck) -> list[BootEvent]:
    """The duck's last events, oldest first."""
    return [event for event in events if event.duck == duck.name][-LAST_EVENTS:]


def last_found(findings: Sequence[Finding], duck: Duck) -> list[Finding]:
    """What the boot service found out about the duck, oldest first."""
    return [finding for finding in findings if finding.duck == duck.name][-LAST_EVENTS:]
