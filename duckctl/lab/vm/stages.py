"""When each duck reached each stage of its boot: from power-on to the answer to HELLO.

Times are taken while `lab up` waits: log files are looked at every ``LOOK_S``, and the probe
notes when each answer came.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duckctl.boot.intents import Intents
from duckctl.boot.plan import BootPaths
from duckctl.console import talk
from duckctl.fleet_file import write_json
from duckctl.health import fleet_health, probe
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import lab, machine
from duckctl.lab.vm.shape import VmDuck
from duckctl.lab.vm.state import VmState

STAGES = ("dhcp", "boot_file", "image", "hello")
LOOK_S = 0.02
ALIVE_CHECK_S = 0.5
BOOT_TIMEOUT_S = 180.0
POWER_ON = re.compile(r"^---- power on at ([\d.]+) ----$", re.M)
IMAGE_LINE = re.compile(r"duckos \d+\.\d|duckd ready|\] Linux version", re.M)
ADDRESS_END = r"(?![\d.])"


@dataclass
class Timing:
    """One duck's boot. ``power_on`` and ``reached`` are seconds since 1970."""

    name: str
    power_on: float
    reached: dict[str, float] = field(default_factory=dict)

    def note(self, stage: str, now: float) -> None:
        """The first time counts: what came before power-on belongs to an earlier boot."""
        if now >= self.power_on:
            self.reached.setdefault(stage, now)

    def times(self) -> list[float | None]:
        """Seconds since power-on per stage; None for one that was not seen."""
        return [
            self.reached[stage] - self.power_on if stage in self.reached else None
            for stage in STAGES
        ]

    def last(self) -> str:
        """The last stage that it reached."""
        return max(self.reached, key=lambda stage: self.reached[stage], default="power-on")

    def document(self) -> dict[str, object]:
        """For --json: seconds since power-on."""
        return {"name": self.name, **dict(zip(STAGES, self.times(), strict=True))}


def shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


class _Growing:
    """The lines that a log gained since the last look; the log may not be there yet."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path = path
        self.offset = offset

    def look(self) -> str:
        if _size(self.path) <= self.offset:
            return ""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self.offset += whole
        return new[:whole].decode("utf-8", errors="replace")


@dataclass(frozen=True)
class LogMarks:
    """How long the boot service's logs were before the ducks got power."""

    dnsmasq: int
    http: int

    @classmethod
    def now(cls, folder: LabFolder) -> LogMarks:
        paths = BootPaths(folder.root / "boot")
        return cls(_size(paths.dnsmasq_log), _size(paths.http_log))


def await_ducks(
    folder: LabFolder,
    state: VmState,
    names: Sequence[str],
    marks: LogMarks | None = None,
    timeout_s: float = BOOT_TIMEOUT_S,
) -> list[Timing]:
    """Waits until the named ducks answer to the lab's key, and writes their timings down.

    Without ``marks`` (taken before power-on) what the logs say up to now is not looked at.

    Raises LabError that names the first duck that did not, with the stage that it reached.
    """
    ducks = [state.duck(name) for name in names]
    watch = _Watch(folder, state, ducks, marks or LogMarks.now(folder))
    fleet = load_inventory(folder.inventory)
    chosen = [duck for duck in fleet.ducks if duck.name in names]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(probe, fleet, chosen, timeout_s, (), lab.require_inside(state))
        while not asked.done():
            watch.look()
            time.sleep(LOOK_S)
        watch.look()
        document = asked.result()
    intents = Intents(BootPaths(folder.root / "boot").intents)
    for facts in document["ducks"]:
        if facts["reachable"]:
            watch.timings[facts["name"]].note("hello", facts["answered_at"])
            intents.hello(facts["name"])  # the boot service's loop detector begins anew
    timings = [watch.timings[duck.name] for duck in ducks]
    _save(folder, timings)
    for duck, health in zip(ducks, fleet_health(document).ducks, strict=True):
        if not health.reachable:
            raise LabError(
                f"{duck.name} {health.problem}; it got as far as: "
                f"{watch.timings[duck.name].last()}; {lab.last_words(folder, duck)}"
            )
        if health.problem:
            talk(f"{duck.name} {health.problem}")
    return timings


class _Watch:
    """All logs of a lab, and what they tell of the ducks that boot."""

    def __init__(
        self, folder: LabFolder, state: VmState, ducks: Sequence[VmDuck], marks: LogMarks
    ) -> None:
        self.folder = folder
        self.alive_checked = 0.0
        self.state = state
        self.ducks = ducks
        self.timings: dict[str, Timing] = {}
        self.serial: dict[str, _Growing] = {}
        for duck in ducks:
            text = folder.log(duck.name).read_text(encoding="utf-8", errors="replace")
            *_, last = POWER_ON.finditer(text)
            self.timings[duck.name] = Timing(duck.name, float(last[1]))
            start = len(text[: last.start()].encode("utf-8", errors="replace"))
            self.serial[duck.name] = _Growing(folder.log(duck.name), start)
        boot = BootPaths(folder.root / "boot")
        self.boot = _Growing(boot.dnsmasq_log, marks.dnsmasq)
        self.http = _Growing(boot.http_log, marks.http)

    def look(self) -> None:
        now = time.time()
        for name, log in self.serial.items():
            if IMAGE_LINE.search(log.look()):
                self.timings[name].note("image", now)
        for log in (self.boot, self.http):
            text = log.look()
            if text:
                self._read(text, now)
        if now < self.alive_checked + ALIVE_CHECK_S:
            return
        self.alive_checked = now
        for duck in self.ducks:
            if self.state.running(machine.role_of(duck)) is None:
                words = lab.last_words(self.folder, duck)
                raise LabError(f"{duck.name} ended while it booted; {words}")

    def _read(self, text: str, now: float) -> None:
        for duck in self.ducks:
            if duck.mac in text:
                self.timings[duck.name].note("dhcp", now)
            if re.search(rf"sent .* to {re.escape(duck.address)}{ADDRESS_END}", text) or re.search(
                rf'"{re.escape(duck.address)}"', text
            ):
                self.timings[duck.name].note("boot_file", now)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _save(folder: LabFolder, timings: Iterable[Timing]) -> None:
    """Puts these boots in the place of earlier ones of the same ducks."""
    known = {timing.name: timing for timing in load_timings(folder)}
    known |= {timing.name: timing for timing in timings}
    ducks: list[dict[str, Any]] = [
        {"name": t.name, "power_on": t.power_on, "reached": t.reached}
        for t in sorted(known.values(), key=lambda timing: timing.name)
    ]
    write_json(folder.root / "timings.json", {"ducks": ducks})


def load_timings(folder: LabFolder) -> list[Timing]:
    """The last boot of each duck that was waited for."""
    try:
        document = json.loads((folder.root / "timings.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [Timing(**duck) for duck in document["ducks"]]
