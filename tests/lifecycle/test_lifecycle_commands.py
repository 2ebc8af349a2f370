"""The commands of a fleet's life on process ducks, as a person uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from duckctl.errors import UsageError
from duckctl.inventory import load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.provision.ask import CONFIRM_ABOVE, confirm_restart


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFolder]:
    made = LabFolder(tmp_path_factory.mktemp("lab"))
    lab.up(made, LabShape(3, 1, 1, 1500, "block"))
    yield made
    lab.down(made)


def duckctl(folder: LabFolder, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "duckctl", *words, "--inventory", str(folder.inventory)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def document(folder: LabFolder, *words: str) -> dict[str, Any]:
    done = duckctl(folder, *words, "--json")
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def states(folder: LabFolder) -> dict[str, str]:
    return {duck["name"]: duck["state"] for duck in document(folder, "status")["ducks"]}


def test_a_lab_is_ready_at_the_first_look(folder: LabFolder) -> None:
    """Nobody provisioned it: status looks, verifies, and says so; provision finds nothing to do."""
    assert states(folder) == {"d01": "ready", "d02": "ready", "d03": "ready"}
    done = document(folder, "provision", "--skip-self-test")
    assert {duck["action"] for duck in done["ducks"]} == {"keep"}
    assert done["failed"] == []


@pytest.mark.slow
def test_a_dead_duck_is_lost_and_comes_back(folder: LabFolder) -> None:
    """status names it and ends with 3; provision starts it by its power backend; it is ready."""
    assert duckctl(folder, "status").returncode == 0  # it was ready, so it can be lost
    lab.kill(folder, ["d02"])
    done = duckctl(folder, "status")
    assert done.returncode == 3
    assert "lost" in done.stdout
    assert duckctl(folder, "status", "@lost", "--offline").stdout.count("d02") == 1
    again = document(folder, "provision", "@lost", "--skip-self-test")
    assert [(duck["name"], duck["state"]) for duck in again["ducks"]] == [("d02", "ready")]
    assert duckctl(folder, "status").returncode == 0


@pytest.mark.slow
def test_reboot_gives_every_duck_a_new_boot(folder: LabFolder) -> None:
    """Each comes back with another boot id, one batch after the other."""
    before = {duck["name"]: duck["boot_id"] for duck in document(folder, "status")["ducks"]}
    done = document(folder, "reboot", "--all", "--serial", "2", "--yes")
    after = {duck["name"]: duck["boot_id"] for duck in done["ducks"]}
    assert [name for name in before if before[name] == after[name]] == []
    assert done["restarted"] == ["d01", "d02", "d03"]


@pytest.mark.slow
def test_reboot_of_many_asks_first(folder: LabFolder) -> None:
    """Without a terminal and without --yes nothing is restarted."""
    text = folder.inventory.read_text()
    before = {duck["name"]: duck["boot_id"] for duck in document(folder, "status")["ducks"]}
    assert len(load_inventory(folder.inventory).ducks) <= CONFIRM_ABOVE
    with pytest.raises(UsageError, match="nobody is there to ask"):
        confirm_restart([f"d{n}" for n in range(CONFIRM_ABOVE + 1)], [], yes=False)
    with pytest.raises(UsageError, match="1 of which serve"):
        confirm_restart(["d1"], ["d1"], yes=False)
    assert duckctl(folder, "reboot").returncode == 2, "neither names nor --all"
    after = {duck["name"]: duck["boot_id"] for duck in document(folder, "status")["ducks"]}
    assert (after, folder.inventory.read_text()) == (before, text)


@pytest.mark.slow
def test_maintenance_takes_a_duck_out(folder: LabFolder) -> None:
    """It is skipped by provision and reboot, shown with its reason, and takes part again later."""
    assert duckctl(folder, "maintenance", "on", "d03", "--reason", "new fan").returncode == 0
    try:
        (marked,) = document(folder, "maintenance", "on", "d03", "--reason", "new fan")["ducks"]
        assert (marked["name"], marked["state"]) == ("d03", "maintenance")
        assert marked["changed"] is False
        duck = document(folder, "status", "d03")["ducks"][0]
        assert (duck["state"], duck["reason"]) == ("maintenance", "new fan")
        done = document(folder, "reboot", "d03", "--yes")
        assert (done["restarted"], done["failed"]) == ([], [])
    finally:
        assert duckctl(folder, "maintenance", "off", "@maintenance").returncode == 0
    assert states(folder)["d03"] == "ready"


@pytest.mark.slow
def test_wait_returns_at_once_or_names_who_is_missing(folder: LabFolder) -> None:
    """ready is reached; serving is not, and the time-out names each duck."""
    assert duckctl(folder, "wait", "--for=ready", "--timeout", "20").returncode == 0
    done = duckctl(folder, "wait", "d01", "--for=serving", "--timeout", "0.5")
    assert done.returncode == 4
    assert "d01 is ready" in done.stderr


@pytest.mark.slow
def test_events_are_followed(folder: LabFolder) -> None:
    """events -f prints a JSON line for what another command does, while it does it."""
    command = [sys.executable, "-m", "duckctl", "events", "-f", "--json", "-n", "1"]
    with subprocess.Popen(
        [*command, "--inventory", str(folder.inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as follower:
        try:
            assert follower.stdout is not None
            follower.stdout.readline()  # the last one of before: it follows from now on
            duckctl(folder, "maintenance", "on", "d01")
            duckctl(folder, "maintenance", "off", "d01")
            lines = [json.loads(follower.stdout.readline()) for _ in range(2)]
        finally:
            os.killpg(follower.pid, signal.SIGINT)
    assert [(line["duck"], line["after"]) for line in lines] == [
        ("d01", "maintenance"),
        ("d01", "registered"),
    ]
    assert follower.returncode == 130


@pytest.mark.slow
def test_status_watch_prints_changes_only(folder: LabFolder) -> None:
    """Without a terminal, -w prints a line per change, not a table per look."""
    command = [sys.executable, "-m", "duckctl", "status", "-w", "--period", "0.2"]
    with subprocess.Popen(
        [*command, "--inventory", str(folder.inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdout is not None
        first = [watcher.stdout.readline().split()[1:3] for _ in range(3)]
        lab.kill(folder, ["d01"])
        changed = watcher.stdout.readline().split()[1:3]
        os.killpg(watcher.pid, signal.SIGINT)
    lab.restart(folder, ["d01"])
    assert [line[0] for line in first] == ["d01", "d02", "d03"]
    assert changed == ["d01", "lost:"]


def test_a_pattern_that_means_nobody_is_an_error(folder: LabFolder) -> None:
    """An empty match never widens: usage error, naming what there is."""
    states(folder)
    done = duckctl(folder, "provision", "@failed")
    assert done.returncode == 2
    assert "no duck is failed" in done.stderr
