"""Starts host_runtime's one-shot run as a process and reads its verdict."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError, UsageError
from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import Duck, Fleet
from duckctl.keys import check_key
from duckctl.native import native_path

SCHEMA_VERSION = 1
MARGIN_S = 120.0  # start of the interpreter, transfer of kernel and weights, the way back


class RunError(DuckError):
    """The run did not come about, so there is no verdict."""


@dataclass(frozen=True)
class RunRequest:
    """What to run and in which limits; sizes in bytes, 0 = none or the duck's default."""

    kernel: Path
    input: Path | None
    output: Path | None
    weights: Path | None
    drop_weights: bool
    cores: int
    time_limit_ms: int
    memory_limit: int
    output_limit: int


def find_duck(fleet: Fleet, name: str) -> Duck:
    """One duck by its exact name. Raises UsageError."""
    for duck in fleet.ducks:
        if duck.name == name:
            return duck
    known = ", ".join(duck.name for duck in fleet.ducks)
    raise UsageError(f"the fleet has no duck '{name}'", f"its ducks: {known}")


def check_files(request: RunRequest) -> None:
    """Names a missing file before anything is started."""
    for path in (request.kernel, request.input, request.weights):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: no such file")
    if request.output is not None and not request.output.parent.is_dir():
        raise UsageError(f"{request.output}: its folder does not exist")


def arguments_of(request: RunRequest) -> list[str]:
    """The part of the command line that says what to run."""
    words = ["--kernel", str(request.kernel)]
    files = {"--input": request.input, "--output": request.output, "--weights": request.weights}
    for option, path in files.items():
        words += [option, str(path)] if path is not None else []
    words += ["--no-weights"] if request.drop_weights else []
    numbers = {
        "--cores": request.cores,
        "--time-limit-ms": request.time_limit_ms,
        "--memory-limit": request.memory_limit,
        "--output-limit": request.output_limit,
    }
    return words + [word for name, value in numbers.items() for word in (name, str(value))]


def run_once(fleet: Fleet, duck: Duck, request: RunRequest) -> Mapping[str, Any]:
    """The verdict's document (docs/reference/duckos-sessions.md). Raises RunError."""
    check_files(request)
    check_key(fleet.key_file)
    with tempfile.TemporaryDirectory(prefix="duckctl-") as folder:
        fleet_file = Path(folder) / "fleet.json"
        write_json(fleet_file, fleet_document(fleet, [duck]))
        command = [
            *(sys.executable, "-P", "-m", "host_runtime.fleet.run_once"),
            *("--fleet", str(fleet_file), "--library", str(native_path("libduckhost.so"))),
            *arguments_of(request),
        ]
        return _document(command, request.time_limit_ms / 1000 + MARGIN_S)


def _document(command: Sequence[str], limit_s: float) -> Mapping[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"the run did not end within {limit_s:.0f} s") from None
    if done.returncode != 0:
        raise _told(done.stderr, done.returncode)
    document: dict[str, Any] = json.loads(done.stdout)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"host_runtime speaks schema version {document.get('schema_version')}, expected "
            f"{SCHEMA_VERSION}",
            "use duckctl and host_runtime of the same installation",
        )
    return document


def _told(stderr: str, code: int) -> RunError:
    """The error and hint that the process printed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("error:")), None)
    hint = next((line for line in lines if line.startswith("hint:")), "")
    if error is None:
        return RunError(lines[-1] if lines else f"the run ended with exit code {code}")
    return RunError(error.removeprefix("error:").strip(), hint.removeprefix("hint:").strip())
