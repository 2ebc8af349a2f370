"""The ducks' own keys as the host has pinned them: runs host_runtime.fleet.trust as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError
from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import Fleet
from duckctl.keys import check_key
from duckctl.native import native_path

SCHEMA_VERSION = 1
MARGIN_S = 20.0  # start of the interpreter on a busy machine


class TrustError(DuckError):
    """The pins could not be read or changed."""


def run_trust(fleet: Fleet, action: str, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """``ls``, ``forget`` or ``accept``; the document of docs/reference/trust.md afterwards."""
    check_key(fleet.key_file)
    with tempfile.TemporaryDirectory(prefix="duckctl-") as folder:
        fleet_file = Path(folder) / "fleet.json"
        write_json(fleet_file, fleet_document(fleet))
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


def _own_error(stderr: str, code: int) -> TrustError:
    """The process's own words: ``error: ...`` and ``hint: ...``."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("error:")), "")
    hint = next((line for line in lines if line.startswith("hint:")), "")
    fallback = lines[-1] if lines else f"it ended with exit code {code}"
    return TrustError(
        message.removeprefix("error:").strip() or fallback, hint.removeprefix("hint:").strip()
    )
