"""What the checks may look at: files below a root, a few commands, free space. Nothing is written.

Tests give a root with a tree of their own and the commands' answers; a person's machine is the
root ``/``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMMAND_S_MAX = 10.0


class Environment:
    """This machine, or a fixture of one."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """A file's text without its last line end; empty if it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def read_bytes(self, name: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except OSError:
            return b""

    def link(self, name: str) -> str:
        """The last part of a link's target; empty if there is none."""
        try:
            return self.path(name).readlink().name
        except OSError:
            return ""

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted; empty if it cannot be read."""
        try:
            return sorted(item.name for item in self.path(folder).iterdir())
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """Files below the root, as absolute names."""
        found = sorted(self.root.glob(pattern.lstrip("/")))
        return ["/" + path.relative_to(self.root).as_posix() for path in found]

    def command(self, words: Sequence[str]) -> str | None:
        """What a command says; None if it is not there, fails, or takes too long."""
        try:
            done = subprocess.run(
                list(words), capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def free_bytes(self, name: str) -> int:
        return shutil.disk_usage(self.path(name)).free
