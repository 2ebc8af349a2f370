"""Ports, NUMA nodes, CPU lists and sockets of a machine, read from /sys and /proc."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from duckctl.doctor.environment import Environment
from duckctl.inventory import Domain, Fleet

PCI_DEVICES = "/sys/bus/pci/devices"
VFIO = "vfio-pci"
NIC_NAME_MAX = 15  # IFNAMSIZ - 1, linux/if.h
HASH_DIGITS = 8


@dataclass(frozen=True)
class Port:
    """A network port of the host. ``interface`` is empty while vfio-pci has it."""

    pci: str
    driver: str
    interface: str
    mac: str
    numa_node: int
    vendor: str
    device: str


def read_ports(environment: Environment) -> list[Port]:
    """All PCI devices of class network."""
    return [
        read_port(environment, pci)
        for pci in environment.names(PCI_DEVICES)
        if environment.read(f"{PCI_DEVICES}/{pci}/class").startswith("0x02")
    ]


def read_port(environment: Environment, pci: str) -> Port:
    folder = f"{PCI_DEVICES}/{pci}"
    # A virtio network device hangs one level deeper.
    interfaces = environment.glob(f"{folder}/net/*") + environment.glob(f"{folder}/virtio*/net/*")
    interface = interfaces[0].rsplit("/", 1)[-1] if interfaces else ""
    node = environment.read(f"{folder}/numa_node")
    return Port(
        pci=pci,
        driver=environment.link(f"{folder}/driver"),
        interface=interface,
        mac=environment.read(f"/sys/class/net/{interface}/address").lower() if interface else "",
        numa_node=max(0, int(node)) if node.lstrip("-").isdigit() else 0,
        vendor=environment.read(f"{folder}/vendor"),
        device=environment.read(f"{folder}/device"),
    )


@dataclass(frozen=True)
class DomainPort:
    """A domain and its port of this host; ``port`` is None if there is no such port."""

    domain: Domain
    port: Port | None


def port_name(domain: str) -> str:
    """The interface's name that `duckctl host setup` gives a domain's port, if the inventory names
    none. The rule is that of playbooks/filter_plugins/duck_fleet.py, which stands alone."""
    name = f"duck-{domain}"
    if len(name) <= NIC_NAME_MAX:
        return name
    return f"{name[: NIC_NAME_MAX - HASH_DIGITS]}{zlib.crc32(name.encode()):0{HASH_DIGITS}x}"


def domain_ports(environment: Environment, fleet: Fleet) -> list[DomainPort]:
    """The port of each domain: by PCI address, else MAC, else name. Loopback has none."""
    ports = read_ports(environment)
    found = []
    for domain in fleet.domains:
        if domain.subnet.is_loopback:
            continue
        pci = domain.host_pci
        match = [
            port
            for port in ports
            if (pci is not None and port.pci == pci)
            or (pci is None and domain.host_mac is not None and port.mac == domain.host_mac)
            or (pci is None and domain.host_mac is None and port.interface == domain.host_nic)
        ]
        found.append(DomainPort(domain, match[0] if match else None))
    return found


def cpu_numbers(text: str) -> set[int]:
    """``"2-4,7"`` -> {2, 3, 4, 7}; the kernel's "(null)" -> nothing."""
    numbers: set[int] = set()
    for part in text.replace("(null)", "").replace("\n", ",").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def kernel_arguments(environment: Environment) -> dict[str, str]:
    """The command line of the running kernel, the last of each name."""
    words = environment.read("/proc/cmdline").split()
    return dict(word.partition("=")[::2] for word in words)


def processes(environment: Environment) -> Iterator[tuple[int, str]]:
    """Pid and name of every process."""
    for name in environment.names("/proc"):
        if name.isdigit():
            yield int(name), environment.read(f"/proc/{name}/comm")


@dataclass(frozen=True)
class Socket:
    """A bound UDP socket or a listening TCP socket."""

    protocol: str
    port: int
    inode: str


def sockets(environment: Environment) -> list[Socket]:
    """Of IPv4 and IPv6 (proc_net_udp(5): local address 2nd, state 4th, inode 10th column)."""
    found = []
    for table in ("udp", "udp6", "tcp", "tcp6"):
        for line in environment.read(f"/proc/net/{table}").splitlines()[1:]:
            columns = line.split()
            if len(columns) < 10 or (table.startswith("tcp") and columns[3] != "0A"):
                continue
            port = int(columns[1].rsplit(":", 1)[1], 16)
            found.append(Socket(table[:3], port, columns[9]))
    return found


def socket_owner(environment: Environment, inode: str) -> tuple[int, str]:
    """Pid and command line of the process that has a socket; (0, "") if none is to be seen."""
    for pid, name in processes(environment):
        for descriptor in environment.names(f"/proc/{pid}/fd"):
            if environment.link(f"/proc/{pid}/fd/{descriptor}") == f"socket:[{inode}]":
                words = environment.read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                return pid, words or name
    return 0, ""
