"""``duckctl power`` and the lab's and the protocol's backends, on a lab of process ducks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duckctl import cli
from duckctl.errors import ExitCode
from duckctl.health import probe
from duckctl.inventory import Duck, Fleet, load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.power.backend import Action, PowerError, PowerState
from duckctl.power.ladder import cycle_duck, power_ladder

SHAPE = LabShape(ducks=2, domains=1, cores_per_duck=1, mtu=1500, poll="block")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    folder.create()
    lab.up(folder, SHAPE)
    yield folder
    lab.down(folder)


def with_power(folder: LabFolder, power: str) -> Fleet:
    """The lab's inventory with another power list for each duck."""
    lines = folder.inventory.read_text().splitlines()
    kept = [line for line in lines if "duck_power" not in line]
    at = next(i for i, line in enumerate(kept) if "duck_cores" in line)
    kept.insert(at, f"        duck_power: {power}")
    path = folder.root / "power.yml"
    path.write_text("\n".join(kept) + "\n")
    return load_inventory(path)


def power(folder: LabFolder, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    inventory = str(folder.root / "power.yml")
    code = cli.run(["power", *words, "--inventory", inventory, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def boot_id(fleet: Fleet, duck: Duck) -> str | None:
    (answer,) = probe(fleet, [duck], 1.0)["ducks"]
    return str(answer["boot_id"]) if answer["reachable"] else None


def test_off_on_and_status_of_lab_machines(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lab is a switch like any other: off, seen off, on, seen on."""
    with_power(folder, "{backend: lab, machine: d01}")
    code, answer = power(folder, capsys, "off", "d01")
    assert code == ExitCode.OK
    assert answer["ducks"] == [
        {"name": "d01", "backend": "lab", "state": "off sent", "problem": None}
    ]
    assert power(folder, capsys, "status", "d01")[1]["ducks"][0]["state"] == "off"
    assert power(folder, capsys, "on", "d01")[0] == ExitCode.OK
    assert power(folder, capsys, "status", "d01")[1]["ducks"][0]["state"] == "on"


def test_switching_many_needs_a_yes(
    folder: LabFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal nobody can be asked, so nothing is touched."""
    fleet = with_power(folder, "{backend: reboot}")
    before = [boot_id(fleet, duck) for duck in fleet.ducks]
    assert power(folder, capsys, "cycle", "all")[0] == ExitCode.USAGE
    assert [boot_id(fleet, duck) for duck in fleet.ducks] == before


def test_a_duck_without_a_fitting_backend_is_named(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """REBOOT cannot switch off; the others of the command are not held up."""
    with_power(folder, "{backend: reboot}")
    code, answer = power(folder, capsys, "off", "d02")
    assert code == ExitCode.FAILURE
    assert answer["ducks"][0]["problem"] == (
        "no power backend of d02 can switch off; it has: reboot"
    )


def test_reboot_gives_a_new_boot_id(folder: LabFolder) -> None:
    """A process duck restarts itself; the ladder believes the new boot id and nothing else."""
    fleet = with_power(folder, "[{backend: reboot}, {backend: lab, machine: d01}]")
    duck = fleet.ducks[0]
    before = boot_id(fleet, duck)
    assert before is not None
    ladder = power_ladder(duck, fleet)
    outcome = cycle_duck(
        duck.name, ladder, lambda: boot_id(fleet, duck) not in (None, before), wait_s=10
    )
    assert outcome.came_back, outcome.reason
    assert outcome.steps[0].backend == "reboot"


@pytest.mark.slow
def test_t42_a_dead_duck_is_not_taken_for_a_rebooted_one(folder: LabFolder) -> None:
    """REBOOT to a duck that does not answer is an error, so the next backend is asked."""
    fleet = with_power(folder, "[{backend: reboot}, {backend: lab, machine: d01}]")
    duck = fleet.ducks[0]
    before = boot_id(fleet, duck)
    lab.kill(folder, ["d01"])
    ladder = power_ladder(duck, fleet)
    assert ladder[0].state() is PowerState.UNKNOWN
    with pytest.raises(PowerError, match="does not answer"):
        ladder[0].act(Action.CYCLE)
    outcome = cycle_duck(
        duck.name, ladder, lambda: boot_id(fleet, duck) not in (None, before), wait_s=10
    )
    assert outcome.came_back, outcome.reason
    assert [step.backend for step in outcome.steps] == ["reboot", "lab"]
