"""What ducks' kernels measured at calibration, kept beside the inventory.

``NAME.calibration.json`` has for each duck the first figures (its baseline) and the latest ones, so
that a duck which grows slow (heat, a failing memory module, a limit of the firmware) is seen. A
small region is read from caches: each region size has a baseline of its own.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError
from duckctl.fleet_file import write_json
from duckctl.inventory import Fleet

SCHEMA_VERSION = 1
FILE_BYTES_MAX = 8 << 20


class CalibrationError(DuckError):
    """The calibration file cannot be read."""


@dataclass(frozen=True)
class Calibration:
    """One measurement. ``read_bytes_per_s[n-1]`` is the memory's read rate with n cores.

    ``at`` is Unix time in seconds; ``boot_id`` tells which start of the duck it belongs to.
    ``region_mib`` is the size of the weights that were read; 0 = an earlier duckctl did not tell.
    """

    read_bytes_per_s: tuple[float, ...]
    body: str
    boot_id: str
    at: float
    region_mib: int = 0

    @property
    def best_bytes_per_s(self) -> float:
        """With as many cores as give the most."""
        return max(self.read_bytes_per_s, default=0.0)


@dataclass(frozen=True)
class DuckCalibration:
    """The latest measurement of a duck and the first one of the same region size.

    ``others`` are the first ones of other sizes.
    """

    baseline: Calibration
    latest: Calibration
    others: tuple[Calibration, ...] = ()

    @property
    def drift(self) -> float:
        """Share of the baseline's rate that was lost; negative when it grew."""
        before = self.baseline.best_bytes_per_s
        return 1 - self.latest.best_bytes_per_s / before if before else 0.0

    def followed_by(self, latest: Calibration) -> DuckCalibration:
        """With a new measurement; the first of its region size becomes a baseline."""
        firsts = {first.region_mib: first for first in (self.baseline, *self.others)}
        baseline = firsts.pop(latest.region_mib, latest)
        return DuckCalibration(baseline, latest, tuple(firsts.values()))


def calibration_file(fleet: Fleet) -> Path:
    """Where a fleet's figures are."""
    return fleet.path.with_name(f"{fleet.path.stem}.calibration.json")


def load(fleet: Fleet) -> dict[str, DuckCalibration]:
    """The figures of each duck that has any. Raises CalibrationError."""
    path = calibration_file(fleet)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {document['schema_version']}")
        return {
            name: DuckCalibration(
                _read(entry["baseline"]),
                _read(entry["latest"]),
                tuple(map(_read, entry.get("others", ()))),
            )
            for name, entry in document["ducks"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(
            f"{path} is damaged or of another version: {error}",
            "remove it; the next `duckctl provision` measures again",
        ) from error


def _read(entry: Mapping[str, Any]) -> Calibration:
    rates = tuple(float(rate) for rate in entry["read_bytes_per_s"])
    if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        raise ValueError(f"read_bytes_per_s {rates}")
    return Calibration(
        rates,
        str(entry["body"]),
        str(entry["boot_id"]),
        float(entry["at"]),
        int(entry.get("region_mib", 0)),
    )


def record(fleet: Fleet, measured: Mapping[str, Calibration], fresh: bool = False) -> None:
    """Adds measurements; with ``fresh`` they become the baseline too (another memory module)."""
    path = calibration_file(fleet)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = load(fleet)
        for name, latest in measured.items():
            first = fresh or name not in known
            known[name] = (
                DuckCalibration(latest, latest) if first else known[name].followed_by(latest)
            )
        write_json(
            path,
            {
                "schema_version": SCHEMA_VERSION,
                "ducks": {name: asdict(entry) for name, entry in sorted(known.items())},
            },
        )
