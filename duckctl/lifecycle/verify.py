"""Is the duck that answers the one that the inventory describes? A pure check of what it told.

``facts`` is one entry of the probe's document (docs/reference/fleet.md). Everything that is wrong
is said at once; each sentence names what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duckctl.inventory import Duck

# Firmware, graphics and the image itself take their part of what the label says.
MEMORY_SHARE_MIN = 0.85
# Single-channel DDR4-3200 gives 25.6 GB/s; a module in the wrong mode gives half of that.
PLATFORMS = {"linux": ("linux-image", "linux-process"), "duckos": ("duckos",)}


@dataclass(frozen=True)
class Expectation:
    """What every duck of this fleet must be. ``abi_version`` None: not known here."""

    build: str
    cpu_features: tuple[str, ...] = ("avx2", "fma", "f16c")


def problems_of(duck: Duck, facts: Mapping[str, Any], expected: Expectation) -> list[str]:
    """What is wrong with a duck that answers; empty when it is as it should be."""
    found: list[str] = []
    if facts["name_told"] and facts["name_told"] != duck.name:
        found.append(
            f"calls itself '{facts['name_told']}': two ducks are swapped, or the inventory has the "
            "wrong address"
        )
    if facts["build"] != expected.build:
        told = str(facts["build"] or "unknown")[:12]
        found.append(f"runs build {told}, this host has {expected.build[:12]}")
    found += _hardware(duck, facts, expected)
    return found


def _hardware(duck: Duck, facts: Mapping[str, Any], expected: Expectation) -> list[str]:
    found: list[str] = []
    platform = str(facts["platform"])
    if platform not in PLATFORMS[duck.image]:
        found.append(f"runs {platform}, its image should be {duck.image}")
    missing = [name for name in expected.cpu_features if name not in facts["cpu_features"]]
    if missing:
        found.append(f"its CPU ({facts['cpu_model']}) lacks {', '.join(missing)}")
    if duck.cores and facts["core_count"] < duck.cores:
        found.append(f"has {facts['core_count']} cores, the inventory says {duck.cores}")
    if duck.memory_gib:
        gib = facts["memory_bytes"] / (1 << 30)
        if gib < MEMORY_SHARE_MIN * duck.memory_gib:
            found.append(f"has {gib:.1f} GiB of memory, the inventory says {duck.memory_gib}")
    link = facts["link_mbps"]
    if duck.link_mbps and link and link < duck.link_mbps:
        found.append(f"its link runs at {link} Mbit/s, the inventory says {duck.link_mbps}")
    mac = str(facts["mac_address"] or "")
    if duck.mac and mac.strip("0:") and mac != duck.mac:
        found.append(f"its card is {mac}, the inventory says {duck.mac}")
    return found


def needs_new_image(duck: Duck, facts: Mapping[str, Any], expected: Expectation) -> bool:
    """True when booting the present image would cure what is wrong: another build or image."""
    return bool(
        facts["build"] != expected.build or str(facts["platform"]) not in PLATFORMS[duck.image]
    )
