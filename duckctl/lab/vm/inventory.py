"""The inventory file of a qemu lab, in the format of every other inventory."""

from __future__ import annotations

from itertools import groupby

from duckctl.lab.vm import shape as plans
from duckctl.lab.vm.shape import VmDuck
from duckctl.lab.vm.state import VmState

BMC_USER, BMC_PASSWORD_FILE = "admin", "bmc.password"
HEADER = """\
# Written by `duckctl lab up --backend qemu`; changes are lost at its next start.
# Its addresses exist in the lab's network only: `duckctl lab exec -- duckctl health`.
all:
  vars:
    fleet_name: lab
    fleet_key_file: {key_file}
  children:
    ducks:
      vars:
        domain_mtu: {mtu}
        domain_boot: {boot}
        domain_dispatch: {dispatch}
      children:
"""
DOMAIN = """\
        domain{domain}:
          vars:
            domain_subnet: 198.18.{domain}.0/24
            domain_host_address: {host}
            domain_host_nic: nic{domain}
            domain_host_mac: "{host_mac}"
          hosts:
"""
BMC = """\
                - backend: ipmi
                  address: {address}
                  port: "{port}"
                  user: {user}
                  password_file: {password_file}
"""
DUCK = """\
            {name}:
              duck_slot: {slot}
              duck_address: {address}
              duck_mac: "{mac}"
              duck_image: {image}
              duck_cores: {cores}
              duck_identity: {identity}
              duck_power:
                - {{backend: reboot}}
{bmc}                - {{backend: lab, machine: {name}}}
"""


def vm_inventory(state: VmState, key_file: str) -> str:
    """The text of a qemu lab's inventory.yml."""
    boot = "proxy" if state.shape.boot == "proxy" else "dhcp"
    text = HEADER.format(
        key_file=key_file, mtu=state.shape.mtu, boot=boot, dispatch=state.shape.dispatch
    )
    for domain, ducks in groupby(state.ducks, key=lambda duck: duck.domain):
        text += DOMAIN.format(
            domain=domain, host=plans.host_address(domain), host_mac=plans.host_mac(domain)
        )
        text += "".join(_duck(state, duck) for duck in ducks)
    return text


def _duck(state: VmState, duck: VmDuck) -> str:
    image = state.image
    bmc = ""
    if state.shape.bmc and duck.kind == "qemu":
        bmc = BMC.format(
            address=plans.switch_address(duck.domain),
            port=duck.bmc_port,
            user=BMC_USER,
            password_file=BMC_PASSWORD_FILE,
        )
    return DUCK.format(
        name=duck.name,
        slot=duck.slot,
        address=duck.address,
        mac=duck.mac,
        image="linux" if duck.kind == "process" or image == "linux" else "duckos",
        cores=duck.cores,
        bmc=bmc,
        identity="pinned" if duck.kind == "process" else "per_boot",
    )
