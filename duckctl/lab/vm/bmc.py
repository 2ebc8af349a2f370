"""Board controllers of a lab's guests: IPMI 2.0 over LAN, by pyghmi's server."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pyghmi.ipmi.bmc import Bmc

from duckctl.console import warn
from duckctl.errors import DuckError
from duckctl.lab import machines
from duckctl.lab.state import LabFolder
from duckctl.lab.vm.inventory import BMC_PASSWORD_FILE, BMC_USER
from duckctl.lab.vm.shape import switch_address
from duckctl.lab.vm.state import VmState

OK, UNSPECIFIED_ERROR = 0x00, 0xFF  # completion codes, IPMI 2.0 table 5-2


class BoardController(Bmc):  # type: ignore[misc] # pyghmi has no types
    """The controller of one guest; method names are pyghmi's."""

    def __init__(self, folder: LabFolder, name: str, password: str, port: int, address: str):
        super().__init__({BMC_USER: password}, port=port, address=address)
        self._folder, self._name = folder, name
        self.place = (address, port)

    def get_power_state(self) -> int:
        return int(machines.is_on(self._folder, self._name))

    def power_on(self) -> int:
        return self._switch(machines.turn_on)

    def power_off(self) -> int:
        return self._switch(machines.turn_off)

    def power_cycle(self) -> int:
        return self._switch(machines.cycle)

    def power_reset(self) -> int:
        return self._switch(machines.cycle)

    def _switch(self, action: Callable[[LabFolder, str], None]) -> int:
        try:
            action(self._folder, self._name)
        except DuckError as error:
            warn(f"{self._name}: {error.message}")
            return UNSPECIFIED_ERROR
        return OK


def serve(folder: LabFolder, state: VmState) -> None:
    """All guests' controllers in this process, for ever: pyghmi looks at all sockets at once."""
    password = (folder.root / BMC_PASSWORD_FILE).read_text(encoding="ascii").strip()
    controllers = [
        BoardController(folder, duck.name, password, duck.bmc_port, switch_address(duck.domain))
        for duck in state.ducks
        if duck.kind == "qemu"
    ]
    # Its thread waits on the sockets that there were when it began to wait: one byte wakes it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
        waker.sendto(b"\x01", controllers[0].place)
    controllers[0].listen()
