"""Which inventory a command means when none is named: that of this user's lab, if there is one."""

from __future__ import annotations

from pathlib import Path

from duckctl.console import talk
from duckctl.errors import UsageError
from duckctl.inventory import Fleet, load_inventory
from duckctl.lab.state import LabFolder, default_folder


def choose_inventory(named: Path | None) -> Fleet:
    """Loads the named inventory, or the lab's. Raises UsageError when there is neither."""
    if named is not None:
        return load_inventory(named)
    lab = LabFolder(default_folder()).inventory
    if not lab.exists():
        raise UsageError(
            "no inventory is named, and no lab runs on this machine",
            "name one with --inventory FILE, or start a lab: duckctl lab up --ducks 4",
        )
    talk(f"inventory: {lab} (the lab's)")
    return load_inventory(lab)
