"""One real duckd process for tests: any address, any namespace; killed, and started again."""

from __future__ import annotations

import ctypes
import selectors
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from duckctl.native import native_path

START_S_MAX = 10.0
STOP_S_MAX = 5.0


def new_key() -> bytes:
    """A fleet's private key."""
    private, public = ctypes.create_string_buffer(32), ctypes.create_string_buffer(65)
    assert _library().duckhost_make_key(private, public) == 0
    return private.raw


def public_of(key: bytes) -> bytes:
    public = ctypes.create_string_buffer(65)
    assert _library().duckhost_public_key(key, public) == 0
    return public.raw


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(native_path("libduckhost.so")))


class DuckdProcess:
    """duckd on ``address``, obeying the holder of the private ``key``.

    ``port`` 0 = any free one, which then stays over restarts.

    ``prefix`` goes in front of the command, e.g. ("ip", "netns", "exec", NAME).
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        key: bytes,
        binary: Path,
        address: str = "127.0.0.1",
        port: int = 0,
        prefix: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.address = address
        self.port = port
        self.build = ""
        self._binary = binary
        self._prefix = tuple(prefix)
        self._arguments = tuple(arguments)
        self._log = folder / f"{name}.log"
        self._public_file = folder / f"{name}.pub"
        self._public_file.write_text(f"duck-p256-public:{public_of(key).hex()}\n")
        self._public_file.chmod(0o644)
        self.identity_file = folder / f"{name}.identity"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert self._process is None
        command = [*self._prefix, str(self._binary), "--name", self.name]
        command += [
            "--listen",
            f"{self.address}:{self.port}",
            "--fleet-pub",
            str(self._public_file),
        ]
        command += ["--identity-file", str(self.identity_file)]
        command += ["--cores", "1", "--poll", "block", "--huge-pages", "never", *self._arguments]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        told = dict(word.split("=", 1) for word in self._ready_line().split()[2:])
        self.port = int(told["listen"].rsplit(":", 1)[1])
        self.build = told["build"]

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, as a power cut would; nothing when it does not run."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_S_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def log(self) -> str:
        return self._log.read_text()

    def _ready_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(START_S_MAX) else ""
        if not line.startswith("duckd ready "):
            self.kill()
            raise AssertionError(f"{self.name} did not start: {line!r} {self.log()}")
        return line
