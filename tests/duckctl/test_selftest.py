"""Idle ducks are measured with the serving kernel; busy ones are left alone; figures are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duckctl import cli
from duckctl.calibration import load
from duckctl.errors import ExitCode
from duckctl.format_choice import choose_format
from duckctl.inventory import load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.process import wait_until
from duckctl.selftest import DuckFigures, SelfTestError, fastest_format

MIB = 8


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    folder.create()
    lab.up(folder, LabShape(ducks=2, domains=1, cores_per_duck=2, mtu=1500, poll="block"))
    yield folder
    lab.down(folder)


def bench(folder: LabFolder, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, Any]:
    capsys.readouterr()
    arguments = ["bench", "ducks", "--inventory", str(folder.inventory), "--mib", str(MIB)]
    code = cli.run([*arguments, "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def health(folder: LabFolder, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    cli.run(["health", "--inventory", str(folder.inventory), "--json"])
    ducks: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["ducks"]
    return ducks


@pytest.mark.slow
def test_idle_ducks_are_measured_and_idle_again(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates for one and two cores, both formats' speed, the chosen body; health shows them."""
    code, document = bench(folder, capsys)
    assert code == ExitCode.OK
    for duck in document["ducks"]:
        assert duck["problem"] == ""
        assert len(duck["read_bytes_per_s"]) == 2
        assert min(duck["read_bytes_per_s"]) > 1e7
        assert set(duck["params_per_s"]) == {"fp8", "fp9"}
        assert min(duck["params_per_s"].values()) > 1e6
        assert duck["body"]["fp8"] in ("int", "cvt")
        assert duck["body"]["fp9"] in ("wide", "narrow")
    for duck, seen in zip(document["ducks"], health(folder, capsys), strict=True):
        assert seen["state"] == "idle"
        assert seen["calibration"]["read_bytes_per_s"] == max(duck["read_bytes_per_s"])
        assert seen["calibration"]["drift"] == 0.0
    assert set(load(load_inventory(folder.inventory))) == {"d01", "d02"}


@pytest.mark.slow
def test_a_silent_duck_does_not_stop_the_others(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The living one is measured, the dead one named, and only the former is recorded."""
    lab.kill(folder, ["d02"])
    code, document = bench(folder, capsys, "--format", "q4")
    assert code == ExitCode.PARTIAL
    first, second = document["ducks"]
    assert first["problem"] == ""
    assert first["params_per_s"]["q4"] > 1e6
    assert "does not answer" in second["problem"]
    assert set(load(load_inventory(folder.inventory))) == {"d01"}
    lab.kill(folder, ["d01"])
    code, document = bench(folder, capsys)
    assert code == ExitCode.FAILURE


@pytest.mark.slow
def test_a_duck_with_weights_is_left_alone(
    folder: LabFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Weights that took minutes to load are not thrown away for a measurement."""
    cache = str(tmp_path / "cache")
    served = [*("serve", "ducklet", "--inventory", str(folder.inventory)), "--cache-dir", cache]
    assert cli.run(["shard-weights", "ducklet", "--ducks", "2", "--cache-dir", cache]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "duckctl", *served, "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: health(folder, capsys)[1]["state"] == "serving", 60)
        code, document = bench(folder, capsys)
        assert code == ExitCode.FAILURE
        problems = [duck["problem"] for duck in document["ducks"]]
        assert problems == ["it is serving, not idle; it was left alone"] * 2
        assert [duck["state"] for duck in health(folder, capsys)] == ["serving"] * 2
    finally:
        process.terminate()
        process.wait(20)


def figures(name: str, problem: str = "", **rates: float) -> DuckFigures:
    return DuckFigures(name, problem, "", (1.0,), rates, dict.fromkeys(rates, "int"))


def test_the_slowest_duck_decides_the_format() -> None:
    """fp8 is faster on one duck and slower on the other: the fleet gets what helps the latter."""
    assert (
        fastest_format([figures("d01", fp8=30.0, fp9=20.0), figures("d02", fp8=15.0, fp9=18.0)])
        == "fp9"
    )
    silent = figures("d03", problem="does not answer")
    assert fastest_format([figures("d01", fp8=30.0, fp9=20.0), silent]) == "fp8"
    half = figures("d04", fp9=1.0)
    assert fastest_format([figures("d01", fp8=30.0, fp9=20.0), half]) == "fp8"
    with pytest.raises(SelfTestError, match="d03: does not answer"):
        fastest_format([silent])


@pytest.mark.slow
def test_auto_takes_what_the_ducks_measure(folder: LabFolder) -> None:
    """FP8 weights: the faster exact format of the slowest duck. BF16: fp9, without measuring."""
    choice = choose_format(is_fp8=True, fleet=load_inventory(folder.inventory))
    assert choice.fmt == max(choice.params_per_s, key=lambda fmt: choice.params_per_s[fmt])
    assert "on the slowest of 2 ducks" in choice.reason
    assert choose_format(is_fp8=False, fleet=None).fmt == "fp9"


@pytest.mark.slow
def test_auto_without_a_fleet_measures_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command says what it took and why, and the plan has that format."""
    arguments = ["shard-weights", "ducklet", "--ducks", "2", "--dry-run", "--format", "auto"]
    assert cli.run([*arguments, "--cache-dir", str(tmp_path), "--json"]) == ExitCode.OK
    captured = capsys.readouterr()
    fmt = json.loads(captured.out)["plan"]["format"]
    assert fmt in ("fp8", "fp9")
    assert f"format {fmt}: fastest exact format on this machine's cores" in captured.err
