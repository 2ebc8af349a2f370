"""What real ducks told: the document of ``duckctl health --json`` instead of data sheets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.errors import UsageError
from duckctl.plan.catalogue import DuckType, check_figure
from duckctl.plan.setup import GIB

RATE_KEY = "read_bytes_per_s"
HINT = "write one with: duckctl health --json > FILE"


@dataclass(frozen=True)
class FleetFacts:
    """Ducks of a fleet as they answered. ``rates`` is empty when no calibration was told."""

    duck: DuckType
    count: int
    nic_mbps: float | None
    rates: tuple[float, ...]
    notes: tuple[str, ...]


def read_fleet(path: Path, base: DuckType) -> FleetFacts:
    """Facts of a fleet on top of a duck type that fills what ducks did not tell."""
    ducks = _ducks(path)
    silent = [str(duck.get("name")) for duck in ducks if not duck.get("reachable")]
    if silent:
        raise UsageError(
            f"{path}: {', '.join(silent)} did not answer when this was written",
            "bring the ducks back, then: duckctl health --json > FILE",
        )
    figures = [_figures(duck, f"{path}: duck {duck.get('name')}") for duck in ducks]
    links = [duck.link_mbps for duck in figures if duck.link_mbps]
    rates = [duck.read_rate for duck in figures]
    notes = []
    if not all(rates):
        notes.append(
            f"no calibration figures in {path.name}: read bandwidth is taken from '{base.name}'"
        )
    if not links:
        notes.append("the ducks did not tell their link speed: --nic counts")
    return FleetFacts(
        duck=replace(
            base,
            memory_gib=min(duck.memory_gib for duck in figures),
            cores=min(duck.cores for duck in figures),
        ),
        count=len(ducks),
        nic_mbps=min(links) if links else None,
        rates=tuple(rates) if all(rates) else (),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Figures:
    """What one duck told; 0 = it did not tell this one."""

    memory_gib: float
    cores: int
    link_mbps: float
    read_rate: float


def _figures(duck: Mapping[str, Any], where: str) -> _Figures:
    calibration = duck.get("calibration") or {}
    if not isinstance(calibration, dict):
        raise UsageError(f"{where}: 'calibration' must be a mapping or null", HINT)
    memory_bytes = check_figure(duck.get("memory_bytes"), f"{where}: 'memory_bytes'")
    return _Figures(
        memory_gib=check_figure(memory_bytes / GIB, f"{where}: 'memory_bytes' in GiB"),
        cores=int(check_figure(duck.get("core_count"), f"{where}: 'core_count'", whole=True)),
        link_mbps=_told(duck.get("link_mbps"), f"{where}: 'link_mbps'"),
        read_rate=_told(calibration.get(RATE_KEY), f"{where}: '{RATE_KEY}'"),
    )


def _told(value: Any, where: str) -> float:
    """A figure that a duck may leave out, with null or with 0."""
    if value is None or (value == 0 and not isinstance(value, bool)):
        return 0.0
    return float(check_figure(value, where))


def _ducks(path: Path) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}", HINT) from None
    ducks = document.get("ducks") if isinstance(document, dict) else None
    if not isinstance(ducks, list) or not ducks or not all(isinstance(d, dict) for d in ducks):
        raise UsageError(f"{path} has no list of ducks", HINT)
    for duck in ducks:
        for key in ("memory_bytes", "core_count"):
            if duck.get("reachable") and duck.get(key) is None:
                raise UsageError(f"{path}: duck {duck.get('name')} lacks '{key}'", HINT)
    return ducks
