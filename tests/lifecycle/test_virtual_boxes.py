"""Bare virtual boxes without power become ready, and a hung one is brought back: real firmware,
real network boot, the bare-metal image, real power switching."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duckctl.errors import DuckError
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab, needs
from duckctl.lab.vm.shape import VmShape

SHAPE = VmShape(
    ducks=2,
    domains=1,
    kinds=("qemu",),
    firmware=("bios", "uefi"),
    nics=("virtio",),
    cores=(1,),
    memory_mib=(128,),
    boot="pxe",
    mtu=1500,
    poll="block",
    dispatch="broadcast",
)
RUN_S_MAX = 240.0


def duckctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "duckctl", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)


def inside(folder: LabFolder, *words: str) -> dict[str, Any]:
    """A command in the lab's host namespace; its JSON."""
    command = [sys.executable, "-P", "-m", "duckctl", *words, "--json"]
    done = duckctl(
        *("lab", "exec", "--state-dir", str(folder.root), "--"),
        *(*command, "--inventory", str(folder.inventory)),
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_dark_virtual_boxes_become_ready_and_a_hung_one_comes_back(tmp_path: Path) -> None:
    """One BIOS and one UEFI box are switched on, boot from the network and are verified. Then one
    is stopped dead: reboot brings it back by its power switch, the other by protocol."""
    try:
        needs.require(SHAPE)
    except DuckError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    folder = LabFolder(tmp_path / "lab")
    where = ("--state-dir", str(folder.root))
    try:
        made = duckctl(
            *("lab", "up", "--backend", "qemu", "--boot", "pxe", "--firmware", "bios,uefi"),
            *("--ducks", "2", "--off", *where),
        )
        assert made.returncode == 0, made.stderr
        document = inside(folder, "provision", "--skip-self-test")
        assert [(duck["state"], duck["action"]) for duck in document["ducks"]] == [
            ("ready", "switch"),
            ("ready", "switch"),
        ]
        events = inside(folder, "events", "d01")["events"]
        steps = [event["after"] for event in events]
        assert steps[:2] == ["registered", "booting(power)"]
        assert steps[-2:] == ["booting(verify)", "ready"]
        assert "booting(boot_file)" in steps, "its DHCP request was not seen"
        assert duckctl("lab", "power", *where, "hang", "d01").returncode == 0
        document = inside(folder, "reboot", "--all", "--yes", "--timeout", "90")
        assert [(duck["name"], duck["state"], duck["action"]) for duck in document["ducks"]] == [
            ("d01", "ready", "switch"),
            ("d02", "ready", "restart"),
        ]
        assert [duck["boots"] for duck in document["ducks"]] == [2, 2]
        again = inside(folder, "provision", "--skip-self-test")
        assert {duck["action"] for duck in again["ducks"]} == {"keep"}
    finally:
        lab.down(folder)
