"""A fleet's health in Prometheus' text format (exposition format 0.0.4).

For node_exporter's textfile collector: the file is replaced whole, so a reader never sees half.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from duckctl.calibration import DuckCalibration
from duckctl.errors import DuckError
from duckctl.health import DuckHealth, FleetHealth
from duckctl.vital_signs import loss_share

Value = float | int | None


def _fact(key: str, scale: float = 1.0) -> Callable[[DuckHealth], Value]:
    def read(duck: DuckHealth) -> Value:
        value: Any = duck.facts.get(key)
        return None if value is None else float(value) * scale

    return read


def _reachable(duck: DuckHealth) -> Value:
    return int(duck.reachable)


def _healthy(duck: DuckHealth) -> Value:
    return int(not duck.problem)


def _loss(duck: DuckHealth) -> Value:
    return loss_share(duck.facts.get("stats"))


# Name, type, help, value; a duck that does not tell a value has no sample of it.
GAUGES: tuple[tuple[str, str, Callable[[DuckHealth], Value]], ...] = (
    ("duck_reachable", "1 when the duck answered", _reachable),
    ("duck_healthy", "1 when nothing is wrong with it", _healthy),
    ("duck_temperature_celsius", "Temperature of the CPU", _fact("temperature_c")),
    ("duck_memory_bytes", "Memory of the duck", _fact("memory_bytes")),
    ("duck_link_bits_per_second", "Speed of its link", _fact("link_mbps", 1e6)),
    ("duck_round_trip_seconds", "HELLO until INFO", _fact("round_trip_us", 1e-6)),
    ("duck_uptime_seconds", "Since its start", _fact("uptime_s")),
    ("duck_loss_ratio", "Packets that were asked for again", _loss),
)
COUNTER_KEYS_LEFT_OUT = frozenset({"uptime_ns", "kernel_ns_max"})  # these are no counters


def render(report: FleetHealth, calibrations: Mapping[str, DuckCalibration]) -> str:
    """The page for one round of answers."""
    out: list[str] = []
    for name, text, read in GAUGES:
        _family(out, name, "gauge", text, {duck.name: read(duck) for duck in report.ducks})
    info = [
        f'duckctl_duck_info{{duck="{_escape(duck.name)}",state="{_escape(duck.facts["state"])}",'
        f'build="{_escape(duck.facts["build"])}",platform="{_escape(duck.facts["platform"])}"}} 1'
        for duck in report.ducks
        if duck.reachable and duck.facts.get("state") is not None
    ]
    out += ["# HELP duckctl_duck_info What runs on the duck", "# TYPE duckctl_duck_info gauge"]
    out += info
    rates = {name: figures.latest.best_bytes_per_s for name, figures in calibrations.items()}
    known = {duck.name: rates.get(duck.name) for duck in report.ducks}
    _family(out, "duck_read_bytes_per_second", "gauge", "Memory read rate, calibrated", known)
    stats = {duck.name: duck.facts.get("stats") or {} for duck in report.ducks}
    keys = {key for counters in stats.values() for key in counters} - COUNTER_KEYS_LEFT_OUT
    for key in sorted(keys):
        samples = {name: counters.get(key) for name, counters in stats.items()}
        # duck_stats_: the serving host's page counts packets of the same names on its own side.
        name = f"duck_stats_{key.removesuffix('_total')}_total"
        _family(out, name, "counter", f"Counter '{key}' of the duck", samples)
    return "\n".join(out) + "\n"


def _family(out: list[str], name: str, kind: str, text: str, samples: Mapping[str, Value]) -> None:
    told = {duck: value for duck, value in samples.items() if value is not None}
    if not told:
        return
    out += [f"# HELP duckctl_{name} {text}", f"# TYPE duckctl_{name} {kind}"]
    for duck, value in told.items():
        out.append(f'duckctl_{name}{{duck="{_escape(duck)}"}} {value:.12g}')


def _escape(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_page(path: Path, page: str) -> None:
    """Replaces the file at once. Raises DuckError when that is not possible."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(page, encoding="utf-8")
        part.chmod(0o644)  # another user's collector reads it
        part.replace(path)
    except OSError as error:
        raise DuckError(f"cannot write {path}: {error.strerror}") from error
