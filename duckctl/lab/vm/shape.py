"""What a qemu lab consists of: pure functions from options to ducks, addresses and names.

Domain d is 198.18.d.0/24 (RFC 2544, benchmark networks): the host is .1, the switch .3, and in
proxy mode the other DHCP server .2; ducks are .101 and following.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal, TypeVar, cast, get_args

from duckctl.errors import UsageError

GUESTS_MAX = 32
DOMAINS_MAX = 8
CORES_MAX = 16
MEMORY_MIB_MIN, MEMORY_MIB_MAX = 32, 64 * 1024
FIRST_DUCK_ADDRESS = 101
WIRE_PORT = 7211  # DUCK_WIRE_PORT
BMC_PORT = 6230  # of the first duck's board controller

Kind = Literal["qemu", "process"]
Firmware = Literal["bios", "uefi"]
Nic = Literal["virtio", "e1000e"]
Dispatch = Literal["unicast", "broadcast"]
Boot = Literal["pxe", "proxy", "http", "kernel"]
Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True)
class VmShape:
    """What `lab up --backend qemu` was asked for. Lists are dealt out to the ducks in turn."""

    ducks: int
    domains: int
    kinds: tuple[Kind, ...]
    firmware: tuple[Firmware, ...]
    nics: tuple[Nic, ...]
    cores: tuple[int, ...]
    memory_mib: tuple[int, ...]
    boot: Boot
    mtu: int
    poll: str
    dispatch: Dispatch
    bmc: bool = False

    def describe(self) -> str:
        """The shape in the words of the options that ask for it."""
        return (
            f"--ducks {self.ducks} --domains {self.domains} --backend {','.join(self.kinds)} "
            f"--firmware {','.join(self.firmware)} --nic {','.join(self.nics)} "
            f"--cores-per-duck {','.join(map(str, self.cores))} "
            f"--memory {','.join(map(str, self.memory_mib))} --boot {self.boot} --mtu {self.mtu} "
            f"--poll {self.poll} --dispatch {self.dispatch}"
            f"{' --bmc' if self.bmc else ''}"
        )


@dataclass(frozen=True)
class VmDuck:
    """One duck of a qemu lab: a guest, or a duckd process in a namespace of its own."""

    name: str
    slot: int
    domain: int
    kind: Kind
    address: str
    mac: str
    firmware: Firmware
    nic: Nic
    cores: int
    memory_mib: int

    @property
    def port_name(self) -> str:
        """Its interface on the switch: a tap for a guest, one end of a veth pair for a process."""
        return f"p{self.domain}.{self.slot + 1}"

    @property
    def bmc_port(self) -> int:
        """UDP port of its board controller, at the switch's address."""
        return BMC_PORT + self.slot


def choices(text: str, option: str, kinds: object) -> tuple[Choice, ...]:
    """``"bios,uefi"`` -> ("bios", "uefi"); anything else than ``kinds`` (a Literal) is refused."""
    known = get_args(kinds)
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise UsageError(
                f"{option} '{word}' is none of {', '.join(known)}",
                f"several are dealt out to the ducks in turn: {option} {','.join(known[:2])}",
            )
    return cast(tuple[Choice, ...], words)


def numbers(text: str, option: str, low: int, high: int) -> tuple[int, ...]:
    """``"1,4"`` -> (1, 4), each from ``low`` to ``high``."""
    found = []
    for word in text.split(","):
        if not word.strip().isdecimal() or not low <= int(word) <= high:
            raise UsageError(f"{option} '{word}' is not a number from {low} to {high}")
        found.append(int(word))
    return tuple(found)


def new_lab_id() -> str:
    """Six random hex digits: the mark of everything that this lab makes on the machine."""
    return secrets.token_hex(3)


def host_address(domain: int) -> str:
    return f"198.18.{domain}.1"


def router_address(domain: int) -> str:
    """The other DHCP server of proxy mode."""
    return f"198.18.{domain}.2"


def switch_address(domain: int) -> str:
    """The bridge's own address: where the board controllers answer."""
    return f"198.18.{domain}.3"


def host_mac(domain: int) -> str:
    return f"52:d0:cc:{domain:02x}:00:01"


def plan(shape: VmShape) -> tuple[VmDuck, ...]:
    """The ducks of a lab; domains in turn get equal runs of ducks, as in a process lab."""
    if not 1 <= shape.ducks <= GUESTS_MAX:
        raise UsageError(f"--ducks {shape.ducks}: a qemu lab has 1 to {GUESTS_MAX} ducks")
    most = min(DOMAINS_MAX, shape.ducks)
    if not 1 <= shape.domains <= most:
        raise UsageError(
            f"--domains {shape.domains}: {shape.ducks} ducks can be in 1 to {most} domains"
        )
    if shape.boot == "http" and "bios" in shape.firmware:
        raise UsageError(
            "--boot http: the BIOS has no HTTP boot", "ask for --firmware uefi, or --boot pxe"
        )
    kinds = _deal(shape.kinds, shape.ducks)
    firmware = _deal(shape.firmware, shape.ducks)
    nics = _deal(shape.nics, shape.ducks)
    cores = _deal(shape.cores, shape.ducks)
    memory = _deal(shape.memory_mib, shape.ducks)
    ducks = []
    for slot in range(shape.ducks):
        domain = slot * shape.domains // shape.ducks
        place = FIRST_DUCK_ADDRESS + slot - -(-domain * shape.ducks // shape.domains)
        domain += 1
        ducks.append(
            VmDuck(
                name=f"d{slot + 1:02}",
                slot=slot,
                domain=domain,
                kind=kinds[slot],
                address=f"198.18.{domain}.{place}",
                mac=f"52:d0:cc:{domain:02x}:01:{place:02x}",
                firmware=firmware[slot],
                nic=nics[slot],
                cores=cores[slot],
                memory_mib=memory[slot],
            )
        )
    return tuple(ducks)


Item = TypeVar("Item")


def _deal(items: Sequence[Item], count: int) -> list[Item]:
    return list(islice(cycle(items), count))
