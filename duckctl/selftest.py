"""Measures idle ducks with the kernel that will serve on them, and keeps the figures.

Runs ``host_runtime.bench.ducks`` as a process on regions that are made here. A duck that has
weights is left alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl import calibration
from duckctl.calibration import Calibration
from duckctl.errors import DuckError
from duckctl.fleet_file import fleet_document, in_batches, write_json
from duckctl.inventory import Duck, Fleet
from duckctl.native import native_path

SCHEMA_VERSION = 1
HIDDEN, ROWS = 7168, 64  # a slice of DeepSeek-V3.2 on 32 ducks
FORMATS = ("fp8", "fp9")  # the lossless ones
REGION_MIB = 64  # beyond every cache of a small box; a quarter of a second at 2.5 Gbit/s
BASE_LIMIT_S = 60.0
MIB_PER_S_MIN = 10.0  # of one duck, loading


class SelfTestError(DuckError):
    """The self-test itself could not run."""


@dataclass(frozen=True)
class DuckFigures:
    """What was measured on one duck; ``problem`` says why nothing was.

    ``read_bytes_per_s[n-1]`` with n cores; ``params_per_s`` by weight format, one token, no
    expert in a cache.
    """

    name: str
    problem: str
    boot_id: str
    read_bytes_per_s: tuple[float, ...]
    params_per_s: Mapping[str, float]
    body: Mapping[str, str]


def measure(
    fleet: Fleet,
    ducks: Sequence[Duck],
    formats: Sequence[str] = FORMATS,
    region_mib: int = REGION_MIB,
    timeout_s: float = 2.0,
    prefix: Sequence[str] = (),
) -> list[DuckFigures]:
    """Figures of each duck, in slot order; those that succeeded are recorded.

    ``prefix``: words in front of the command, that run it in another network namespace.
    """
    figures: list[DuckFigures] = []
    with tempfile.TemporaryDirectory(prefix="duckctl-") as folder:
        fleet_file = Path(folder) / "fleet.json"
        regions = [_write_region(Path(folder), fmt, region_mib) for fmt in formats]
        arguments = [
            *prefix,
            *(sys.executable, "-P", "-m", "host_runtime.bench.ducks"),
            *("--fleet", str(fleet_file), "--library", str(native_path("libduckhost.so"))),
            *("--kernel", str(native_path("experts-avx2.elf")), "--timeout", f"{timeout_s:g}"),
            *(word for region in regions for word in ("--region", region)),
        ]
        limit_s = BASE_LIMIT_S + len(formats) * region_mib / MIB_PER_S_MIN
        for batch in in_batches(ducks):
            write_json(fleet_file, fleet_document(fleet, batch))
            measured = [_figures(entry) for entry in _run(arguments, limit_s)["ducks"]]
            _keep(fleet, measured, region_mib)
            figures += measured
    return figures


def _keep(fleet: Fleet, figures: Sequence[DuckFigures], region_mib: int) -> None:
    """Records the figures of the ducks that could be measured."""
    now = time.time()
    calibration.record(
        fleet,
        {
            duck.name: Calibration(
                read_bytes_per_s=duck.read_bytes_per_s,
                body=next(iter(duck.body.values()), ""),
                boot_id=duck.boot_id,
                at=now,
                region_mib=region_mib,
            )
            for duck in figures
            if not duck.problem
        },
    )


def fastest_format(figures: Sequence[DuckFigures], formats: Sequence[str] = FORMATS) -> str:
    """The format in which the slowest duck is fastest: every call waits for that one.

    Raises SelfTestError when no duck was measured.
    """
    measured = measured_ducks(figures, formats)
    if not measured:
        problems = "; ".join(f"{duck.name}: {duck.problem}" for duck in figures)
        raise SelfTestError(f"no duck could be measured: {problems}")
    return max(formats, key=lambda fmt: min(duck.params_per_s[fmt] for duck in measured))


def measured_ducks(
    figures: Sequence[DuckFigures], formats: Sequence[str] = FORMATS
) -> list[DuckFigures]:
    """Those that have figures in every format."""
    return [
        duck
        for duck in figures
        if not duck.problem and all(fmt in duck.params_per_s for fmt in formats)
    ]


def _write_region(folder: Path, fmt: str, region_mib: int) -> str:
    """A region of Gaussian experts as a file, and the argument that names it."""
    from duckctl.bench.weights import expert_region  # numpy and the packer take time to load

    memory, record = expert_region(fmt, HIDDEN, ROWS, region_mib << 20)
    try:
        path = folder / f"{fmt}.region"
        path.write_bytes(memory.bytes.tobytes())
        experts = (memory.size - 4096) // record
    finally:
        memory.close()
    return f"{fmt}={path}:{HIDDEN}x{ROWS}x{experts}"


def _run(arguments: Sequence[str], limit_s: float) -> dict[str, Any]:
    try:
        result = subprocess.run(
            list(arguments), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SelfTestError(f"the self-test did not end within {limit_s:.0f} s") from None
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        said = lines[-1].removeprefix("error: ") if lines else result.stderr.strip()[-300:]
        raise SelfTestError(said or f"the self-test ended with exit code {result.returncode}")
    document: dict[str, Any] = json.loads(result.stdout)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise SelfTestError("duckctl and host_runtime are of different installations")
    return document


def _figures(entry: Mapping[str, Any]) -> DuckFigures:
    formats: Mapping[str, Mapping[str, Any]] = entry["formats"]
    return DuckFigures(
        name=str(entry["name"]),
        problem=str(entry["problem"]),
        boot_id=str(entry["boot_id"]),
        read_bytes_per_s=tuple(float(rate) for rate in entry["read_bytes_per_s"]),
        params_per_s={fmt: float(of["params_per_s"]) for fmt, of in formats.items()},
        body={fmt: str(of["body"]) for fmt, of in formats.items()},
    )
