"""Which inventory a command means when none is named: that of this user's lab, if there is one."""

from __future__ import annotations

from pathlib import Path

from duckctl.console import talk
from duckctl.errors import UsageError
from duckctl.inventory import Fleet, load_inventory
from duckctl.lab.state import LabFolder, default_folder
from duckctl.lab.vm import network
from duckctl.lab.vm.state import load


def choose_inventory(named: Path | None) -> Fleet:
    """Loads the named inventory, or the lab's. Raises UsageError when there is neither."""
    if named is not None:
        _tell_if_outside(named)
        return load_inventory(named)
    lab = LabFolder(default_folder()).inventory
    if not lab.exists():
        raise UsageError(
            "no inventory is named, and no lab runs on this machine",
            "name one with --inventory FILE, or start a lab: duckctl lab up --ducks 4",
        )
    talk(f"inventory: {lab} (the lab's)")
    _tell_if_outside(lab)
    return load_inventory(lab)


def _tell_if_outside(path: Path) -> None:
    """The addresses of a qemu lab exist in its own network only."""
    folder = LabFolder(path.expanduser().absolute().parent)
    if path.name != folder.inventory.name or folder.backend() != "qemu":
        return
    state = load(folder)
    if state is not None and not network.is_inside(state.namespace("host")):
        talk(
            "its ducks answer in the lab's network only: put `duckctl lab exec -- ` in front of "
            "commands that ask them"
        )
