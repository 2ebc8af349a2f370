"""What real ducks told: the document of ``duckctl health --json`` instead of data sheets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.errors import UsageError
from duckctl.plan.catalogue import DuckType
from duckctl.plan.setup import GIB

RATE_KEY = "read_bytes_per_s"


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
    memory = min(float(duck["memory_bytes"]) for duck in ducks) / GIB
    cores = min(int(duck["core_count"]) for duck in ducks)
    links = [float(duck["link_mbps"]) for duck in ducks if duck.get("link_mbps")]
    rates = [float((duck.get("calibration") or {}).get(RATE_KEY) or 0) for duck in ducks]
    notes = []
    if not all(rates):
        notes.append(
            f"no calibration figures in {path.name}: read bandwidth is taken from '{base.name}'"
        )
    if not links:
        notes.append("the ducks did not tell their link speed: --nic counts")
    return FleetFacts(
        duck=replace(base, memory_gib=memory, cores=cores),
        count=len(ducks),
        nic_mbps=min(links) if links else None,
        rates=tuple(rates) if all(rates) else (),
        notes=tuple(notes),
    )


def _ducks(path: Path) -> list[Mapping[str, Any]]:
    hint = "write one with: duckctl health --json > FILE"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", hint) from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint) from None
    ducks = document.get("ducks") if isinstance(document, dict) else None
    if not isinstance(ducks, list) or not ducks or not all(isinstance(d, dict) for d in ducks):
        raise UsageError(f"{path} has no list of ducks", hint)
    for duck in ducks:
        for key in ("memory_bytes", "core_count"):
            if duck.get("reachable") and not isinstance(duck.get(key), int | float):
                raise UsageError(f"{path}: duck {duck.get('name')} lacks '{key}'", hint)
    return ducks
