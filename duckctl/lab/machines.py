"""The power switch of a lab's ducks, whatever the lab's backend; power backend ``lab`` uses it."""

from __future__ import annotations

from duckctl.lab import ducks
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import lab as vm
from duckctl.lab.vm.state import required


def is_on(folder: LabFolder, name: str) -> bool:
    """True if the machine has power; a hung one has."""
    match folder.backend():
        case "qemu":
            state = required(folder)
            return vm.state_of(folder, state, state.duck(name)) != "off"
        case "process":
            processes = folder.load()
            return processes is not None and processes.duck(name).is_running()
    raise LabError(
        f"there is no lab in {folder.root}",
        "power backend 'lab' belongs to inventories that `duckctl lab up` wrote",
    )


def turn_on(folder: LabFolder, name: str) -> None:
    """Gives power; nothing happens to a machine that has it. Does not wait for the duck."""
    if is_on(folder, name):
        return
    if folder.backend() == "qemu":
        vm.require_on(folder, vm.switch_on(folder, [name]), [name])
    else:
        ducks.restart(folder, [name])


def turn_off(folder: LabFolder, name: str) -> None:
    """A power cut; nothing happens to a machine that is off."""
    if not is_on(folder, name):
        return
    if folder.backend() == "qemu":
        vm.switch_off(folder, [name])
    else:
        ducks.kill(folder, [name])


def cycle(folder: LabFolder, name: str) -> None:
    """Off and on again, also out of a hang."""
    turn_off(folder, name)
    turn_on(folder, name)
