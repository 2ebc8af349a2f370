"""How a fleet is: runs the probe of host_runtime as a process and judges what it found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.calibration import DuckCalibration
from duckctl.errors import DuckError, ExitCode
from duckctl.fleet_file import fleet_document, in_batches, write_json
from duckctl.inventory import Duck, Fleet
from duckctl.keys import check_key
from duckctl.native import native_path
from duckctl.vital_signs import Concern, Gravity, concerns

PROBE_SCHEMA_VERSION = 1
PROBE_MARGIN_S = 20.0  # start of the interpreter on a busy machine
PROBES_AT_ONCE = 2  # each is a process; more only wait for a CPU


class ProbeError(DuckError):
    """The probe itself failed."""


@dataclass(frozen=True)
class DuckHealth:
    """A duck's answer and what is wrong with it; ``problem`` is empty for a healthy duck.

    ``problem`` is the gravest of ``problems``.

    ``rank`` orders problems: the highest is the worst.
    """

    name: str
    facts: Mapping[str, Any]
    problem: str
    rank: int
    problems: tuple[str, ...] = ()

    @property
    def reachable(self) -> bool:
        return bool(self.facts["reachable"])


@dataclass(frozen=True)
class FleetHealth:
    """The host's build and all answers, in slot order."""

    build: str
    ducks: tuple[DuckHealth, ...]

    @property
    def worst(self) -> DuckHealth | None:
        """The duck with the worst problem, the first of equals; None when all are healthy."""
        ill = [duck for duck in self.ducks if duck.problem]
        return max(ill, key=lambda duck: duck.rank) if ill else None

    @property
    def exit_code(self) -> ExitCode:
        if not any(duck.reachable for duck in self.ducks):
            return ExitCode.UNREACHABLE
        return ExitCode.OK if self.worst is None else ExitCode.PARTIAL


def probe(
    fleet: Fleet,
    ducks: Sequence[Duck],
    timeout_s: float,
    extra: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> dict[str, Any]:
    """The probe's document (docs/reference/fleet.md) for at most 64 ducks of a fleet.

    ``prefix``: words in front of the command, that run it in another network namespace.
    """
    check_key(fleet.key_file)
    library = native_path("libduckhost.so")
    with tempfile.TemporaryDirectory(prefix="duckctl-") as folder:
        fleet_file = Path(folder) / "fleet.json"
        write_json(fleet_file, fleet_document(fleet, ducks))
        arguments = [
            *prefix,
            *(sys.executable, "-P", "-m", "host_runtime.fleet.probe"),
            *("--fleet", str(fleet_file), "--library", str(library)),
            *("--timeout", f"{timeout_s:g}"),
            *extra,
        ]
        limit_s = timeout_s * 2 + PROBE_MARGIN_S
        try:
            result = subprocess.run(
                arguments, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise ProbeError(f"the probe did not end within {limit_s:.0f} s") from None
    if result.returncode != 0:
        raise ProbeError(_own_words(result.stderr, result.returncode))
    try:
        document: dict[str, Any] = json.loads(result.stdout)
    except ValueError as error:
        raise ProbeError(f"the probe printed no JSON: {error}") from error
    if document.get("schema_version") != PROBE_SCHEMA_VERSION:
        raise ProbeError(
            f"the probe speaks schema version {document.get('schema_version')}, expected "
            f"{PROBE_SCHEMA_VERSION}",
            "use duckctl and host_runtime of the same installation",
        )
    return document


def probe_all(
    fleet: Fleet, ducks: Sequence[Duck], timeout_s: float, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """One document for any number of ducks, in their order: several probes, a few at a time."""
    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        documents = list(
            pool.map(lambda batch: probe(fleet, batch, timeout_s, extra), in_batches(ducks))
        )
    entries = [entry for document in documents for entry in document["ducks"]]
    first = documents[0] if documents else {"schema_version": PROBE_SCHEMA_VERSION, "build": ""}
    return {**first, "ducks": entries}


def _own_words(stderr: str, code: int) -> str:
    """What a failed process said last, without its 'error:'."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("error:"):
            return line.removeprefix("error:").strip()
    return lines[-1].strip() if lines else f"the probe ended with exit code {code}"


def judge(
    facts: Mapping[str, Any],
    host_build: str,
    duck: Duck | None = None,
    calibration: DuckCalibration | None = None,
) -> DuckHealth:
    """What is wrong with one duck, the gravest first; ``duck`` is what the inventory promises."""
    name = str(facts["name"])
    error = str(facts.get("error") or "").removeprefix(f"{name} ({facts.get('endpoint')}) ")
    found: list[Concern] = []
    if not facts["reachable"]:
        found.append(Concern(Gravity.SILENT, error or "does not answer"))
    elif facts.get("state") is None:  # another key, or another version: it was asked no more
        found.append(Concern(Gravity.STALE, error or "tells nothing of itself"))
    else:
        if not facts.get("build_ok", True):
            theirs = str(facts.get("build") or "unknown")[:12]
            text = f"runs build {theirs}, the host has {host_build[:12]}"
            found.append(Concern(Gravity.STALE, text))
        if error:
            found.append(Concern(Gravity.STALE, error))
        if facts.get("state") == "faulted":
            text = "its last compute session ended in a fault"
            found.append(Concern(Gravity.WRONG, text))
        told = facts.get("name_told")
        if told and told != name:
            found.append(Concern(Gravity.WRONG, f"calls itself {told}"))
        found += concerns(facts, duck, calibration)
    if not found:
        return DuckHealth(name, facts, "", 0)
    worst = max(found, key=lambda concern: concern.gravity)
    return DuckHealth(name, facts, worst.text, int(worst.gravity), tuple(c.text for c in found))


def fleet_health(
    document: Mapping[str, Any],
    fleet: Fleet | None = None,
    calibrations: Mapping[str, DuckCalibration] | None = None,
) -> FleetHealth:
    """Judges a probe document; with a fleet, also against what its inventory promises."""
    build = str(document.get("build") or "")
    promised = {duck.name: duck for duck in fleet.ducks} if fleet else {}
    measured = calibrations or {}
    return FleetHealth(
        build,
        tuple(
            judge(facts, build, promised.get(facts["name"]), measured.get(facts["name"]))
            for facts in document["ducks"]
        ),
    )
