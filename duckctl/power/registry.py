"""Which class serves which backend of the inventory."""

from __future__ import annotations

from duckctl.inventory import Power
from duckctl.power.backend import PowerBackend, PowerTarget
from duckctl.power.commands import CommandPower
from duckctl.power.ipmi import IpmiPower
from duckctl.power.lab_machine import LabPower
from duckctl.power.plug import PlugPower
from duckctl.power.protocol import RebootPower
from duckctl.power.redfish import RedfishPower
from duckctl.power.ssh import SshPower
from duckctl.power.wol import WolPower


def make_backend(power: Power, target: PowerTarget) -> PowerBackend | None:
    """The backend of one inventory entry; None for ``none``."""
    options = dict(power.options)
    match power.backend:
        case "none":
            return None
        case "reboot":
            return RebootPower(target)
        case "wol":
            return WolPower(target, options.get("mac"))
        case "ipmi":
            return IpmiPower(target, options)
        case "redfish":
            return RedfishPower(target, options)
        case "http":
            return PlugPower(target, options)
        case "command":
            return CommandPower(target, options)
        case "ssh":
            return SshPower(target, options)
        case "lab":
            return LabPower(target, options["machine"])
    raise AssertionError(f"the inventory let power backend '{power.backend}' pass")
