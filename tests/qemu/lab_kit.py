"""For tests of qemu labs: shapes, a folder that is cleaned up, why a machine cannot run them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from duckctl.errors import DuckError
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab, needs
from duckctl.lab.vm.shape import VmShape

SHAPE = VmShape(
    ducks=1,
    domains=1,
    kinds=("qemu",),
    firmware=("bios",),
    nics=("virtio",),
    cores=(1,),
    memory_mib=(64,),
    boot="kernel",
    mtu=1500,
    poll="block",
    dispatch="broadcast",
)
PROCESSES = replace(SHAPE, kinds=("process",))


def why_not(shape: VmShape) -> str:
    """Why this machine cannot have such a lab; empty when it can."""
    try:
        needs.require(shape)
    except DuckError as error:
        return f"{error.message}; {error.hint}"
    return ""


@contextmanager
def lab_folder(path: Path) -> Iterator[LabFolder]:
    """A folder whose lab is taken down at the end, whatever happened."""
    folder = LabFolder(path)
    try:
        yield folder
    finally:
        lab.down(folder)


def namespaces() -> set[str]:
    """Names of this machine's network namespaces."""
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in said.stdout.splitlines() if line}


def processes_naming(text: str) -> list[int]:
    """Processes with this text among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if text.encode() in arguments:
            found.append(int(entry.name))
    return found
