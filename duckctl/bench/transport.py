"""Runs host_runtime's transport benchmarks as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from duckctl.errors import DuckError
from duckctl.native import native_path

SCHEMA_VERSION = 1


class BenchError(DuckError):
    """The measurement could not be made."""


def run_bench(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The document of ``host_runtime.bench.NAME`` (gap or link)."""
    natives = native_path("libduckhost.so").parent
    command = [sys.executable, "-P", "-m", f"host_runtime.bench.{name}"]
    command += ["--natives", str(natives), *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        said = lines[-1].removeprefix("error: ") if lines else f"exit code {result.returncode}"
        raise BenchError(f"the benchmark failed: {said}")
    document: dict[str, Any] = json.loads(result.stdout)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise BenchError(
            f"host_runtime speaks schema version {document.get('schema_version')}, expected "
            f"{SCHEMA_VERSION}",
            "use duckctl and host_runtime of the same installation",
        )
    return document
