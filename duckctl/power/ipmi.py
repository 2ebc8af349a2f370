"""IPMI 2.0 over LAN, spoken by ipmitool. The password goes to it as a file, never as an argument.

Commands: ``chassis power status|on|off|cycle`` (IPMI 2.0, 28.2 and 28.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget
from duckctl.power.run_tool import run_tool

DEFAULT_PORT = "623"
COMMAND_TIMEOUT_S = 15.0
RETRIES, RETRY_TIMEOUT_S = "3", "2"  # ipmitool's own: 1 + 3 tries of 2 s


class IpmiPower:
    """``ipmi``: options ``address``, ``user``, ``password_file``, ``port``."""

    name = "ipmi"
    actions = frozenset(Action)

    def __init__(self, target: PowerTarget, options: Mapping[str, str]) -> None:
        self._target = target
        self._options = options

    def describe(self) -> str:
        return f"ipmi {self._options['address']}"

    def state(self) -> PowerState:
        said = self._chassis("status").strip().lower()
        for state in (PowerState.ON, PowerState.OFF):
            if said.endswith(f"is {state}"):
                return state
        raise PowerError(f"{self._target.name}: {self.describe()} answered '{said[:80]}'")

    def act(self, action: Action) -> None:
        # A BMC refuses to cycle what is off (IPMI 2.0, 28.3); switching on is what is meant.
        if action is Action.CYCLE and self.state() is PowerState.OFF:
            action = Action.ON
        self._chassis(action.value)

    def _chassis(self, command: str) -> str:
        options = self._options
        self._target.secret("password_file", options["password_file"])
        password_file = self._target.file("password_file", options["password_file"])
        return run_tool(
            self._target.name,
            [
                *("ipmitool", "-I", "lanplus", "-H", options["address"]),
                *("-p", options.get("port", DEFAULT_PORT), "-U", options["user"]),
                *("-f", str(password_file), "-R", RETRIES, "-N", RETRY_TIMEOUT_S),
                *("chassis", "power", command),
            ],
            COMMAND_TIMEOUT_S,
            "install ipmitool (Debian: apt-get install ipmitool)",
        )
