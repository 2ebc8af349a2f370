"""`duckctl reboot` on boxes that really boot: a hung one by its switch, all of them in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_kit import SHAPE, answers, boot, inside, lab_folder, why_not

from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(SHAPE)), reason=why_not(SHAPE)),
]
TIMEOUT_S = 120.0


def reboot(folder: LabFolder, *arguments: str) -> list[dict[str, Any]]:
    """The command's account of each duck; must be called inside the lab's network."""
    command = [sys.executable, "-P", "-m", "duckctl", "reboot", *arguments, "--yes", "--json"]
    done = subprocess.run(
        [*command, "--inventory", str(folder.inventory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    ducks: list[dict[str, Any]] = json.loads(done.stdout)["ducks"]
    return ducks


def test_a_hung_box_and_then_all(tmp_path: Path) -> None:
    """Stopped processors: by protocol in vain, by power with success; then a rolling restart."""
    with lab_folder(tmp_path / "lab") as folder:
        state, _ = boot(folder, replace(SHAPE, ducks=4))
        boots = [[facts["boot_id"] for facts in answers(folder, state)]]
        lab.hang(folder, ["d02"])
        with inside(state):
            (hung,) = reboot(folder, "d02")
            boots.append([facts["boot_id"] for facts in answers(folder, state)])
            every = reboot(folder, "--all", "--serial", "25%")
            boots.append([facts["boot_id"] for facts in answers(folder, state)])
        assert (hung["state"], hung["action"]) == ("ready", "switch")
        assert [duck["state"] for duck in every] == ["ready"] * 4
        assert [a == b for a, b in zip(boots[0], boots[1], strict=True)] == [
            True, False, True, True,
        ]  # fmt: skip
        assert not set(boots[1]) & set(boots[2])
