"""Who has the ports that network boot needs, read from /proc of this network namespace."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from duckctl.boot.plan import BootPlan

PROC = Path("/proc")
TCP_LISTEN = "0A"
PURPOSE = {67: "DHCP", 69: "TFTP", 4011: "PXE boot server"}


@dataclass(frozen=True)
class PortOwner:
    """A socket that is in the way. ``pid`` 0: no process of ours to see (run as root)."""

    protocol: Literal["udp", "tcp"]
    port: int
    address: IPv4Address
    pid: int
    program: str

    def __str__(self) -> str:
        who = f"{self.program} (pid {self.pid})" if self.pid else "a process we may not see"
        return f"{self.protocol} {self.address}:{self.port} is used by {who}"


def needed_ports(plan: BootPlan) -> list[tuple[Literal["udp", "tcp"], int, IPv4Address | None]]:
    """Protocol, port and address (None: every address) of all sockets of the boot service."""
    served = [domain for domain in plan.fleet.domains if plan.mode_of(domain) != "off"]
    needed: list[tuple[Literal["udp", "tcp"], int, IPv4Address | None]] = []
    if served:
        needed.append(("udp", 67, None))
    if any(plan.mode_of(domain) == "proxy" for domain in served):
        needed.append(("udp", 4011, None))
    for domain in served:
        needed.append(("udp", 69, domain.host_address))
        needed.append(("tcp", plan.policy.http_port, domain.host_address))
    return needed


def port_conflicts(plan: BootPlan, proc: Path = PROC) -> list[PortOwner]:
    """The sockets of other processes that the boot service would collide with."""
    found: list[PortOwner] = []
    sockets = {protocol: _sockets(protocol, proc) for protocol in ("udp", "tcp")}
    owners: dict[int, tuple[int, str]] | None = None
    for protocol, port, address in needed_ports(plan):
        for inode, bound_address, bound_port in sockets[protocol]:
            any_address = bound_address == IPv4Address(0) or address is None
            if bound_port != port or not (any_address or bound_address == address):
                continue
            owners = _owners(proc) if owners is None else owners
            pid, program = owners.get(inode, (0, ""))
            owner = PortOwner(protocol, port, bound_address, pid, program)
            if owner not in found:
                found.append(owner)
    return found


def _sockets(protocol: str, proc: Path) -> list[tuple[int, IPv4Address, int]]:
    """Inode, address and port of bound UDP or listening TCP sockets (proc(5), net/tcp)."""
    found = []
    for name in (protocol, f"{protocol}6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if protocol == "tcp" and fields[3] != TCP_LISTEN:
                continue
            text, port = fields[1].split(":")
            # IPv6 sockets that take all addresses take IPv4 too.
            if len(text) == 32 and text.strip("0"):
                continue
            address = IPv4Address(bytes.fromhex(text[-8:])[::-1])
            found.append((int(fields[9]), address, int(port, 16)))
    return found


def _owners(proc: Path) -> dict[int, tuple[int, str]]:
    """Socket inode -> pid and program, as far as we may look."""
    owners: dict[int, tuple[int, str]] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            links = [str(link.readlink()) for link in (folder / "fd").iterdir()]
            program = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        for link in links:
            if link.startswith("socket:["):
                owners.setdefault(int(link[8:-1]), (int(folder.name), program))
    return owners
