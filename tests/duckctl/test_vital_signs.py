"""What an answer tells about a box, its slowing down, and how a monitoring system reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duckctl import cli
from duckctl.calibration import Calibration, CalibrationError, calibration_file, load, record
from duckctl.errors import ExitCode
from duckctl.health import fleet_health
from duckctl.inventory import Fleet, load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.prometheus import render
from duckctl.vital_signs import LOSS_PACKETS_MIN, loss_share

BUILD = "a" * 40
INVENTORY = """\
all:
  vars: {fleet_name: shelf}
  children:
    ducks:
      vars:
        duck_cores: 4
        duck_memory_gib: 32
        duck_link_mbps: 2500
        domain_mtu: 9000
      children:
        domain1:
          vars: {domain_subnet: 10.21.1.0/24, domain_host_address: 10.21.1.1}
          hosts:
            duck01:
              duck_mac: "a8:b8:e0:21:01:0b"
              duck_address: 10.21.1.11
              duck_temperature_c_max: 80
            duck02: {duck_mac: "a8:b8:e0:21:01:0c", duck_address: 10.21.1.12}
"""
STATS = {"packets_received": 60_000, "packets_sent": 40_000, "uptime_ns": 5} | dict.fromkeys(
    ("nacks_sent", "nacks_received", "results_resent", "dropped_mac", "calls_finished"), 0
)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    path = tmp_path / "shelf.yml"
    path.write_text(INVENTORY)
    return load_inventory(path)


def facts(name: str = "duck01", **changes: Any) -> dict[str, Any]:
    """A duck that keeps all promises of its inventory, with changes."""
    well = {
        "name": name,
        "endpoint": "10.21.1.11:7211",
        "reachable": True,
        "error": None,
        "state": "idle",
        "build": BUILD,
        "build_ok": True,
        "platform": "duckos",
        "name_told": name,
        "temperature_c": 61.0,
        "core_count": 4,
        "memory_bytes": 31 << 30,
        "link_mbps": 2500,
        "mtu_bytes": 9000,
        "mac_address": "a8:b8:e0:21:01:0b",
        "round_trip_us": 150.0,
        "uptime_s": 12.5,
        "stats": STATS,
    }
    return {**well, **changes}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"link_mbps": 1000}, "has a link of 1000 Mbit/s, the inventory says 2500"),
        ({"link_mbps": 0}, ""),
        ({"memory_bytes": 16 << 30}, "has 16.0 GiB of memory, the inventory says 32"),
        ({"memory_bytes": int(28.9 * 2**30)}, ""),
        (
            {"mac_address": "a8:b8:e0:21:01:0c"},
            "answers from card a8:b8:e0:21:01:0c, the inventory says a8:b8:e0:21:01:0b",
        ),
        ({"core_count": 2}, "has 2 cores, the inventory says 4"),
        ({"mtu_bytes": 1500}, "has MTU 1500, the inventory says 9000"),
        ({"temperature_c": 80.0}, ""),
        ({"temperature_c": 81.2}, "is at 81 °C, above 80"),
        ({"stats": {**STATS, "nacks_sent": 1000}}, ""),
        (
            {"stats": {**STATS, "nacks_sent": 900, "results_resent": 600}},
            "lost 15.0 of 1000 packets since its start, above 10",
        ),
        ({"stats": None}, ""),
    ],
)
def test_each_broken_promise_is_named(fleet: Fleet, changes: dict[str, Any], problem: str) -> None:
    """What the inventory says is compared with what the duck says, to the limit and beyond."""
    (duck,) = fleet_health({"build": BUILD, "ducks": [facts(**changes)]}, fleet).ducks
    assert duck.problem == problem


def test_all_problems_are_listed_and_the_gravest_leads(fleet: Fleet) -> None:
    """A hot duck with too little memory: both are told, the memory first."""
    sick = facts(temperature_c=90.0, memory_bytes=8 << 30, link_mbps=100)
    (duck,) = fleet_health({"build": BUILD, "ducks": [sick]}, fleet).ducks
    assert len(duck.problems) == 3
    assert duck.problem.startswith("has 8.0 GiB")


def test_few_packets_tell_nothing_of_loss() -> None:
    """One repair among ten packets is chance."""
    few = {**STATS, "packets_received": LOSS_PACKETS_MIN - 1, "packets_sent": 0, "nacks_sent": 50}
    assert loss_share(few) is None
    assert loss_share({**few, "packets_received": LOSS_PACKETS_MIN}) == 0.05


def calibration(rate: float, at: float = 1.0, region_mib: int = 64) -> Calibration:
    return Calibration((rate / 2, rate), "int", "00ff", at, region_mib)


def test_a_duck_that_grows_slow_is_named(fleet: Fleet) -> None:
    """The first calibration stays the measure; the latest is compared with it."""
    record(fleet, {"duck01": calibration(20e9), "duck02": calibration(21e9)})
    record(fleet, {"duck01": calibration(17e9, 2.0)})
    figures = load(fleet)
    assert figures["duck01"].baseline == calibration(20e9)
    assert figures["duck01"].latest == calibration(17e9, 2.0)
    assert figures["duck01"].drift == pytest.approx(0.15)
    answers = {"build": BUILD, "ducks": [facts()]}
    (duck,) = fleet_health(answers, fleet, figures).ducks
    assert duck.problem == "reads memory at 17.0 GB/s, 20.0 when it was new to the fleet"
    record(fleet, {"duck01": calibration(17e9, 3.0)}, fresh=True)
    assert load(fleet)["duck01"].drift == 0.0


def test_only_equal_regions_are_compared(fleet: Fleet) -> None:
    """8 MiB come from a cache; each size keeps its own measure when they alternate."""
    record(fleet, {"duck01": calibration(80e9, region_mib=8)})
    record(fleet, {"duck01": calibration(20e9, 2.0)})
    assert load(fleet)["duck01"].drift == 0.0
    record(fleet, {"duck01": calibration(72e9, 3.0, region_mib=8)})
    assert load(fleet)["duck01"].drift == pytest.approx(0.1)
    record(fleet, {"duck01": calibration(17e9, 4.0)})
    figures = load(fleet)["duck01"]
    assert figures.baseline == calibration(20e9, 2.0)
    assert figures.drift == pytest.approx(0.15)


def test_figures_of_an_unknown_region_size_are_read_and_not_compared(fleet: Fleet) -> None:
    """A file that an earlier duckctl wrote."""
    figures = {"read_bytes_per_s": [80e9], "body": "int", "boot_id": "00ff", "at": 1.0}
    document = {"duck01": {"baseline": figures, "latest": figures}}
    calibration_file(fleet).write_text(json.dumps({"schema_version": 1, "ducks": document}))
    assert load(fleet)["duck01"].latest.region_mib == 0
    record(fleet, {"duck01": calibration(20e9)})
    assert load(fleet)["duck01"].drift == 0.0


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_a_calibration_that_no_json_can_tell_is_named(fleet: Fleet, rate: float) -> None:
    """Python's JSON reads NaN; `health --json` must not pass it on."""
    record(fleet, {"duck01": calibration(20e9)})
    path = calibration_file(fleet)
    path.write_text(path.read_text().replace("20000000000.0", json.dumps(rate)))
    with pytest.raises(CalibrationError, match="damaged"):
        load(fleet)


def test_a_damaged_calibration_file_is_named(fleet: Fleet) -> None:
    """Nothing is guessed from half a file."""
    calibration_file(fleet).write_text('{"schema_version": 1, "ducks": {"duck01": {}}}')
    with pytest.raises(CalibrationError, match="damaged"):
        load(fleet)


def test_a_monitoring_system_can_read_the_page(fleet: Fleet) -> None:
    """Prometheus' own parser finds each value, odd names too; a silent duck has no facts."""
    record(fleet, {"duck01": calibration(20e9)})
    silent = {"name": "duck02", "reachable": False, "error": None, "stats": None}
    quoted = facts(state='id"le\\')
    report = fleet_health({"build": BUILD, "ducks": [quoted, silent]}, fleet)
    page = render(report, load(fleet))
    samples = {
        (sample.name, sample.labels["duck"]): sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["duckctl_duck_reachable", "duck02"].value == 0
    assert samples["duckctl_duck_healthy", "duck01"].value == 1
    assert samples["duckctl_duck_link_bits_per_second", "duck01"].value == 2.5e9
    assert samples["duckctl_duck_read_bytes_per_second", "duck01"].value == 20e9
    assert samples["duckctl_duck_stats_packets_received_total", "duck01"].value == 60_000
    assert samples["duckctl_duck_info", "duck01"].labels["state"] == 'id"le\\'
    assert {name for name, duck in samples if duck == "duck02"} == {
        "duckctl_duck_reachable",
        "duckctl_duck_healthy",
    }


def test_the_counters_of_a_duck_have_names_of_their_own(fleet: Fleet) -> None:
    """The serving host's page has nacks_sent too, its own count; _total stands once in a name."""
    told = facts()
    told["stats"] = told["stats"] | {"nacks_sent": 5, "kernel_ns_total": 7}
    lines = render(fleet_health({"build": BUILD, "ducks": [told]}, fleet), {}).splitlines()
    assert 'duckctl_duck_stats_nacks_sent_total{duck="duck01"} 5' in lines
    assert 'duckctl_duck_stats_kernel_ns_total{duck="duck01"} 7' in lines
    counters = {line.split()[2] for line in lines if line.endswith(" counter")}
    assert {name for name in counters if not name.startswith("duckctl_duck_stats_")} == set()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    lab.up(folder, LabShape(2, 1, 1, 1500, "block"))
    yield folder
    lab.down(folder)


@pytest.mark.slow
def test_watching_a_real_fleet(
    folder: LabFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds; each rewrites the page, and the last one decides the exit code."""
    page = tmp_path / "duckctl.prom"
    arguments = ["health", "--inventory", str(folder.inventory), "--prometheus", str(page)]
    assert cli.run([*arguments, "-w", "--every", "0.5", "--count", "2"]) == ExitCode.OK
    assert capsys.readouterr().out.count("d01") == 2
    assert 'duckctl_duck_reachable{duck="d02"} 1' in page.read_text()
    lab.kill(folder, ["d02"])
    assert cli.run([*arguments, "--timeout", "0.5", "--json"]) == ExitCode.PARTIAL
    document = json.loads(capsys.readouterr().out)
    assert [duck["problem"] is None for duck in document["ducks"]] == [True, False]
    assert 'duckctl_duck_reachable{duck="d02"} 0' in page.read_text()
    assert list(tmp_path.glob(".duckctl.prom*")) == []


def test_stdout_is_for_one(folder: LabFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and the page cannot both go there."""
    inventory = str(folder.inventory)
    code = cli.run(["health", "--inventory", inventory, "--json", "--prometheus", "-"])
    assert code == ExitCode.USAGE
    assert "both want stdout" in capsys.readouterr().err
