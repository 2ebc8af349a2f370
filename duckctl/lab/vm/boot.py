"""What a qemu lab's guests boot, and the services that answer them.

The answers are those of a real fleet: `duckctl.boot` makes them from the lab's inventory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duckctl.image.manifest import find_image, image_dir
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import network
from duckctl.lab.vm.needs import program
from duckctl.lab.vm.state import VmState
from duckctl.process import tail, wait_until

SERVICES_TIMEOUT_S = 15.0
DHCP_PORT, WAKE_PORT = 67, 9
LEASE_MINUTES = 60
RETRY_MS = 3000  # SeaBIOS tries again when nothing answered its boot request


@dataclass(frozen=True)
class Service:
    """A process beside the ducks; it works when ``udp_port`` is open in its namespace."""

    role: str
    words: tuple[str, ...]
    arguments: tuple[str, ...]
    log: Path
    udp_port: int


def is_file(image: str) -> bool:
    """An image is named by its name, or by the path of a duckos file (`--boot kernel` only)."""
    return "/" in image


def require_image(folder: LabFolder, image: str) -> None:
    """The image is there; duckos is built into the lab's folder when it is not."""
    if is_file(image):
        if not Path(image).is_file():
            raise LabError(f"there is no image file {image}")
        return
    find_image(folder.root, image)


def start_options(folder: LabFolder, state: VmState) -> Sequence[str]:
    """QEMU's options for starting the image itself (`--boot kernel`), or from the network."""
    if state.shape.boot != "kernel":
        return ("-boot", f"strict=on,reboot-timeout={RETRY_MS}")
    if is_file(state.image):
        return ("-kernel", state.image, "-append", "poll=hlt")
    image = find_image(folder.root, state.image)
    place = image_dir(folder.root, image.name)
    if image.kind == "duckos":
        return ("-kernel", str(place / image.files["boot"].path), "-append", "poll=hlt")
    return (
        *("-kernel", str(place / image.files["kernel"].path)),
        *("-initrd", str(place / image.files["initrd"].path)),
        *("-append", image.command_line),
    )


def services(folder: LabFolder, state: VmState) -> list[Service]:
    """The boot service of the host, the switch's listeners, and in proxy mode the other DHCP."""
    found = [
        _own(folder, state, "boot", "host", DHCP_PORT),
        _own(folder, state, "switch", "sw", WAKE_PORT),
    ]
    if state.shape.boot == "proxy":
        config = folder.root / f"router-{state.lab_id}.conf"
        config.write_text(router_config(folder, state), encoding="utf-8")
        word = f"--conf-file={config}"
        command = [program("dnsmasq") or "dnsmasq", "--keep-in-foreground", word]
        arguments = tuple(network.inside(state.namespace("lan"), command))
        found.append(Service("lan", (word,), arguments, _log(folder, "lan"), DHCP_PORT))
    return found


def _own(folder: LabFolder, state: VmState, role: str, space: str, port: int) -> Service:
    words = (f"duck{state.lab_id}-{role}",)
    command = [
        *(sys.executable, "-P", "-m", "duckctl.lab.vm.service", role),
        *("--state-dir", str(folder.root), "--mark", words[0]),
    ]
    arguments = tuple(network.inside(state.namespace(space), command))
    return Service(role, words, arguments, _log(folder, role), port)


def _log(folder: LabFolder, role: str) -> Path:
    return folder.root / "logs" / f"{role}.log"


def router_config(folder: LabFolder, state: VmState) -> str:
    """dnsmasq as the DHCP server that was there before duckctl: addresses, and nothing to boot."""
    lines = ["port=0", "bind-interfaces", "no-ping", "user=root", "log-dhcp", "log-facility=-"]
    lines += [f"dhcp-leasefile={folder.root}/router.leases", "pid-file="]
    for domain in range(1, state.shape.domains + 1):
        lines += [f"interface=lan{domain}", f"dhcp-range=198.18.{domain}.0,static"]
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
    return f"{service.udp_port:04X}" in ports
