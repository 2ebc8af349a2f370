"""The ducks' own keys as the host has pinned them: runs host_runtime.fleet.trust as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError, ExitCode, UnreachableError, UsageError
from duckctl.fleet_file import fleet_document, in_batches, write_json
from duckctl.inventory import Duck, Fleet
from duckctl.keys import check_key
from duckctl.native import native_path

SCHEMA_VERSION = 1
MARGIN_S = 20.0  # start of the interpreter on a busy machine


class TrustError(DuckError):
    """The pins could not be read or changed."""


# What the process's exit codes mean.
ERRORS: Mapping[int, type[DuckError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.UNREACHABLE: UnreachableError,
}


def pins_of(fleet: Fleet) -> dict[str, Any]:
    """All pins; the document of docs/reference/trust.md."""
    return _run_trust(fleet, None, "ls", (), 1.0)


def forget(fleet: Fleet, names: Sequence[str]) -> dict[str, Any]:
    """Drops the pins of ducks, in the inventory or no more; all pins afterwards."""
    return _run_trust(fleet, None, "forget", names, 1.0)


def accept(fleet: Fleet, ducks: Sequence[Duck], timeout_s: float) -> dict[str, Any]:
    """Asks these ducks, and no other, for their keys and pins them; their pins afterwards."""
    document: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    for batch in in_batches(ducks):
        names = [duck.name for duck in batch]
        document = _run_trust(fleet, batch, "accept", names, timeout_s)
        entries += [entry for entry in document["ducks"] if entry["name"] in names]  # not all pins
    return {**document, "ducks": entries}


def _run_trust(
    fleet: Fleet, ducks: Sequence[Duck] | None, action: str, names: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    check_key(fleet.key_file)
    with tempfile.TemporaryDirectory(prefix="duckctl-") as folder:
        fleet_file = Path(folder) / "fleet.json"
        write_json(fleet_file, fleet_document(fleet, ducks))
        arguments = [
            *(sys.executable, "-P", "-m", "host_runtime.fleet.trust"),
            *("--fleet", str(fleet_file), "--library", str(native_path("libduckhost.so"))),
            *("--timeout", f"{timeout_s:g}", action, *names),
        ]
        limit_s = timeout_s * max(len(names), 1) + MARGIN_S
        try:
            result = subprocess.run(
                arguments, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise TrustError(f"the ducks' keys were not told within {limit_s:.0f} s") from None
    if result.returncode != 0:
        raise _own_error(result.stderr, result.returncode)
    document: dict[str, Any] = json.loads(result.stdout)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise TrustError(
            f"host_runtime speaks schema version {document.get('schema_version')}, expected "
            f"{SCHEMA_VERSION}",
            "use duckctl and host_runtime of the same installation",
        )
    return document


def _own_error(stderr: str, code: int) -> DuckError:
    """The process's own words, ``error: ...`` and ``hint: ...``, and its exit code."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("error:")), "")
    hint = next((line for line in lines if line.startswith("hint:")), "")
    fallback = lines[-1] if lines else f"it ended with exit code {code}"
    return ERRORS.get(code, TrustError)(
        message.removeprefix("error:").strip() or fallback, hint.removeprefix("hint:").strip()
    )
