"""Real duckd processes for tests: on a free port, killed, started again on the same port."""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet_files import fleet_content, write_json, write_key

from duckctl.native import native_path
from host_runtime.fleet.config import FleetConfig, load_fleet

START_S_MAX = 30.0
STOP_S_MAX = 15.0


class Duck:
    """One duckd process. ``port`` 0 = any free one; it stays the same over restarts."""

    def __init__(
        self, name: str, folder: Path, key_file: Path, binary: Path | None = None, *more: str
    ) -> None:
        self.name = name
        self.port = 0
        self.build = ""
        self._folder = folder
        self._key_file = key_file
        self.identity_file = folder / f"{name}.identity"
        self._binary = binary or native_path("duckd")
        self._more = more
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert self._process is None
        log = (self._folder / f"{self.name}.log").open("a")
        command: list[str | Path] = [self._binary, "--name", self.name]
        command += [
            "--listen",
            f"127.0.0.1:{self.port}",
            "--fleet-pub",
            self._key_file.with_suffix(".pub"),
        ]
        command += ["--identity-file", self.identity_file]
        command += ["--cores", "1", "--poll", "block", "--huge-pages", "never", *self._more]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        words = self._first_line().split()
        assert words[:2] == ["duckd", "ready"], words
        told = dict(word.split("=", 1) for word in words[2:])
        self.port = int(told["listen"].rsplit(":", 1)[1])
        self.build = told["build"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_S_MAX)
            self._close()

    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text()

    def _close(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(START_S_MAX):
                self.kill()
                raise AssertionError(f"{self.name} did not start: {self.log()}")
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError(f"{self.name} ended: {self.log()}")
        return line


@contextlib.contextmanager
def running_ducks(
    folder: Path, count: int, binaries: dict[int, Path] | None = None, *more: str
) -> Iterator[tuple[list[Duck], FleetConfig]]:
    """``count`` ducks d01, d02, ... and the fleet file that names them."""
    key_file = write_key(folder)
    ducks = [
        Duck(f"d{slot + 1:02}", folder, key_file, (binaries or {}).get(slot), *more)
        for slot in range(count)
    ]
    try:
        for duck in ducks:
            duck.start()
        content = fleet_content(key_file, [duck.port for duck in ducks])
        yield ducks, load_fleet(write_json(folder / "fleet.json", content))
    finally:
        for duck in ducks:
            duck.kill()


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll with a deadline; ``what`` says in the failure what did not come."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds} s still not: {what}"
        time.sleep(0.02)
