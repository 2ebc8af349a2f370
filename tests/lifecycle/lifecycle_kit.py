"""Fleets, probe answers and a simulated world for the tests of lifecycle and provisioning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duckctl.inventory import Duck, Fleet, load_inventory
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import Store
from duckctl.lifecycle.verify import Expectation
from duckctl.provision.engine import Engine, Means, Senses

BUILD = "ab" * 20
OTHER_BUILD = "cd" * 20
EXPECTED = Expectation(BUILD)

INVENTORY = """\
# the shelf in the cellar
all:
  vars: {fleet_name: shelf, fleet_key_file: fleet.key}
  children:
    ducks:
      vars: {duck_cores: 4, duck_memory_gib: 32, duck_power: POWER}
      children:
        domain1:  # the left half
          vars: {domain_subnet: 10.21.1.0/24, domain_host_address: 10.21.1.1}
          hosts:
            duck01: {duck_mac: "a8:b8:e0:21:01:0b", duck_address: 10.21.1.11}  # loud fan
            duck02: {duck_mac: "a8:b8:e0:21:01:0c", duck_address: 10.21.1.12}
            # duck03 is at the repair shop
        domain2:
          vars: {domain_subnet: 10.21.2.0/24, domain_host_address: 10.21.2.1}
          hosts:
            duck04:
              duck_mac: "a8:b8:e0:21:02:0b"
              duck_address: 10.21.2.11
            duck05: {duck_mac: "a8:b8:e0:21:02:0c", duck_address: 10.21.2.12}
"""
SWITCHED = "{backend: command, on: switch on, off: switch off}"


def write_inventory(folder: Path, power: str = SWITCHED) -> Path:
    path = folder / "shelf.yml"
    path.write_text(INVENTORY.replace("POWER", power))
    return path


def shelf(folder: Path, power: str = SWITCHED) -> Fleet:
    """Four ducks in two domains."""
    return load_inventory(write_inventory(folder, power))


def answer(duck: Duck, boot_id: str = "01", **changes: Any) -> dict[str, Any]:
    """What a healthy duck of the inventory tells (docs/reference/fleet.md)."""
    return {
        "name": duck.name,
        "endpoint": f"{duck.address}:{duck.port}",
        "reachable": True,
        "error": None,
        "name_told": duck.name,
        "state": "idle",
        "build": BUILD,
        "platform": "linux-image" if duck.image == "linux" else "duckos",
        "boot_id": boot_id,
        "cpu_model": "N100",
        "cpu_features": ["avx2", "fma", "f16c"],
        "core_count": 4,
        "memory_bytes": 31 << 30,
        "link_mbps": 2500,
        "mac_address": duck.mac or "00:00:00:00:00:00",
        "weights_id": None,
    } | changes


def silence(duck: Duck) -> dict[str, Any]:
    """No answer."""
    return {
        "name": duck.name,
        "endpoint": f"{duck.address}:{duck.port}",
        "reachable": False,
        "error": f"{duck.name} ({duck.address}:{duck.port}) does not answer",
    }


@dataclass
class Box:
    """One simulated duck. ``script``: what happens how many seconds after it is switched on."""

    duck: Duck
    script: Sequence[tuple[float, Kind]] = ()
    boot: int = 0  # boots so far; 0: off
    up_after_s: float | None = None  # when it answers after being switched on; None: never
    obeys: bool = True  # the protocol's REBOOT
    changes: Mapping[str, Any] = field(default_factory=dict)  # of its answers
    started_s: float | None = None
    answers: bool = False
    told: int = 0
    switched: list[str] = field(default_factory=list)
    rungs: list[int] = field(default_factory=list)  # of the ladder, for each switch


class World:
    """Clock, eyes, hands and ears of an engine, all simulated: time moves when it is slept."""

    def __init__(self, boxes: Sequence[Box], start_s: float = 1_000_000.0) -> None:
        self.boxes = {box.duck.name: box for box in boxes}
        self.time_s = start_s
        self._looks: list[list[str]] = []
        self._done: list[tuple[str, str]] = []
        self.refuses: set[str] = set()  # power backends that fail

    # ---- clock ----
    def wall_s(self) -> float:
        return self.time_s

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += max(seconds, 0.05)

    # ---- hands ----
    def restart(self, ducks: Sequence[Duck]) -> None:
        for duck in ducks:
            box = self.boxes[duck.name]
            box.switched.append("reboot")
            if box.answers and box.obeys:
                self._start(box)
            self._done.append((duck.name, ""))

    def switch(self, duck: Duck, means: Means) -> None:
        box = self.boxes[duck.name]
        box.switched.append(means.backend)
        box.rungs.append(means.rung)
        if means.backend in self.refuses:
            self._done.append((duck.name, f"{means.backend}: no answer"))
            return
        self._start(box)
        self._done.append((duck.name, ""))

    def _start(self, box: Box) -> None:
        box.boot += 1
        box.started_s, box.told, box.answers = self.time_s, 0, False

    def done(self) -> list[tuple[str, str]]:
        found, self._done = self._done, []
        return found

    # ---- eyes ----
    def look(self, ducks: Sequence[Duck]) -> None:
        self._looks.append([duck.name for duck in ducks])

    def seen(self) -> list[tuple[list[str], Mapping[str, Any] | None]]:
        found, self._looks = self._looks, []
        return [(names, {"build": BUILD, "ducks": self.answers(names)}) for names in found]

    def answers(self, names: Sequence[str]) -> list[dict[str, Any]]:
        result = []
        for name in names:
            box = self.boxes[name]
            self._age(box)
            if not box.answers:
                result.append(silence(box.duck))
                continue
            uptime_s = self.time_s - (box.started_s or 0.0)
            result.append(answer(box.duck, f"{box.boot:02}", uptime_s=uptime_s, **box.changes))
        return result

    def _age(self, box: Box) -> None:
        if box.started_s is None or box.up_after_s is None:
            return
        box.answers = self.time_s - box.started_s >= box.up_after_s

    # ---- ears ----
    def heard(self) -> list[tuple[str, Event]]:
        found = []
        for name, box in self.boxes.items():
            if box.started_s is None:
                continue
            for at_s, kind in box.script[box.told :]:
                if self.time_s - box.started_s < at_s:
                    break
                box.told += 1
                found.append((name, Event(kind, self.time_s, is_image=kind is Kind.BOOT_FILE)))
        return found


class StoredEars:
    """Ears of a world that write down what they hear, as the real ones do."""

    def __init__(self, world: World, store: Store) -> None:
        self._world, self._store = world, store

    def listen(self) -> None:
        self._store.record_all(self._world.heard())


NETWORK_BOOT = ((10.0, Kind.DHCP), (12.0, Kind.BOOT_FILE))


def engine_for(world: World, store: Store, limits: Any) -> Engine:
    senses = Senses(world, world, StoredEars(world, store), world)
    return Engine(store, senses, EXPECTED, limits)
