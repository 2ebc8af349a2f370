"""Everything that boot answers depend on, in one frozen value; and where its files lie."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from duckctl.boot.intents import INVENTORY_INTENT, Intent, Intents
from duckctl.image.manifest import ImageManifest, image_dir, list_images
from duckctl.inventory import Domain, Duck, Fleet

Mode = Literal["dhcp", "proxy", "off"]
Unknown = Literal["discover", "boot", "ignore"]

HTTP_PORT = 80
SIOCGIFADDR = 0x8915
IPXE_DIRS = (Path("/usr/lib/ipxe"), Path("/usr/share/ipxe"), Path("/usr/lib/ipxe/qemu"))
IPXE_FILES = ("undionly.kpxe", "snponly.efi", "ipxe.efi")


def boots_from_network(duck: Duck) -> bool:
    """True for a box that this host's boot service answers; process ducks have no firmware."""
    is_served = duck.mac is not None and duck.domain.boot != "off"
    return is_served and not duck.address.is_loopback


@dataclass(frozen=True)
class BootPaths:
    """The files of the boot service, all below one folder (``<fleet dir>/boot``)."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "dnsmasq.conf"

    @property
    def hosts(self) -> Path:
        """Reservations."""
        return self.root / "hosts"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def pid_file(self) -> Path:
        return self.root / "dnsmasq.pid"

    @property
    def tftp_config(self) -> Path:
        """Of the process that does TFTP alone (``duckctl.boot.service``)."""
        return self.root / "tftp.conf"

    @property
    def tftp_pid_file(self) -> Path:
        return self.root / "tftp.pid"

    @property
    def dnsmasq_log(self) -> Path:
        return self.root / "dnsmasq.log"

    @property
    def http_log(self) -> Path:
        """One JSON object per request."""
        return self.root / "http.jsonl"

    @property
    def findings(self) -> Path:
        """What the service found out (``duckctl.boot.watch``), one JSON object each."""
        return self.root / "findings.jsonl"

    @property
    def tftp(self) -> Path:
        return self.root / "tftp"

    @property
    def intents(self) -> Path:
        return self.root / "intents.json"


@dataclass(frozen=True)
class BootPolicy:
    """Choices that are not the inventory's. Units are in the names."""

    mode: Mode | None = None  # None: as each domain's ``domain_boot`` says
    unknown: Unknown | None = None  # None: as the fleet's ``fleet_unknown_ducks`` says
    http_port: int = HTTP_PORT
    pool_addresses_max: int = 64  # for boxes without a reservation
    pool_lease_s: int = 300  # short: firmware, boot loader and system may each ask with an own id
    duck_lease_s: int = 43_200
    router_advertisements: bool = True  # iPXE builds wait for IPv6 otherwise (seen: 13 s)
    user: str = "root"  # dnsmasq drops to this user after it has its ports


@dataclass(frozen=True)
class BootPlan:
    """Input of every decision. ``ipxe_files``: the boot loaders that are installed, by name;
    ``interfaces``: this machine's port of each domain, where it is known."""

    fleet: Fleet
    paths: BootPaths
    images: Mapping[str, ImageManifest]
    intents: Mapping[str, Intent] = field(default_factory=dict)
    policy: BootPolicy = field(default_factory=BootPolicy)
    ipxe_files: Mapping[str, Path] = field(default_factory=dict)
    interfaces: Mapping[str, str] = field(default_factory=dict)

    def mode_of(self, domain: Domain) -> Mode:
        """How this domain is served; on loopback nobody boots."""
        return "off" if domain.subnet.is_loopback else self.policy.mode or domain.boot

    @property
    def unknown(self) -> Unknown:
        """What happens to a MAC that no duck has."""
        return self.policy.unknown or self.fleet.unknown_ducks

    def intent_of(self, duck: Duck) -> Intent:
        """The duck's entry in the intents file, or the inventory's."""
        return self.intents.get(duck.name, INVENTORY_INTENT)

    def image_name_of(self, duck: Duck | None) -> str:
        """The image a duck boots (None: a box that no duck is), whether it is built or not."""
        if duck is None:
            return self.default_image
        return self.intent_of(duck).image or duck.image

    @property
    def default_image(self) -> str:
        """What unknown boxes boot when they may: the image that most ducks have."""
        kinds = [duck.image for duck in self.fleet.ducks]
        return max(sorted(set(kinds)), key=kinds.count)

    def folder_of(self, image: ImageManifest) -> Path:
        return image_dir(fleet_dir(self.fleet), image.name)


def fleet_dir(fleet: Fleet) -> Path:
    """The folder of the inventory: keys, images, weights' plans and boot files lie in it."""
    return fleet.path.resolve().parent


def boot_paths(fleet: Fleet) -> BootPaths:
    """Where the boot service of a fleet keeps its files."""
    return BootPaths(fleet_dir(fleet) / "boot")


def find_interfaces(fleet: Fleet, sysfs: Path = Path("/sys")) -> dict[str, str]:
    """This machine's interface of each domain: by PCI address, else MAC, else name, else the one
    that has the host's address. Names change with kernels, so what is better comes first.
    """
    found: dict[str, str] = {}
    ports = sorted((sysfs / "class/net").glob("*"))
    macs = {_first_line(port / "address"): port.name for port in reversed(ports)}
    for domain in fleet.domains:
        if domain.host_pci is not None:
            names = sorted((sysfs / "bus/pci/devices" / domain.host_pci / "net").glob("*"))
            if names:
                found[domain.name] = names[0].name
        elif domain.host_mac is not None and domain.host_mac in macs:
            found[domain.name] = macs[domain.host_mac]
        elif domain.host_mac is None and domain.host_nic in {port.name for port in ports}:
            found[domain.name] = str(domain.host_nic)
        elif domain.host_mac is None and domain.host_nic is None:
            owner = next((p for p in ports if _address_of(p.name) == domain.host_address), None)
            if owner is not None:
                found[domain.name] = owner.name
    return found


def _address_of(interface: str) -> IPv4Address | None:
    """The first IPv4 address of an interface of this network namespace (netdevice(7))."""
    request = struct.pack("16s24x", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        try:
            answer = fcntl.ioctl(question, SIOCGIFADDR, request)
        except OSError:
            return None
    return IPv4Address(answer[20:24])


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def find_ipxe_files(folders: tuple[Path, ...] = IPXE_DIRS) -> dict[str, Path]:
    """The iPXE boot loaders of the distribution's package, by file name."""
    found = {}
    for name in IPXE_FILES:
        candidates = [folder / name for folder in folders if (folder / name).is_file()]
        if candidates:
            found[name] = candidates[0]
    return found


def plan_boot(fleet: Fleet, policy: BootPolicy | None = None) -> BootPlan:
    """The plan of a fleet as its files are now: images, intents, installed boot loaders."""
    paths = boot_paths(fleet)
    return BootPlan(
        fleet=fleet,
        paths=paths,
        images={image.name: image for image in list_images(fleet_dir(fleet))},
        intents=Intents(paths.intents).read(),
        policy=policy or BootPolicy(),
        ipxe_files=find_ipxe_files(),
        interfaces=find_interfaces(fleet),
    )
