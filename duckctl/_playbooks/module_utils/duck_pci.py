"""PCI network ports by /sys: what they are, and binding them to vfio-pci and back.

Used by the modules of this folder, and installed on the host, where ``duck-vfio.service`` runs it:
only the standard library. Sources: Linux Documentation/ABI/testing/sysfs-bus-pci (driver_override,
drivers_probe), Documentation/driver-api/vfio.rst (groups).

Field faults: writing an id to ``new_id`` takes sibling ports too, so only ``driver_override`` is
used (T61); a group with a device on another driver is not viable (T60); a write that succeeds says
nothing, so every step is read back, and a failure leads back to where it began.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

VFIO = "vfio-pci"
# Drivers that a DPDK port shares with the kernel: such a port must stay where it is.
BIFURCATED = ("mlx4_core", "mlx5_core", "mana")
# What may share a group with a port without making it unsafe (vfio.rst, "viable").
HARMLESS = ("", VFIO, "pci-stub", "pcieport")
SETTLE_S_MAX = 10.0
VFIO_GROUP_GET_STATUS = 0x3B67  # linux/vfio.h: _IO(';', 100 + 3)
VFIO_GROUP_FLAGS_VIABLE = 1
PCI_CLASS_BRIDGE = "0x06"


class PciError(Exception):
    """A port is not as it has to be; the text says what and what to do."""


class Sysfs:
    """Reads and writes below a root; tests give a root with a fake kernel behind it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def link(self, name: str) -> str:
        """The last part of a link's target; empty if there is none."""
        try:
            return os.path.basename(os.readlink(self.path(name)))  # noqa: PTH115, PTH119
        except OSError:
            return ""

    def names(self, folder: str) -> list[str]:
        path = self.path(folder)
        return sorted(item.name for item in path.iterdir()) if path.is_dir() else []

    def write(self, name: str, text: str) -> None:
        self.path(name).write_text(text, encoding="ascii")

    def load_module(self, name: str) -> None:
        done = subprocess.run(["modprobe", name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PciError(f"cannot load module {name}: {done.stderr.strip()}")

    def settle(self) -> None:
        """Waits for udev, which names interfaces and opens /dev/vfio."""
        command = ["udevadm", "settle", f"--timeout={int(SETTLE_S_MAX)}"]
        subprocess.run(command, capture_output=True, check=False)

    def group_is_viable(self, group: str) -> bool:
        """Asks VFIO itself. A group that a program holds open is viable, or it could not."""
        device = self.path(f"/dev/vfio/{group}")
        try:
            descriptor = os.open(device, os.O_RDWR)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return True
            raise PciError(f"cannot open {device}: {os.strerror(error.errno or 0)}") from error
        try:
            status = fcntl.ioctl(descriptor, VFIO_GROUP_GET_STATUS, struct.pack("=II", 8, 0))
            return bool(struct.unpack("=II", status)[1] & VFIO_GROUP_FLAGS_VIABLE)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class Port:
    """One network port. ``interface`` and ``mac`` are empty while no network driver has it."""

    pci: str
    driver: str
    interface: str
    mac: str
    numa_node: int
    group: str

    @property
    def is_bifurcated(self) -> bool:
        return self.driver in BIFURCATED


def device(pci: str) -> str:
    return f"/sys/bus/pci/devices/{pci}"


def read_port(sysfs: Sysfs, pci: str) -> Port:
    """The port at a PCI address. Raises PciError if there is no such device."""
    if not sysfs.path(device(pci)).exists():
        ports = [f"{p.pci} ({p.interface or p.driver})" for p in network_ports(sysfs)]
        raise PciError(f"no PCI device {pci}; network ports here: {', '.join(ports) or 'none'}")
    interfaces = sysfs.names(f"{device(pci)}/net")
    # virtio: the network device hangs below the virtio device.
    for child in sysfs.names(device(pci)):
        if child.startswith("virtio"):
            interfaces += sysfs.names(f"{device(pci)}/{child}/net")
    interface = interfaces[0] if interfaces else ""
    node = sysfs.read(f"{device(pci)}/numa_node")
    return Port(
        pci=pci,
        driver=sysfs.link(f"{device(pci)}/driver"),
        interface=interface,
        mac=sysfs.read(f"/sys/class/net/{interface}/address").lower() if interface else "",
        numa_node=max(0, int(node)) if node.lstrip("-").isdigit() else 0,
        group=sysfs.link(f"{device(pci)}/iommu_group"),
    )


def network_ports(sysfs: Sysfs) -> list[Port]:
    """All PCI devices of class network."""
    return [
        read_port(sysfs, pci)
        for pci in sysfs.names("/sys/bus/pci/devices")
        if sysfs.read(f"{device(pci)}/class").startswith("0x02")
    ]


def find_port(sysfs: Sysfs, pci: str, mac: str) -> Port:
    """By PCI address or, without one, by MAC: names of interfaces change (T36)."""
    if pci:
        return read_port(sysfs, pci)
    ports = network_ports(sysfs)
    for port in ports:
        if mac and port.mac == mac:
            return port
    known = ", ".join(f"{port.mac or '-'} ({port.interface or port.driver})" for port in ports)
    raise PciError(f"no network port has the MAC {mac or '(none given)'}; here are: {known}")


def default_route_interfaces(sysfs: Sysfs) -> set[str]:
    """Interfaces of default routes, which this host is reached by (/proc/net/route)."""
    lines = sysfs.read("/proc/net/route").splitlines()[1:]
    rows = [line.split() for line in lines]
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}


def group_neighbours(sysfs: Sysfs, port: Port) -> list[tuple[str, str]]:
    """The other devices of a port's IOMMU group, bridges left out: (address, driver)."""
    members = sysfs.names(f"/sys/kernel/iommu_groups/{port.group}/devices") if port.group else []
    return [
        (member, sysfs.link(f"{device(member)}/driver"))
        for member in members
        if member != port.pci
        and not sysfs.read(f"{device(member)}/class").startswith(PCI_CLASS_BRIDGE)
    ]


def binding_problems(sysfs: Sysfs, pcis: list[str], keep: set[str]) -> list[str]:
    """Why ports cannot be given to vfio-pci; nothing is touched. Empty: they can.

    ``keep``: interfaces that this host is reached by.
    """
    problems = []
    protected = keep | default_route_interfaces(sysfs)
    for pci in pcis:
        port = read_port(sysfs, pci)
        if port.is_bifurcated:
            continue
        if port.interface in protected and port.interface:
            problems.append(f"{pci} is {port.interface}, by which this host is reached")
        if not port.group:
            problems.append(
                f"{pci} has no IOMMU group: enable VT-d or AMD-Vi in the firmware's setup, and "
                "start the kernel with intel_iommu=on iommu=pt"
            )
        others = [
            f"{member} ({driver})"
            for member, driver in group_neighbours(sysfs, port)
            if driver not in HARMLESS and member not in pcis
        ]
        if others:
            problems.append(
                f"IOMMU group {port.group} of {pci} is not viable: it also has "
                f"{', '.join(others)}; free them, remove virtual functions first, or use another "
                "slot"
            )
    return problems


def unbound_ports(sysfs: Sysfs, pcis: list[str], driver: str) -> list[str]:
    """Those that would change; ports of bifurcated drivers stay."""
    ports = [read_port(sysfs, pci) for pci in pcis]
    return [port.pci for port in ports if port.driver != driver and not port.is_bifurcated]


def bind_ports(sysfs: Sysfs, pcis: list[str], keep: set[str]) -> list[str]:
    """Gives ports to vfio-pci, all or none. Gives those that changed; raises PciError."""
    problems = binding_problems(sysfs, pcis, keep)
    if problems:
        raise PciError("; ".join(problems))
    changing = unbound_ports(sysfs, pcis, VFIO)
    before = {pci: read_port(sysfs, pci).driver for pci in changing}
    if changing:
        sysfs.load_module(VFIO)
    begun: list[str] = []
    try:
        for pci in changing:
            begun.append(pci)
            move_port(sysfs, pci, VFIO)
        sysfs.settle()
        for pci in pcis:
            verify_bound(sysfs, pci)
    except (PciError, OSError) as error:
        left = _roll_back(sysfs, begun, before)
        state = f"; NOT back: {', '.join(left)}" if left else "; all ports are back as they were"
        raise PciError(f"{error}{state if begun else ''}") from error
    return changing


def move_port(sysfs: Sysfs, pci: str, driver: str) -> None:
    """Unbinds a port, lets only ``driver`` have it (empty: any), and reads back who got it."""
    now = sysfs.link(f"{device(pci)}/driver")
    sysfs.write(f"{device(pci)}/driver_override", f"{driver}\n")
    if now:
        sysfs.write(f"/sys/bus/pci/drivers/{now}/unbind", pci)
    sysfs.write("/sys/bus/pci/drivers_probe", pci)
    got = sysfs.link(f"{device(pci)}/driver")
    if driver and got != driver:
        raise PciError(f"{pci} was offered to {driver}, but {got or 'no driver'} has it")


def verify_bound(sysfs: Sysfs, pci: str) -> None:
    """Raises PciError unless vfio-pci has the port and VFIO calls its group viable."""
    port = read_port(sysfs, pci)
    if port.is_bifurcated:
        return
    if port.driver != VFIO:
        raise PciError(f"{pci} was bound to {VFIO}, but now {port.driver or 'no driver'} has it")
    if not sysfs.group_is_viable(port.group):
        raise PciError(f"VFIO says that group {port.group} of {pci} is not viable")


def _roll_back(sysfs: Sysfs, begun: list[str], before: dict[str, str]) -> list[str]:
    """Gives ports back to the drivers they had; gives those that could not."""
    left = []
    for pci in reversed(begun):
        with contextlib.suppress(PciError, OSError):
            move_port(sysfs, pci, "")
        deadline = time.monotonic() + SETTLE_S_MAX
        while sysfs.link(f"{device(pci)}/driver") != before[pci]:
            if time.monotonic() > deadline:
                left.append(pci)
                break
            time.sleep(0.05)
    sysfs.settle()
    return left


def release_ports(sysfs: Sysfs, pcis: list[str]) -> list[str]:
    """Gives ports of vfio-pci back to the kernel's drivers; gives those that changed."""
    changing = [pci for pci in pcis if read_port(sysfs, pci).driver == VFIO]
    for pci in changing:
        move_port(sysfs, pci, "")
        got = sysfs.link(f"{device(pci)}/driver")
        if got in ("", VFIO):
            raise PciError(f"{pci} was released, but {got or 'no driver'} has it")
    sysfs.settle()
    return changing


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Give network ports to vfio-pci, or back.")
    parser.add_argument("action", choices=("bind", "release"))
    parser.add_argument("pci", nargs="+", help="such as 0000:41:00.0")
    options = parser.parse_args(arguments)
    sysfs = Sysfs()
    try:
        if options.action == "bind":
            changed = bind_ports(sysfs, options.pci, set())
        else:
            changed = release_ports(sysfs, options.pci)
    except (PciError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{options.action}: {', '.join(changed) or 'nothing to do'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
