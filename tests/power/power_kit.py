"""A one-duck inventory with a power list, and helpers for servers that tests start."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from duckctl.inventory import Fleet, load_inventory
from duckctl.power.backend import PowerBackend
from duckctl.power.ladder import power_ladder

INVENTORY = """\
all:
  vars: {{fleet_name: shelf, fleet_key_file: fleet.key}}
  children:
    ducks:
      children:
        domain1:
          vars: {{domain_subnet: {subnet}, domain_host_address: {host}}}
          hosts:
            duck01:
              duck_address: {address}
              duck_mac: "{mac}"
              duck_power: {power}
"""
MAC = "a8:b8:e0:21:01:0b"


def fleet_with(
    folder: Path,
    power: str,
    subnet: str = "127.0.0.0/8",
    host: str = "127.0.0.1",
    address: str = "127.0.0.1",
) -> Fleet:
    """A fleet of one duck; ``power`` is YAML flow text."""
    path = folder / "shelf.yml"
    path.write_text(
        INVENTORY.format(subnet=subnet, host=host, address=address, mac=MAC, power=power)
    )
    return load_inventory(path)


def ladder_with(folder: Path, power: str) -> Sequence[PowerBackend]:
    fleet = fleet_with(folder, power)
    return power_ladder(fleet.ducks[0], fleet)


def password_file(folder: Path, text: str = "quack-secret") -> Path:
    path = folder / "bmc.password"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return path


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
