"""The inventory file of a lab, in the format of every other inventory."""

from __future__ import annotations

from itertools import groupby

from duckctl.lab.state import LabFolder, LabState

HEADER = """\
# Written by `duckctl lab up`; changes are lost at its next start.
all:
  vars:
    fleet_name: lab
    fleet_key_file: {key_file}
  children:
    ducks:
      vars:
        duck_cores: {cores}
        domain_mtu: {mtu}
      children:
"""
DOMAIN = """\
        {name}:
          vars:
            domain_subnet: {prefix}.0/24
            domain_host_address: {prefix}.1
          hosts:
"""
DUCK = """\
            {name}:
              duck_slot: {slot}
              duck_address: {address}
              duck_port: {port}
              duck_power: [{{backend: reboot}}, {{backend: lab, machine: {name}}}]
"""


def lab_inventory(state: LabState, folder: LabFolder) -> str:
    """The text of a running lab's inventory.yml."""
    text = HEADER.format(
        key_file=folder.key_file.name, cores=state.shape.cores_per_duck, mtu=state.shape.mtu
    )
    slots = {duck.name: slot for slot, duck in enumerate(state.ducks)}
    for name, ducks in groupby(state.ducks, key=lambda duck: duck.domain):
        members = list(ducks)
        text += DOMAIN.format(name=name, prefix=members[0].address.rsplit(".", 1)[0])
        for duck in members:
            text += DUCK.format(
                name=duck.name, slot=slots[duck.name], address=duck.address, port=duck.port
            )
    return text
