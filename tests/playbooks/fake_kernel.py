"""A PCI bus below a folder, with a kernel behind it that binds drivers as Linux does."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def load_playbook_file(name: str) -> ModuleType:
    """A Python file of ``playbooks/`` as a module; only Ansible finds them by itself."""
    path = ROOT / "playbooks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


duck_pci: Any = load_playbook_file("module_utils/duck_pci")


@dataclass
class Device:
    """A device on the bus. ``refuses``: drivers whose probe of it fails."""

    pci: str
    native: str
    group: str = ""
    interface: str = ""
    mac: str = ""
    node: int = 0
    kind: str = "0x020000"
    vendor: str = "0x8086"
    device: str = "0x159b"
    refuses: set[str] = field(default_factory=set)


class FakeKernel:
    """Writes the tree, and answers driver_override, unbind and drivers_probe."""

    def __init__(self, root: Path, devices: list[Device]) -> None:
        self.root = root
        self.devices = {device.pci: device for device in devices}
        self.modules: list[str] = []
        self.writes: list[tuple[str, str]] = []
        self.unviable: set[str] = set()
        for device in devices:
            folder = self.folder(device.pci)
            folder.mkdir(parents=True)
            for name, text in (
                *(("class", device.kind), ("vendor", device.vendor), ("device", device.device)),
                *(("numa_node", str(device.node)), ("driver_override", "(null)")),
            ):
                (folder / name).write_text(f"{text}\n")
            if device.group:
                group = root / "sys/kernel/iommu_groups" / device.group
                (group / "devices" / device.pci).mkdir(parents=True)
                (folder / "iommu_group").symlink_to(group)
            self.probe(device.pci)

    def folder(self, pci: str) -> Path:
        return self.root / "sys/bus/pci/devices" / pci

    def driver(self, pci: str) -> str:
        link = self.folder(pci) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def probe(self, pci: str) -> None:
        """driver_override decides who may have a device; else its native driver."""
        device = self.devices[pci]
        override = (self.folder(pci) / "driver_override").read_text().strip().replace("(null)", "")
        driver = override or device.native
        if self.driver(pci) or not driver or driver in device.refuses:
            return
        (self.folder(pci) / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        if driver == device.native and device.interface:
            (self.folder(pci) / "net" / device.interface).mkdir(parents=True)
            net = self.root / "sys/class/net" / device.interface
            net.mkdir(parents=True)
            (net / "address").write_text(f"{device.mac}\n")

    def unbind(self, pci: str) -> None:
        (self.folder(pci) / "driver").unlink()
        interface = self.devices[pci].interface
        if (self.folder(pci) / "net" / interface).is_dir() and interface:
            (self.folder(pci) / "net" / interface).rmdir()
            (self.folder(pci) / "net").rmdir()
            net = self.root / "sys/class/net" / interface
            (net / "address").unlink()
            net.rmdir()

    def routes(self, interface: str) -> None:
        """A default route by an interface, as /proc/net/route has it."""
        path = self.root / "proc/net/route"
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        path.write_text(
            f"{columns}\n{interface}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        )


class FakeSysfs(duck_pci.Sysfs):  # type: ignore[misc]
    """Sysfs whose writes the fake kernel acts on."""

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel.root)
        self.kernel = kernel

    def write(self, name: str, text: str) -> None:
        self.kernel.writes.append((name, text))
        parts = name.strip("/").split("/")
        if parts[-1] == "driver_override":
            (self.kernel.root / name.lstrip("/")).write_text(text)
        elif parts[-1] == "unbind":
            assert self.kernel.driver(text) == parts[-2], "unbind goes to the driver that has it"
            self.kernel.unbind(text)
        elif parts[-1] == "drivers_probe":
            self.kernel.probe(text)
        else:
            raise OSError(f"no such file: {name}")

    def load_module(self, name: str) -> None:
        self.kernel.modules.append(name)

    def settle(self) -> None:
        return

    def group_is_viable(self, group: str) -> bool:
        return group not in self.kernel.unviable
