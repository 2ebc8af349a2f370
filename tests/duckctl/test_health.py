"""Health judges every duck, names the worst, and its exit code tells how well a fleet is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duckctl import cli
from duckctl.errors import ExitCode
from duckctl.health import fleet_health, judge
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape

BUILD = "a" * 40


def facts(name: str = "d01", **changes: Any) -> dict[str, Any]:
    """A healthy duck's answer, with changes."""
    well = {
        "name": name,
        "endpoint": "127.21.1.11:7211",
        "reachable": True,
        "error": None,
        "state": "serving",
        "build": BUILD,
        "build_ok": True,
        "temperature_c": 61.0,
        "name_told": name,
    }
    return {**well, **changes}


SILENT: dict[str, Any] = {
    "reachable": False,
    "error": "d01 (127.21.1.11:7211) does not answer: no INFO after HELLO within 2.0 s",
    "build_ok": None,
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"state": "idle", "temperature_c": None, "name_told": None}, ""),
        (SILENT, "does not answer: no INFO after HELLO within 2.0 s"),
        ({"build_ok": False, "build": "b" * 40}, f"runs build {'b' * 12}, the host has {'a' * 12}"),
        ({"state": "faulted"}, "its last compute session ended in a fault"),
        ({"temperature_c": 99.6}, "is at 100 °C, above 95"),
        ({"name_told": "d07"}, "calls itself d07"),
        ({"error": "speaks protocol version 9"}, "speaks protocol version 9"),
    ],
)
def test_each_problem_is_named(changes: dict[str, Any], problem: str) -> None:
    assert judge(facts(**changes), BUILD).problem == problem


def test_the_gravest_problem_of_a_duck_counts() -> None:
    sick = facts(build_ok=False, build="b" * 40, temperature_c=120.0, state="faulted")
    assert judge(sick, BUILD).problem.startswith("runs build")


@pytest.mark.parametrize(
    ("answers", "code", "worst"),
    [
        ([{}, {}], ExitCode.OK, None),
        ([{}, SILENT], ExitCode.PARTIAL, "d02"),
        ([{"temperature_c": 99.0}, {}], ExitCode.PARTIAL, "d01"),
        ([{"temperature_c": 99.0}, {"state": "faulted"}], ExitCode.PARTIAL, "d02"),
        ([SILENT, SILENT], ExitCode.UNREACHABLE, "d01"),
    ],
)
def test_exit_code_and_worst_duck(
    answers: list[dict[str, Any]], code: ExitCode, worst: str | None
) -> None:
    ducks = [facts(f"d{n + 1:02}", **changes) for n, changes in enumerate(answers)]
    for duck in ducks:
        duck["name_told"] = duck["name"]
    report = fleet_health({"build": BUILD, "ducks": ducks})
    assert report.exit_code == code
    assert (report.worst.name if report.worst else None) == worst


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    lab.up(folder, LabShape(3, 1, 1, 1500, "block"))
    yield folder
    lab.down(folder)


@pytest.mark.slow
def test_a_real_fleet_before_and_after_a_duck_dies(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["health", "--inventory", str(folder.inventory), "--timeout", "1"]
    assert cli.run([*arguments, "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["healthy"] is True
    assert [duck["name"] for duck in document["ducks"]] == ["d01", "d02", "d03"]
    for duck in document["ducks"]:
        assert duck["state"] == "idle"
        assert duck["build"] == document["build"]
        assert duck["round_trip_us"] > 0
        assert duck["memory_bytes"] > 0
        assert duck["stats"]["packets_received"] > 0
    lab.kill(folder, ["d02"])
    assert cli.run(arguments) == ExitCode.PARTIAL
    captured = capsys.readouterr()
    assert "1 of 3 ducks are not well; the worst: d02 does not answer" in captured.err
    assert captured.out.count("idle") == 2
    assert cli.run([*arguments, "--limit", "d01,d03"]) == ExitCode.OK
    assert cli.run([*arguments, "--limit", "d02"]) == ExitCode.UNREACHABLE
    lab.restart(folder, ["d02"])
    assert cli.run(arguments) == ExitCode.OK


def test_a_fleet_with_another_key_answers_nothing(
    folder: LabFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert cli.run(["init", "--fleet-dir", str(other)]) == ExitCode.OK
    (other / "inventory.yml").write_bytes(folder.inventory.read_bytes())
    code = cli.run(["health", "--inventory", str(other / "inventory.yml"), "--timeout", "0.5"])
    assert code == ExitCode.UNREACHABLE
    assert "does not answer" in capsys.readouterr().err


def test_without_inventory_and_lab_both_ways_out_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.run(["health"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "--inventory FILE" in said
    assert "duckctl lab up" in said


def test_the_default_lab_needs_no_inventory_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    try:
        assert cli.run(["lab", "up", "--ducks", "1"]) == ExitCode.OK
        assert cli.run(["health"]) == ExitCode.OK
        assert "all 1 ducks are well" in capsys.readouterr().err
    finally:
        assert cli.run(["lab", "down"]) == ExitCode.OK
