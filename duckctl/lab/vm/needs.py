"""What a qemu lab needs of this machine; what is missing is named with its Debian package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from duckctl.lab.state import LabError
from duckctl.lab.vm.shape import VmShape

# capability(7): the kernel's numbers.
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_SYS_ADMIN = 21
OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
OVMF_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
IPXE_ROMS = Path("/usr/lib/ipxe/qemu")
QEMU = "qemu-system-x86_64"
PROGRAMS = {QEMU: "qemu-system-x86", "dnsmasq": "dnsmasq-base", "ip": "iproute2"}


def missing_privileges(status: str) -> list[str]:
    """Names of the capabilities that /proc/self/status lacks for namespaces and bridges."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.M)
    effective = int(match[1], 16) if match else 0
    wanted = {
        "CAP_NET_ADMIN": CAP_NET_ADMIN,
        "CAP_NET_RAW": CAP_NET_RAW,
        "CAP_SYS_ADMIN": CAP_SYS_ADMIN,
    }
    return [name for name, bit in wanted.items() if not effective >> bit & 1]


def missing_packages(shape: VmShape) -> list[str]:
    """Debian packages whose files this shape needs and this machine has not."""
    names = ["ip", "dnsmasq"] + ([QEMU] if "qemu" in shape.kinds else [])
    found = [PROGRAMS[name] for name in names if program(name) is None]
    if "qemu" in shape.kinds and "uefi" in shape.firmware:
        found += _without_files((OVMF_CODE, OVMF_VARIABLES), "ovmf")
    if "qemu" in shape.kinds and shape.boot != "kernel":
        found += _without_files((IPXE_ROMS,), "ipxe-qemu")
    if not Path("/dev/net/tun").exists() and "qemu" in shape.kinds:
        raise LabError(
            "this machine has no /dev/net/tun: guests cannot be connected",
            "load the kernel module: modprobe tun (in a container: pass --device /dev/net/tun)",
        )
    return found


def _without_files(paths: Iterable[Path], package: str) -> list[str]:
    return [] if all(path.exists() for path in paths) else [package]


def program(name: str) -> str | None:
    """Path of a system program; /usr/sbin is searched even when PATH of a user has none."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def environment() -> dict[str, str]:
    """The environment of what runs in the lab: as it is, with sbin in PATH."""
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {**os.environ, "PATH": f"{path}:/usr/sbin:/sbin"}


def require(shape: VmShape) -> None:
    """Raises LabError with what to do when this lab cannot work on this machine."""
    lacking = missing_privileges(Path("/proc/self/status").read_text(encoding="ascii"))
    if lacking:
        raise LabError(
            f"a qemu lab makes network namespaces, which needs {', '.join(lacking)}",
            "run it as root (sudo duckctl lab up --backend qemu …); the process backend needs none",
        )
    if shape.bmc and importlib.util.find_spec("pyghmi") is None:
        raise LabError("--bmc needs the Python package pyghmi", "pip install pyghmi")
    packages = missing_packages(shape)
    if packages:
        raise LabError(
            f"a qemu lab of this shape needs packages that are missing: {', '.join(packages)}",
            f"apt-get install {' '.join(packages)}",
        )
