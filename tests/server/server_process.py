"""The server as its users start it: a process with a run file."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_kit import DUCKLET, ROOT

START_S_MAX = 120.0
STOP_S_MAX = 60.0


@dataclass
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def stop(self, signal_number: int) -> int:
        """Send a signal; returns the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(STOP_S_MAX)


def write_run_file(folder: Path, **changes: Any) -> Path:
    """A run file for ducklet with local experts on any free port."""
    document = {
        "schema_version": 1,
        "model_dir": str(DUCKLET),
        "model_name": "ducklet",
        "port": 0,
        "experts": "local",
        "threads": 1,
        **changes,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(document))
    return path


def server_command(run_file: Path) -> list[str]:
    """How the server is started."""
    return [sys.executable, "-m", "host_runtime.server", "--config", str(run_file)]


def run_to_its_end(run_file: Path) -> subprocess.CompletedProcess[str]:
    """A server that is expected to refuse to start."""
    return subprocess.run(
        server_command(run_file), cwd=ROOT, capture_output=True, text=True, timeout=START_S_MAX
    )


def read_line(process: subprocess.Popen[str], limit_s: float) -> str:
    """The first line of stdout, or what came before the process ended.

    Reads the pipe itself: nothing may hide in a buffer.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    selector = selectors.DefaultSelector()
    selector.register(pipe, selectors.EVENT_READ)
    ends_at = time.monotonic() + limit_s
    text = ""
    while "\n" not in text:
        assert selector.select(max(0.0, ends_at - time.monotonic())), "no line in time"
        part = os.read(pipe, 4096)
        if not part:
            break
        text += part.decode()
    return text


@contextmanager
def running_server(folder: Path, **changes: Any) -> Iterator[ServerProcess]:
    """Start a server and wait for its ready line."""
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            server_command(write_run_file(folder, **changes)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        line = read_line(process, START_S_MAX)
        assert line.startswith("ready http://127.0.0.1:"), log.read_text()
        yield ServerProcess(process, line.split()[1], log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
