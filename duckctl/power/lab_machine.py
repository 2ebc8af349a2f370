"""The lab's own machines (process ducks and virtual ones): the lab is their power switch."""

from __future__ import annotations

from duckctl.lab import machines
from duckctl.lab.state import LabFolder
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget


class LabPower:
    """``lab``: option ``machine``, the duck's name in the lab whose inventory this is."""

    name = "lab"
    actions = frozenset(Action)

    def __init__(self, target: PowerTarget, machine: str) -> None:
        self._target = target
        self._machine = machine
        self._folder = LabFolder(target.fleet_dir)

    def describe(self) -> str:
        return f"lab {self._folder.root} {self._machine}"

    def state(self) -> PowerState:
        self._check()
        return PowerState.ON if machines.is_on(self._folder, self._machine) else PowerState.OFF

    def act(self, action: Action) -> None:
        self._check()
        match action:
            case Action.ON:
                machines.turn_on(self._folder, self._machine)
            case Action.OFF:
                machines.turn_off(self._folder, self._machine)
            case Action.CYCLE:
                machines.cycle(self._folder, self._machine)

    def _check(self) -> None:
        if not self._folder.backend():
            raise PowerError(
                f"{self._target.name}: there is no lab in {self._folder.root}",
                "power backend 'lab' belongs to inventories that `duckctl lab up` wrote",
            )
