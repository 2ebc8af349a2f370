"""What a qemu lab's guests boot, and the services that answer them.

The answers are those of a real fleet: `duckctl.boot` makes them from the lab's inventory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duckctl.console import talk
from duckctl.errors import UsageError
from duckctl.image.duckos import DuckosOptions, build_duckos
from duckctl.image.fleet_public import public_id, public_path, read_public
from duckctl.image.linux import KernelChoice, LinuxOptions, build_linux
from duckctl.image.manifest import find_image, image_dir, list_images
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import network
from duckctl.lab.vm.needs import program
from duckctl.lab.vm.state import VmState
from duckctl.native import native_path
from duckctl.process import tail, wait_until

SERVICES_TIMEOUT_S = 15.0
DHCP_PORT, TFTP_PORT, WAKE_PORT = 67, 69, 9
LEASE_MINUTES = 60
RETRY_MS = 3000  # SeaBIOS tries again when nothing answered its boot request


@dataclass(frozen=True)
class Service:
    """A process beside the ducks; it works when its ports are open in its namespace."""

    role: str
    words: tuple[str, ...]
    arguments: tuple[str, ...]
    log: Path
    udp_ports: tuple[int, ...]


def prepare_image(folder: LabFolder, wanted: str) -> None:
    """Builds what guests boot, with the lab's key, into the lab's folder.

    ``wanted``: ``duckos``, ``linux``, or the file of another duckos.img.
    """
    public = read_public(public_path(folder.key_file))
    if wanted == "linux":
        _prepare_linux(folder, public)
        return
    if wanted != "duckos" and "/" not in wanted:
        raise UsageError(f"--image '{wanted}' is neither duckos, nor linux, nor a FILE with a '/'")
    source = None if wanted == "duckos" else Path(wanted)
    if source is not None and not source.is_file():
        raise LabError(f"there is no image file {source}")
    # A guest that polls without rest takes a whole core of this machine.
    build_duckos(folder.root, public, options=DuckosOptions(poll="hlt"), source=source)


def _prepare_linux(folder: LabFolder, public: str) -> None:
    """An image of this installation and key is kept: it takes a while to build."""
    build = native_path("build-hash").read_text(encoding="ascii").strip()
    wanted = ("linux", build, public_id(public))
    images = list_images(folder.root)
    if wanted in [(image.name, image.build_hash, image.fleet_public_id) for image in images]:
        return
    options = LinuxOptions(poll="block")
    try:
        build_linux(folder.root, public, kernel=KernelChoice(), options=options)
    except UsageError:
        talk("this machine has no installed kernel: apt fetches Debian's package")
        build_linux(folder.root, public, kernel=KernelChoice(download=True), options=options)


def start_options(folder: LabFolder, state: VmState) -> Sequence[str]:
    """QEMU's options for starting the image itself (`--boot kernel`), or from the network."""
    if "qemu" not in state.shape.kinds:
        return ()
    if state.shape.boot != "kernel":
        return ("-boot", f"strict=on,reboot-timeout={RETRY_MS}")
    image = find_image(folder.root, "linux" if state.image == "linux" else "duckos")
    place = image_dir(folder.root, image.name)
    if image.kind == "duckos":
        return ("-kernel", str(place / image.files["boot"].path))
    return (
        *("-kernel", str(place / image.files["kernel"].path)),
        *("-initrd", str(place / image.files["initrd"].path)),
        *("-append", image.command_line),
    )


def services(folder: LabFolder, state: VmState) -> list[Service]:
    """The boot service of the host, the switch's listeners, and in proxy mode the other DHCP."""
    found = [
        _own(folder, state, "boot", "host", (DHCP_PORT, TFTP_PORT)),
        _own(folder, state, "switch", "sw", (WAKE_PORT,)),
    ]
    if state.shape.bmc:
        ports = tuple(duck.bmc_port for duck in state.ducks if duck.kind == "qemu")
        found.append(_own(folder, state, "bmc", "sw", ports))
    if state.shape.boot == "proxy":
        config = folder.root / f"router-{state.lab_id}.conf"
        config.write_text(router_config(folder, state), encoding="utf-8")
        word = f"--conf-file={config}"
        command = [program("dnsmasq") or "dnsmasq", "--keep-in-foreground", word]
        arguments = tuple(network.inside(state.namespace("lan"), command))
        found.append(Service("lan", (word,), arguments, _log(folder, "lan"), (DHCP_PORT,)))
    return found


def _own(
    folder: LabFolder, state: VmState, role: str, space: str, ports: tuple[int, ...]
) -> Service:
    words = (f"duck{state.lab_id}-{role}",)
    command = [
        *(sys.executable, "-P", "-m", "duckctl.lab.vm.service", role),
        *("--state-dir", str(folder.root), "--mark", words[0]),
    ]
    arguments = tuple(network.inside(state.namespace(space), command))
    return Service(role, words, arguments, _log(folder, role), ports)


def _log(folder: LabFolder, role: str) -> Path:
    return folder.root / "logs" / f"{role}.log"


def router_config(folder: LabFolder, state: VmState) -> str:
    """dnsmasq as the DHCP server that was there before duckctl: addresses, and nothing to boot."""
    lines = ["port=0", "bind-interfaces", "no-ping", "user=root", "log-dhcp", "log-facility=-"]
    # As home routers do; iPXE waits 13 s where nobody answers its router solicitation.
    lines += ["enable-ra"]
    lines += [f"dhcp-leasefile={folder.root}/router.leases", "pid-file="]
    for domain in range(1, state.shape.domains + 1):
        lines += [f"interface=lan{domain}", f"dhcp-range=198.18.{domain}.0,static"]
        lines += [f"dhcp-range=::,constructor:lan{domain},ra-only"]
    lines += [
        f"dhcp-host={duck.mac},{duck.address},{duck.name},{LEASE_MINUTES}m" for duck in state.ducks
    ]
    lines.append("dhcp-option=option:router")  # no gateway: nothing leaves the lab
    return "\n".join(lines) + "\n"


def await_services(folder: LabFolder, state: VmState) -> None:
    """Waits until each service has its port. Raises LabError with the end of its log."""
    for service in services(folder, state):
        if not wait_until(partial(_is_open, state, service), SERVICES_TIMEOUT_S):
            raise LabError(
                f"the lab's service '{service.role}' did not start; the end of {service.log}:\n"
                f"{tail(service.log)}"
            )


def _is_open(state: VmState, service: Service) -> bool:
    identity = state.running(service.role)
    if identity is None:
        raise LabError(
            f"the lab's service '{service.role}' ended; the end of {service.log}:\n"
            f"{tail(service.log)}"
        )
    try:
        table = Path(f"/proc/{identity.pid}/net/udp").read_text(encoding="ascii")
    except OSError:
        return False
    ports = [line.split()[1].rpartition(":")[2] for line in table.splitlines()[1:]]
    return all(f"{port:04X}" in ports for port in service.udp_ports)
