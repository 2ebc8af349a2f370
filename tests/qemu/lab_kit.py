"""For tests of qemu labs: shapes, a folder that is cleaned up, why a machine cannot run them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from duckctl.bench.boot import ONE
from duckctl.errors import DuckError
from duckctl.health import probe
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab, needs, stages
from duckctl.lab.vm.shape import VmShape
from duckctl.lab.vm.stages import Timing
from duckctl.lab.vm.state import VmState

SHAPE = replace(ONE, boot="kernel")
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


def namespaces_of(lab_id: str) -> set[str]:
    """Network namespaces of a lab, by the digits in their names."""
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = {line.split()[0] for line in said.stdout.splitlines() if line}
    return {name for name in names if name.startswith(f"duck{lab_id}-")}


CLONE_NEWNET = 0x40000000  # setns(2)


@contextmanager
def inside(state: VmState) -> Iterator[None]:
    """This thread, and what it starts, uses the network of the lab's host."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{state.namespace('host')}", os.O_RDONLY)
    try:
        assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        libc.setns(own, CLONE_NEWNET)
        os.close(there)
        os.close(own)


def say(text: str) -> None:
    """A figure for the person who reads the test's output."""
    sys.stdout.write(text + "\n")


def boot(folder: LabFolder, shape: VmShape) -> tuple[VmState, list[Timing]]:
    """A lab whose ducks have all answered, with the times of their boots."""
    marks = stages.LogMarks.now(folder)
    state = lab.up(folder, shape, "duckos")
    timings = stages.await_ducks(folder, state, [duck.name for duck in state.ducks], marks)
    for timing in timings:
        say(str(timing.document()))
    return state, timings


def answers(folder: LabFolder, state: VmState) -> list[dict[str, Any]]:
    """What the ducks tell of themselves."""
    fleet = load_inventory(folder.inventory)
    found: list[dict[str, Any]] = probe(
        fleet, fleet.ducks, 10.0, ("--stats",), lab.require_inside(state)
    )["ducks"]
    return found
