"""What a lab folder remembers: its shape, and for each duck its address and process.

lab.json        the state, replaced whole at each change
inventory.yml   the fleet as every other command reads it
fleet.key       the fleet's private key; fleet.pub: its public half; fleet.pins.json: the ducks'
                keys, pinned; identities/: the process ducks' own keys
logs/d01.log    what a duck said
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError, UsageError
from duckctl.fleet_file import write_json
from duckctl.process import ProcessIdentity, is_same, wait_until

SCHEMA_VERSION = 1
LOCK_TIMEOUT_S = 10.0
STATE_BYTES_MAX = 1 << 20


class LabError(DuckError):
    """The lab could not do what it was asked for."""


@dataclass(frozen=True)
class LabShape:
    """What `lab up` was asked for. Addresses of domain d are 127.21.d.11 and following."""

    ducks: int
    domains: int
    cores_per_duck: int
    mtu: int
    poll: str


@dataclass(frozen=True)
class LabDuck:
    """One duck of a lab. ``port`` 0: it has not told its port yet; ``pid`` 0: no process."""

    name: str
    domain: str
    address: str
    port: int = 0
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    build: str = ""

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks, self.boot_id)

    def is_running(self) -> bool:
        """True if the recorded process lives and is this duck."""
        return self.pid > 0 and is_same(self.process, ("--name", self.name))


@dataclass(frozen=True)
class LabState:
    """The content of lab.json."""

    shape: LabShape
    ducks: tuple[LabDuck, ...]

    def duck(self, name: str) -> LabDuck:
        for duck in self.ducks:
            if duck.name == name:
                return duck
        names = ", ".join(duck.name for duck in self.ducks)
        raise UsageError(f"the lab has no duck '{name}'", f"its ducks: {names}")

    def with_duck(self, changed: LabDuck) -> LabState:
        ducks = tuple(changed if duck.name == changed.name else duck for duck in self.ducks)
        return replace(self, ducks=ducks)


@dataclass(frozen=True)
class LabFolder:
    """Paths of one lab."""

    root: Path

    @property
    def state_file(self) -> Path:
        return self.root / "lab.json"

    @property
    def inventory(self) -> Path:
        return self.root / "inventory.yml"

    @property
    def key_file(self) -> Path:
        return self.root / "fleet.key"

    @property
    def public_key_file(self) -> Path:
        return self.root / "fleet.pub"

    def identity(self, name: str) -> Path:
        """A process duck's own key; it makes the file at its first start."""
        return self.root / "identities" / f"{name}.key"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def create(self) -> None:
        """Makes the folder, for its owner only; one that is there keeps its mode.

        Raises UsageError.
        """
        try:
            for part in (self.root, self.root / "logs", self.root / "identities"):
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make the lab's folder {self.root}: {error.strerror}",
                "name a folder that can be written to with --state-dir",
            ) from None

    def document(self) -> dict[str, Any] | None:
        """The state file as it is; None when there is no lab in this folder."""
        try:
            document = json.loads(self.state_file.read_text(encoding="utf-8"))
            if not isinstance(document, dict):
                raise TypeError("no JSON object")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LabError(f"cannot read {self.state_file}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error
        return document

    def backend(self) -> str:
        """``process`` or ``qemu``; empty when there is no lab in this folder."""
        document = self.document()
        return "" if document is None else str(document.get("backend", "process"))

    def load(self) -> LabState | None:
        """The remembered process lab; None when there is none in this folder."""
        document = self.document()
        if document is None:
            return None
        try:
            if document["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version {document['schema_version']}")
            if "backend" in document:
                raise ValueError(f"a lab of the backend {document['backend']}")
            return LabState(
                LabShape(**document["shape"]),
                tuple(LabDuck(**duck) for duck in document["ducks"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> LabError:
        return LabError(
            f"{self.state_file} is damaged or of another version: {error}",
            "end its duckd processes by hand if there are any, then delete the file",
        )

    def save(self, state: LabState) -> None:
        write_json(
            self.state_file,
            {
                "schema_version": SCHEMA_VERSION,
                "shape": asdict(state.shape),
                "ducks": [asdict(duck) for duck in state.ducks],
            },
        )

    def forget(self) -> None:
        self.state_file.unlink(missing_ok=True)
        self.inventory.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One command at a time works on a lab; a crashed one leaves no lock behind.

        Makes the folder: who only changes a lab first looks whether there is one.
        """
        self.create()
        try:
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LabError(f"cannot write {self.root / 'lock'}: {error.strerror}") from None
        try:
            if not wait_until(lambda: _try_lock(descriptor), LOCK_TIMEOUT_S):
                owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise LabError(
                    f"another duckctl (pid {owner or 'unknown'}) works on the lab in {self.root}",
                    "wait for it to end, or use another --state-dir",
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def default_folder() -> Path:
    """$XDG_STATE_HOME/duckctl/lab, by default ~/.local/state/duckctl/lab."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "duckctl" / "lab"
