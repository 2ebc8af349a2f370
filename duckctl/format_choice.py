"""``--format auto``: the fastest format that keeps the checkpoint's weights exact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from duckctl.inventory import Fleet
from duckctl.selftest import FORMATS, SelfTestError, fastest_format, measure, measured_ducks

# On this machine: small enough to take about a second, larger than its caches.
SAMPLE_GIGABYTES = 0.25
SAMPLE_SLICES = 12
SAMPLE_SHAPE = (7168, 64)


@dataclass(frozen=True)
class FormatChoice:
    """The format and why; ``params_per_s`` by candidate, of the slowest duck or of this machine."""

    fmt: str
    reason: str
    params_per_s: Mapping[str, float]


def choose_format(is_fp8: bool, fleet: Fleet | None) -> FormatChoice:
    """Decides by what the fleet's idle ducks measure, else by what this machine does.

    ``is_fp8``: the routed experts are stored as E4M3 codes, which fp8 and fp9 both keep exactly.
    BF16 weights are rounded by every format; fp9 has the wider exponent and so the smaller error.
    """
    if not is_fp8:
        return FormatChoice("fp9", "BF16 weights are rounded; fp9 rounds least", {})
    where = "this machine's cores (no fleet was named)"
    if fleet is not None:
        try:
            figures = measure(fleet, fleet.ducks)
            fmt = fastest_format(figures)
        except SelfTestError as error:
            where = f"this machine's cores ({error.message})"
        else:
            good = measured_ducks(figures)
            slowest = {f: min(duck.params_per_s[f] for duck in good) for f in FORMATS}
            return FormatChoice(
                fmt, f"fastest exact format on the slowest of {len(good)} ducks", slowest
            )
    rates = _measure_here()
    return FormatChoice(
        max(rates, key=lambda fmt: rates[fmt]), f"fastest exact format on {where}", rates
    )


def _measure_here() -> dict[str, float]:
    from duckctl.bench.kernels import Setup, measure_memory

    setup = Setup(SAMPLE_GIGABYTES, SAMPLE_SLICES, hot=False)
    cores = len(os.sched_getaffinity(0))
    rates: dict[str, float] = {}
    for fmt in FORMATS:
        for row in measure_memory(setup, fmt, SAMPLE_SHAPE, (1,), (cores,), {}):
            rates[fmt] = row.gparam_s * 1e9
    if len(rates) < len(FORMATS):
        # Too busy to measure: fewer bytes win, as on every machine measured so far.
        return {fmt: rates.get(fmt, 0.0) for fmt in FORMATS}
    return rates
