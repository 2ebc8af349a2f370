"""Runs the demo: ducks, weights, server, prompts; and ends all of it, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.chat_client import ChatClient
from duckctl.console import talk
from duckctl.demo.prompts import PROMPTS, Answer, ask, check
from duckctl.demo.transcript import Transcript
from duckctl.errors import DuckError
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.model_dir import resolve_model_dir
from duckctl.process import (
    ProcessIdentity,
    descendants,
    die_with_parent,
    is_same,
    read_ready_line,
    tail,
    wait_until,
)

MODEL = "ducklet"
SHARD_TIMEOUT_S = 120.0
SERVER_READY_TIMEOUT_S = 90.0
SERVER_END_TIMEOUT_S = 15.0
GONE_TIMEOUT_S = 5.0


class DemoError(DuckError):
    """A step of the demo failed."""


@dataclass(frozen=True)
class DemoResult:
    """Both answers, the ducks as the server saw them, and the seconds of each step."""

    answers: tuple[Answer, ...]
    ducks: tuple[dict[str, Any], ...]
    seconds: dict[str, float]


def _duckctl(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "duckctl", *arguments]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Shutting down takes bounded time; a further Ctrl-C must not cut it short."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def duck_counts() -> Sequence[int]:
    """The numbers of ducks that the demo's model can be spread over in equal slices."""
    from duckctl.shards.layout import valid_duck_counts

    config = json.loads((resolve_model_dir(MODEL) / "config.json").read_text(encoding="utf-8"))
    return valid_duck_counts(config["moe_intermediate_size"])


def run_demo(ducks: int, weight_format: str, transcript: Transcript) -> DemoResult:
    """The whole chain with ``ducks`` process ducks; every process has ended when this returns."""
    seconds: dict[str, float] = {}
    started: list[ProcessIdentity] = []
    with tempfile.TemporaryDirectory(prefix="duckctl-demo-") as name:
        root = Path(name)
        folder = LabFolder(root / "lab")
        try:
            with _timed(seconds, "lab"):
                talk(f"[1/4] starting {ducks} ducks")
                lab.up(folder, LabShape(ducks, 1, 1, 1500, "block"), tied=True)
            with _timed(seconds, "shard"):
                talk(f"[2/4] converting {MODEL}'s experts for them")
                _shard(root, folder, weight_format)
            server = _server(root, folder, weight_format, seconds, started)
            with server as url, _timed(seconds, "answers"):
                answers, states = _ask(url, transcript)
        finally:
            with _undisturbed(), _timed(seconds, "shutdown"):
                started += descendants(os.getpid())
                lab.down(folder)
                _require_gone(started)
        talk("everything is shut down again")
    return DemoResult(tuple(answers), tuple(states), seconds)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = round(time.monotonic() - started, 3)


def _shard(root: Path, folder: LabFolder, weight_format: str) -> None:
    arguments = [
        *("shard-weights", MODEL, "--inventory", str(folder.inventory)),
        *("--cache-dir", str(root / "cache"), "--format", weight_format),
    ]
    with (root / "shard.log").open("wb") as log:
        process = subprocess.Popen(
            _duckctl(arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=die_with_parent,
        )
        try:
            code = process.wait(SHARD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(
                f"shard-weights did not end within {SHARD_TIMEOUT_S:.0f} s:\n"
                f"{tail(root / 'shard.log')}"
            ) from None
        finally:
            _end(process)
    if code != 0:
        raise DemoError(f"shard-weights failed:\n{tail(root / 'shard.log')}")


@contextmanager
def _server(
    root: Path,
    folder: LabFolder,
    weight_format: str,
    seconds: dict[str, float],
    started: list[ProcessIdentity],
) -> Iterator[str]:
    """A running server; gives its address. Its processes are added to ``started`` at the end."""
    talk("[3/4] starting the server")
    arguments = [
        *("--quiet", "serve", MODEL, "--inventory", str(folder.inventory), "--port", "0"),
        *("--device", "cpu"),  # the reference answers are the CPU path's
        *("--cache-dir", str(root / "cache"), "--format", weight_format),
        *("--log-level", "warning"),
    ]
    with (root / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            _duckctl(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
            preexec_fn=die_with_parent,
        )
    try:
        with _timed(seconds, "server start"):
            url = _await_server(server, root / "serve.log")
        yield url
    finally:
        with _undisturbed():
            started += descendants(os.getpid())
            _end(server)


def _ask(url: str, transcript: Transcript) -> tuple[list[Answer], list[dict[str, Any]]]:
    """Both prompts, answered and checked, and the ducks' counters afterwards."""
    talk("[4/4] asking through the API")
    answers = []
    with ChatClient(url) as client:
        for prompt in PROMPTS:
            answer = ask(client, MODEL, prompt, transcript)
            check(prompt, answer, resolve_model_dir(MODEL))
            answers.append(answer)
        states: list[dict[str, Any]] = client.readiness()["ducks"]
    return answers, states


def _await_server(server: subprocess.Popen[bytes], log: Path) -> str:
    assert server.stdout is not None
    line = read_ready_line(server.stdout, SERVER_READY_TIMEOUT_S)
    if line is None or not line.startswith("ready http://"):
        ended = line is None and wait_until(lambda: server.poll() is not None, GONE_TIMEOUT_S)
        if line is not None:
            what = f"printed {line!r} instead of its ready line"
        elif ended:
            what = f"failed with exit code {server.returncode}"
        else:
            what = f"did not become ready within {SERVER_READY_TIMEOUT_S:.0f} s"
        raise DemoError(f"the server {what}:\n{tail(log)}")
    return line.removeprefix("ready ")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to its whole group if that is not enough."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(SERVER_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _require_gone(started: Sequence[ProcessIdentity]) -> None:
    """The demo promises that none of its processes stays."""
    if not wait_until(lambda: not any(is_same(process) for process in started), GONE_TIMEOUT_S):
        left = ", ".join(str(process.pid) for process in started if is_same(process))
        raise DemoError(f"processes of the demo are still there: {left}")
