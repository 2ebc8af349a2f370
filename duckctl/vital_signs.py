"""What an answer of a duck tells about its box: link, memory, card, heat, loss, slowing down.

Pure: the answer (docs/reference/fleet.md), what the inventory promises, and the calibration go
in, concerns come out. What a duck does not tell is no concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from duckctl.calibration import DuckCalibration
from duckctl.inventory import Duck

GIB = 1 << 30
# Firmware and graphics keep a part of a box's memory for themselves.
MEMORY_SHARE_MIN = 0.9
DRIFT_MAX = 0.1  # of the read rate of the first calibration
# Below so many packets a share says nothing.
LOSS_PACKETS_MIN = 1000
LOSS_KEYS = ("nacks_sent", "nacks_received", "results_resent")


class Gravity(IntEnum):
    """Orders concerns: of a duck the gravest is told, of a fleet the gravest duck."""

    SLOW = 1
    HOT = 2
    WRONG = 3
    STALE = 4
    SILENT = 5


@dataclass(frozen=True)
class Concern:
    """Something that is not as it should be, in words that follow the duck's name."""

    gravity: Gravity
    text: str


def loss_share(stats: Mapping[str, Any] | None) -> float | None:
    """Packets that had to be asked for again, as a share of all; None when there are too few."""
    if not stats:
        return None
    packets = int(stats["packets_received"]) + int(stats["packets_sent"])
    if packets < LOSS_PACKETS_MIN:
        return None
    return sum(int(stats[key]) for key in LOSS_KEYS) / packets


def concerns(
    facts: Mapping[str, Any], duck: Duck | None, calibration: DuckCalibration | None
) -> list[Concern]:
    """All concerns about a duck that answered."""
    found = [*_about_heat(facts, duck)]
    if duck is not None:
        found += [*_about_box(facts, duck), *_about_loss(facts, duck)]
    if calibration is not None and calibration.drift > DRIFT_MAX:
        now, then = calibration.latest, calibration.baseline
        found.append(
            Concern(
                Gravity.SLOW,
                f"reads memory at {now.best_bytes_per_s / 1e9:.1f} GB/s, "
                f"{then.best_bytes_per_s / 1e9:.1f} when it was new to the fleet",
            )
        )
    return found


TEMPERATURE_C_MAX = 95  # an N100 throttles at 105


def _about_heat(facts: Mapping[str, Any], duck: Duck | None) -> Iterable[Concern]:
    limit = TEMPERATURE_C_MAX if duck is None else duck.temperature_c_max
    temperature = facts.get("temperature_c")
    if temperature is not None and temperature > limit:
        yield Concern(Gravity.HOT, f"is at {temperature:.0f} °C, above {limit}")


def _about_box(facts: Mapping[str, Any], duck: Duck) -> Iterable[Concern]:
    link = facts.get("link_mbps")
    if link and duck.link_mbps and link < duck.link_mbps:
        yield Concern(
            Gravity.SLOW, f"has a link of {link} Mbit/s, the inventory says {duck.link_mbps}"
        )
    memory = facts.get("memory_bytes")
    if memory and duck.memory_gib and memory < MEMORY_SHARE_MIN * duck.memory_gib * GIB:
        yield Concern(
            Gravity.WRONG,
            f"has {memory / GIB:.1f} GiB of memory, the inventory says {duck.memory_gib}",
        )
    mac = facts.get("mac_address")
    if mac and duck.mac and mac != duck.mac:
        yield Concern(Gravity.WRONG, f"answers from card {mac}, the inventory says {duck.mac}")
    cores = facts.get("core_count")
    if cores and duck.cores and cores < duck.cores:
        yield Concern(Gravity.WRONG, f"has {cores} cores, the inventory says {duck.cores}")
    mtu = facts.get("mtu_bytes")
    if mtu and mtu < duck.domain.mtu:
        yield Concern(Gravity.WRONG, f"has MTU {mtu}, the inventory says {duck.domain.mtu}")


def _about_loss(facts: Mapping[str, Any], duck: Duck) -> Iterable[Concern]:
    share = loss_share(facts.get("stats"))
    if share is not None and share * 1000 > duck.loss_permille_max:
        yield Concern(
            Gravity.SLOW,
            f"lost {share * 1000:.1f} of 1000 packets since its start, above "
            f"{duck.loss_permille_max}",
        )
