"""One QEMU guest that boots duckos.img: its serial lines, its monitor, its end."""

from __future__ import annotations

import re
import selectors
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

QEMU = "qemu-system-x86_64"
OVMF = Path("/usr/share/ovmf/OVMF.fd")
UP = r"^duckos: up after (\d+) us$"


class Guest:
    """``with Guest(folder, "-kernel", image) as guest: guest.wait_for(UP)``"""

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        memory: str = "128M",
        cpu: str = "max",
        cores: int = 1,
        network: bool = False,
    ) -> None:
        if shutil.which(QEMU) is None:
            pytest.skip(f"{QEMU} is not installed (package qemu-system-x86)")
        self.lines: list[str] = []
        self._monitor = folder / "monitor"
        self._rest = b""
        self._command: list[str | Path] = [
            *(QEMU, "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", str(cores), "-m", memory),
            *("-display", "none", "-serial", "stdio", "-no-reboot"),
            *("-monitor", f"unix:{self._monitor},server=on,wait=off"),
            *(() if network else ("-nic", "none")),
            *arguments,
        ]

    def __enter__(self) -> Guest:
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        self._output.close()

    def wait_for(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """The first line, old or new, that matches."""
        end = time.monotonic() + seconds
        seen = 0
        while True:
            for line in self.lines[seen:]:
                if found := re.search(pattern, line):
                    return found
            seen = len(self.lines)
            if not self._read(end - time.monotonic()):
                pytest.fail(f"no line like {pattern!r} in:\n" + "\n".join(self.lines))

    def _read(self, seconds: float) -> bool:
        """False: no more output, or none in time."""
        if seconds <= 0 or not self._selector.select(seconds):
            return False
        data = self._output.read1(65536)  # type: ignore[attr-defined]
        *whole, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode("ascii", "replace").rstrip("\r") for line in whole]
        return bool(data)

    def monitor(self, command: str) -> str:
        """What the command prints."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._monitor))
            connection.settimeout(20)
            self._until_prompt(connection)
            connection.sendall(command.encode() + b"\n")
            return self._until_prompt(connection).decode("ascii", "replace")

    @staticmethod
    def _until_prompt(connection: socket.socket) -> bytes:
        """The prompt at the start of a line: the command is done, not only echoed."""
        data = b""
        while not data.endswith(b"\n(qemu) "):
            try:
                more = connection.recv(4096)
            except ConnectionResetError:
                return data
            if not more:
                return data  # the command ended the guest
            data += more
        return data

    def exit_code(self, seconds: float = 30.0) -> int:
        """Waits until the guest has ended by itself."""
        return self._process.wait(seconds)
