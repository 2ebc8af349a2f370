"""What a stream of BootEvents means: loops, exhausted pools, firmware that takes no offer.

Pure: fed with events, tells findings. The service acts on them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from duckctl.boot.events import BootEvent

FILES_MAX = 16  # first stages counted per box
BOXES_MAX = 8192  # boxes remembered; the one seen longest ago is forgotten first
POOL_WARN_SHARE = 0.8
SILENT_DISCOVERS = 4

# ``refused``: a change that cannot be read, served or written down; what was served goes on.
FindingKind = Literal["loop", "pool", "no_request", "missing_file", "refused"]


@dataclass(frozen=True)
class Finding:
    """Something that a person or the service should act on."""

    time: float
    kind: FindingKind
    mac: str | None
    duck: str | None
    domain: str | None
    text: str


@dataclass(frozen=True)
class WatchLimits:
    """A box loops when it fetches the same first stage more than ``loop_fetches`` times within
    ``loop_minutes`` and never says hello; a hello starts the count anew."""

    loop_fetches: int = 5
    loop_minutes: float = 10.0


@dataclass
class _Box:
    fetches: dict[str, deque[float]] = field(default_factory=dict)  # by file
    discovers: int = 0
    told: set[str] = field(default_factory=set)


class BootWatch:
    """Findings from events. ``pools``: addresses for unreserved boxes, by domain name."""

    def __init__(self, limits: WatchLimits, pools: Mapping[str, int] | None = None) -> None:
        self._limits = limits
        self._pools = dict(pools or {})
        self._boxes: dict[str, _Box] = {}
        self._leases: dict[str, dict[str, float]] = {}

    def event(self, event: BootEvent) -> list[Finding]:
        """What this event reveals."""
        if event.mac is None:
            return []
        box = self._boxes.pop(event.mac, None) or _Box()
        self._boxes[event.mac] = box
        if len(self._boxes) > BOXES_MAX:
            del self._boxes[next(iter(self._boxes))]
        found: list[Finding] = []
        if is_first_stage(event) and not event.is_claimed:
            found += self._fetched(box, event)
        if event.kind == "discover":
            found += self._discovered(box, event)
        elif event.kind in ("request", "tftp", "tftp_abort", "boot_server", "http", "http_head"):
            box.discovers = 0
            box.told.discard("no_request")
        elif event.kind in ("tftp_missing", "http_missing"):
            found.append(_finding(event, "missing_file", f"{event.file} does not exist here"))
        return found

    def set_pools(self, pools: Mapping[str, int]) -> None:
        """The inventory has changed."""
        self._pools = dict(pools)

    def hello(self, mac: str) -> None:
        """The box is up: its counts begin anew."""
        self._boxes.pop(mac, None)

    def leases(self, now: float, in_use: Mapping[str, int]) -> list[Finding]:
        """Warns when a pool is used to 80 % (once, until it is below again)."""
        found = []
        for domain, used in in_use.items():
            size = self._pools.get(domain, 0)
            full = size > 0 and used >= POOL_WARN_SHARE * size
            told = self._leases.setdefault(domain, {})
            if full and not told:
                told["pool"] = now
                text = f"{used} of {size} addresses for boxes without a reservation are in use"
                found.append(Finding(now, "pool", None, None, domain, text))
            elif not full:
                told.clear()
        return found

    def _fetched(self, box: _Box, event: BootEvent) -> list[Finding]:
        window_s = self._limits.loop_minutes * 60
        if event.file not in box.fetches and len(box.fetches) >= FILES_MAX:
            box.fetches.clear()
        times = box.fetches.setdefault(event.file or "", deque())
        times.append(event.time)
        while times and times[0] <= event.time - window_s:
            times.popleft()
        if len(times) <= self._limits.loop_fetches:
            return []
        count = len(times)
        box.fetches.clear()
        text = (
            f"fetched {event.file} {count} times in {self._limits.loop_minutes:g} minutes without "
            "coming up"
        )
        return [_finding(event, "loop", text)]

    def _discovered(self, box: _Box, event: BootEvent) -> list[Finding]:
        box.discovers += 1
        if box.discovers < SILENT_DISCOVERS or "no_request" in box.told:
            return []
        box.told.add("no_request")
        text = (
            f"{box.discovers} DISCOVERs and no REQUEST: the firmware takes no offer. Another DHCP "
            "server, a switch port that is slow to forward (portfast), or firmware that does not "
            "merge two offers (set domain_boot: dhcp)"
        )
        return [_finding(event, "no_request", text)]


def is_first_stage(event: BootEvent) -> bool:
    """A fetch that begins a boot: by firmware of an image or a boot loader, or by iPXE of its
    script. Kernel and initrd belong to the same boot and do not count."""
    file = event.file or ""
    if event.kind == "tftp":
        return True
    return event.kind == "http" and file.endswith((".efi", ".kpxe", "duckos.img", ".ipxe"))


def _finding(event: BootEvent, kind: FindingKind, text: str) -> Finding:
    return Finding(event.time, kind, event.mac, event.duck, event.domain, text)


def read_findings(path: Path) -> list[Finding]:
    """All findings of a log, oldest first; lines that are none are passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Finding(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found
