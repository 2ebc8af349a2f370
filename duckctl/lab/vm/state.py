"""What a qemu lab has made on this machine: written down before it is made.

A namespace is known by its name (random part included) and its inode, a process by words of its
command line until its pid and start time are on record. ``lab down`` after a crash at any point
finds what there is, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.errors import UsageError
from duckctl.fleet_file import write_json
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm.shape import VmDuck, VmShape
from duckctl.process import ProcessIdentity, boot_id, command_line, identify, is_same

SCHEMA_VERSION = 1
BACKEND = "qemu"


@dataclass(frozen=True)
class Namespace:
    """A network namespace of a lab. ``inode`` 0: it may not have been made yet."""

    name: str
    inode: int = 0

    @property
    def path(self) -> Path:
        return Path("/run/netns") / self.name


@dataclass(frozen=True)
class Process:
    """A process of a lab. ``pid`` 0: it may not have been started yet.

    ``words`` are arguments that, all together, no other process of this machine has.
    """

    role: str
    words: tuple[str, ...]
    pid: int = 0
    start_ticks: int = 0

    def identity(self, boot: str) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks, boot)


@dataclass(frozen=True)
class VmState:
    """The content of a qemu lab's lab.json."""

    lab_id: str
    boot_id: str
    shape: VmShape
    ducks: tuple[VmDuck, ...]
    namespaces: tuple[Namespace, ...]
    processes: tuple[Process, ...] = ()
    is_complete: bool = False
    image: str = ""

    def duck(self, name: str) -> VmDuck:
        for duck in self.ducks:
            if duck.name == name:
                return duck
        names = ", ".join(duck.name for duck in self.ducks)
        raise UsageError(f"the lab has no duck '{name}'", f"its ducks: {names}")

    def namespace(self, role: str) -> str:
        """Name of the namespace ``host``, ``sw``, ``lan``, or of a process duck."""
        return f"duck{self.lab_id}-{role}"

    def process(self, role: str) -> Process | None:
        return next((item for item in self.processes if item.role == role), None)

    def with_process(self, changed: Process) -> VmState:
        others = tuple(item for item in self.processes if item.role != changed.role)
        return replace(self, processes=(*others, changed))

    def without_processes(self, roles: Iterable[str]) -> VmState:
        gone = set(roles)
        return replace(self, processes=tuple(p for p in self.processes if p.role not in gone))

    def with_namespace(self, changed: Namespace) -> VmState:
        spaces = tuple(changed if n.name == changed.name else n for n in self.namespaces)
        return replace(self, namespaces=spaces)

    def running(self, role: str) -> ProcessIdentity | None:
        """The live process of a role, also one whose start was never put on record."""
        process = self.process(role)
        return None if process is None else find(process, self.boot_id)


def find(process: Process, boot: str) -> ProcessIdentity | None:
    """The live process that a record means: by pid and start time, else by its words."""
    if process.pid and is_same(process.identity(boot), process.words):
        return process.identity(boot)
    if process.pid or boot != boot_id():
        return None
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        arguments = command_line(int(entry.name))
        if all(word in arguments for word in process.words):
            return identify(int(entry.name))
    return None


def load(folder: LabFolder) -> VmState | None:
    """The remembered qemu lab of a folder; None when it has none."""
    document = folder.document()
    if document is None or document.get("backend") != BACKEND:
        return None
    try:
        return _parse(document)
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{folder.state_file} is damaged or of another version: {error}",
            "its namespaces are listed by `ip netns`; delete the file when none of them is left",
        ) from error


def _parse(document: dict[str, Any]) -> VmState:
    if document["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {document['schema_version']}")
    body = {k: v for k, v in document.items() if k not in ("schema_version", "backend")}
    shape: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in body.pop("shape").items()
    }
    processes = [
        Process(**{**item, "words": tuple(item["words"])}) for item in body.pop("processes")
    ]
    return VmState(
        shape=VmShape(**shape),
        ducks=tuple(VmDuck(**duck) for duck in body.pop("ducks")),
        namespaces=tuple(Namespace(**item) for item in body.pop("namespaces")),
        processes=tuple(processes),
        **body,
    )


def save(folder: LabFolder, state: VmState) -> None:
    """Replaces the state file whole."""
    document = {"schema_version": SCHEMA_VERSION, "backend": BACKEND, **asdict(state)}
    write_json(folder.state_file, document)


def required(folder: LabFolder) -> VmState:
    state = load(folder) if folder.root.exists() else None
    if state is None:
        raise LabError(
            f"there is no qemu lab in {folder.root}",
            "start one: duckctl lab up --backend qemu --ducks 2",
        )
    return state
