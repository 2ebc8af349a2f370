"""The lab's own machines (process ducks and virtual ones): the lab is their power switch."""

from __future__ import annotations

from duckctl.lab import ducks as lab
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
        state = self._folder.load()
        if state is None:
            raise PowerError(
                f"{self._target.name}: there is no lab in {self._folder.root}",
                "power backend 'lab' belongs to inventories that `duckctl lab up` wrote",
            )
        return PowerState.ON if state.duck(self._machine).is_running() else PowerState.OFF

    def act(self, action: Action) -> None:
        is_on = self.state() is PowerState.ON
        if is_on and action is not Action.ON:
            lab.kill(self._folder, [self._machine])
        if action is Action.CYCLE or (action is Action.ON and not is_on):
            lab.restart(self._folder, [self._machine])
