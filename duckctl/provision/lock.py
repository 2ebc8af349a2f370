"""One run at a time may start and restart the ducks of a fleet. The kernel gives the lock back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duckctl.errors import DuckError
from duckctl.rights import told

OWNER_BYTES_MAX = 256


class RunningError(DuckError):
    """Another run works on the fleet."""


@contextmanager
def fleet_lock(folder: Path, fleet: str, what: str) -> Iterator[None]:
    """Holds the fleet; raises RunningError that names who does. ``what``: e.g. ``provision``."""
    path = folder / f".{fleet}.run.lock"
    with told(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, OWNER_BYTES_MAX, 0).decode("utf-8", "replace").strip()
            raise RunningError(
                f"another duckctl works on the fleet '{fleet}': {owner or 'unknown'}",
                "wait for it to end; look on: duckctl status -w",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{what}, pid {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
