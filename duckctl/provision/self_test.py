"""The last check of a run: do the ducks' memories give what they should? (duckctl.selftest)

A duck that was measured since it booted, with as large a region, keeps its figure; one that has
weights is left alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from duckctl.calibration import DuckCalibration, load
from duckctl.console import talk
from duckctl.errors import DuckError
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord

DUCKS_AT_ONCE = 64  # of one host transport
# Single-channel memory of one kind gives the same on every box: far below means a module in the
# wrong slot, a wrong memory clock, or a box that throttles.
SHARE_OF_MEDIAN_MIN = 0.75
LAB_REGION_MIB = 8
FEW = 3  # a median of fewer says nothing


def to_measure(
    ducks: Sequence[Duck],
    records: Mapping[str, DuckRecord],
    figures: Mapping[str, DuckCalibration],
) -> list[Duck]:
    """The ducks that have booted since they were measured with their region size, or never were."""

    def is_known(duck: Duck) -> bool:
        if duck.name not in figures:
            return False
        latest = figures[duck.name].latest
        wanted = (records[duck.name].boot_id, region_mib_of(duck))
        return (latest.boot_id, latest.region_mib) == wanted

    return [duck for duck in ducks if not is_known(duck)]


def slow_ducks(rates: Mapping[str, float]) -> dict[str, str]:
    """Ducks whose memory is far slower than the others', each with both figures."""
    if len(rates) < FEW:
        return {}
    usual = statistics.median(rates.values())
    return {
        name: f"reads {rate / 1e9:.1f} GB/s, the usual duck {usual / 1e9:.1f}"
        for name, rate in rates.items()
        if rate < SHARE_OF_MEDIAN_MIN * usual
    }


def self_test(
    fleet: Fleet, ducks: Sequence[Duck], records: Mapping[str, DuckRecord]
) -> dict[str, str]:
    """Measures and judges; gives a note per duck: its rate, or why there is none."""
    from duckctl.selftest import measure

    notes: dict[str, str] = {}
    wanted = to_measure(ducks, records, load(fleet))
    groups = [
        alike[first : first + DUCKS_AT_ONCE]
        for alike in ([d for d in wanted if is_lab(d)], [d for d in wanted if not is_lab(d)])
        for first in range(0, len(alike), DUCKS_AT_ONCE)
    ]
    for group in groups:
        talk(f"== memory bandwidth of {len(group)} ducks")
        try:
            figures = measure(fleet, group, region_mib=region_mib_of(group[0]))
        except DuckError as error:
            notes |= {duck.name: f"not measured: {error.message}" for duck in group}
            continue
        notes |= {f.name: f"not measured: {f.problem}" for f in figures if f.problem}
    known = load(fleet)
    measured = [duck for duck in ducks if duck.name in known and duck.name not in notes]
    rates = {duck.name: known[duck.name].latest.best_bytes_per_s for duck in measured}
    notes |= {name: f"{rate / 1e9:.1f} GB/s" for name, rate in rates.items()}
    real = {duck.name: rates[duck.name] for duck in measured if not is_lab(duck)}
    return notes | slow_ducks(real)


def region_mib_of(duck: Duck) -> int:
    """MiB of weights to load and read, for figures that can be compared."""
    from duckctl.selftest import REGION_MIB

    return LAB_REGION_MIB if is_lab(duck) else REGION_MIB


def is_lab(duck: Duck) -> bool:
    """Processes and virtual machines: they share this machine's memory, so they are not compared
    with each other, and emulated ones take long for each byte."""
    return duck.address.is_loopback or any(power.backend == "lab" for power in duck.power)
