"""More ducks than one host transport takes (64): asked in batches, or refused in words of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from duckctl import cli, health, selftest, trust
from duckctl.errors import ExitCode, UsageError
from duckctl.fleet_file import DUCKS_MAX, in_batches
from duckctl.inventory import Fleet, load_inventory
from duckctl.serving import check_ducks

COUNT = 2 * DUCKS_MAX + 5
NAMES = [f"d{number:03}" for number in range(COUNT)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Loopback addresses on which nobody answers."""
    hosts = "".join(
        f"            {name}: {{duck_address: 127.77.1.{2 + number}}}\n"
        for number, name in enumerate(NAMES)
    )
    path = tmp_path / "shelf.yml"
    path.write_text(
        "all:\n  vars: {fleet_name: shelf, fleet_key_file: fleet.key}\n  children:\n    ducks:\n"
        "      children:\n        domain1:\n          vars: {domain_subnet: 127.77.1.0/24, "
        f"domain_host_address: 127.77.1.1}}\n          hosts:\n{hosts}"
    )
    assert cli.run(["init", "--fleet-dir", str(tmp_path)]) == ExitCode.OK
    return load_inventory(path)


def ducks_of(arguments: Sequence[str]) -> list[str]:
    """The ducks of the fleet file that a process was given."""
    path = Path(arguments[list(arguments).index("--fleet") + 1])
    return [duck["name"] for duck in json.loads(path.read_text())["ducks"]]


def test_batches_keep_the_order(fleet: Fleet) -> None:
    """64, 64 and the rest; none of nobody."""
    batches = in_batches(fleet.ducks)
    assert [len(batch) for batch in batches] == [64, 64, 5]
    assert [duck.name for batch in batches for duck in batch] == NAMES
    assert in_batches(()) == []


def test_health_asks_all(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Real probes of ducks that are silent: one answer for each, in order; the code for silence.
    The shortest time that the help allows works, too."""
    words = ["health", "--inventory", str(fleet.path), "--timeout", "0.1", "--json"]
    assert cli.run(words) == ExitCode.UNREACHABLE
    document = json.loads(capsys.readouterr().out)
    assert [duck["name"] for duck in document["ducks"]] == NAMES
    assert len(document["build"]) >= 12
    assert all("does not answer" in duck["problem"] for duck in document["ducks"])


def test_a_probe_that_fails_is_told(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several batches: no half a document."""

    def fail_late(
        _fleet: Fleet, ducks: Sequence[Any], _timeout: float, _extra: Sequence[str]
    ) -> Mapping[str, Any]:
        if len(ducks) < DUCKS_MAX:
            raise health.ProbeError("no transport")
        return {"ducks": []}

    monkeypatch.setattr(health, "probe", fail_late)
    with pytest.raises(health.ProbeError, match="no transport"):
        health.probe_all(fleet, fleet.ducks, 1.0)


def test_bench_ducks_measures_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process per batch; the regions are made once."""
    made, asked = [], []

    def region(_folder: Path, fmt: str, _mib: int) -> str:
        made.append(fmt)
        return fmt

    def run(arguments: Sequence[str], _limit_s: float) -> dict[str, Any]:
        names = ducks_of(arguments)
        asked.append(len(names))
        entry = {"problem": "silent", "boot_id": "", "read_bytes_per_s": [], "formats": {}}
        return {"ducks": [{"name": name, **entry} for name in names]}

    monkeypatch.setattr(selftest, "_write_region", region)
    monkeypatch.setattr(selftest, "_run", run)
    figures = selftest.measure(fleet, fleet.ducks, ("fp8",))
    assert [duck.name for duck in figures] == NAMES
    assert (made, asked) == (["fp8"], [64, 64, 5])


def test_trust_lists_and_forgets(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """They open no transport, so they take the fleet as it is; a wrong name is wrong usage."""
    where = ["--inventory", str(fleet.path)]
    assert cli.run(["trust", "ls", "--json", *where]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert [(duck["name"], duck["policy"]) for duck in document["ducks"]] == [
        (name, "pinned") for name in NAMES
    ]
    assert cli.run(["trust", "forget", NAMES[-1], *where]) == ExitCode.OK
    capsys.readouterr()
    assert cli.run(["trust", "forget", "nosuch", *where]) == ExitCode.USAGE
    assert "the fleet has no duck 'nosuch'" in capsys.readouterr().err


def test_trust_accept_names_only_those_that_are_meant(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet file of each process has the ducks of its batch and no other."""
    asked: list[tuple[list[str], list[str]]] = []

    def run(arguments: list[str], **_more: Any) -> subprocess.CompletedProcess[str]:
        names = ducks_of(arguments)
        pinned = [name for earlier, _ in asked for name in earlier]  # other pins of the fleet
        asked.append((names, arguments[arguments.index("accept") + 1 :]))
        entries = [{"name": name} for name in [*names, "gone", *pinned]]
        text = json.dumps({"schema_version": 1, "ducks": entries})
        return subprocess.CompletedProcess(arguments, 0, text, "")

    monkeypatch.setattr(subprocess, "run", run)
    document = trust.accept(fleet, fleet.ducks[1:70], 1.0)
    assert [duck["name"] for duck in document["ducks"]] == NAMES[1:70]
    assert asked == [(NAMES[1:65], NAMES[1:65]), (NAMES[65:70], NAMES[65:70])]


def test_trust_accept_of_a_silent_duck(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """The code of silence, in a fleet of any size."""
    words = ["trust", "accept", NAMES[-1], "--timeout", "0.1", "--inventory", str(fleet.path)]
    assert cli.run(words) == ExitCode.UNREACHABLE
    assert f"{NAMES[-1]} (127.77.1.{COUNT + 1}:7211) does not answer" in capsys.readouterr().err


def test_too_many_ducks_cannot_serve(fleet: Fleet) -> None:
    """Said before any duck is asked, with a way out."""
    with pytest.raises(UsageError, match="at most 64 ducks can serve one model") as caught:
        check_ducks(fleet)
    assert "--inventory" in caught.value.hint
