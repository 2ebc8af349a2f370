"""Serving checks everything first, hands the server its files, and never leaves it behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duckctl import cli, early_checks
from duckctl.chat_client import ChatClient, ChatEnd
from duckctl.errors import ExitCode, UsageError
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.native import native_path
from duckctl.process import descendants, identify, is_same, read_ready_line, wait_until
from duckctl.serving import (
    FAULT_COUNTS,
    QUEUE_MAX,
    SCRUB_PAUSE_S_MAX,
    THREADS_MAX,
    api_name,
    forwarding,
    parse_faults,
)
from host_runtime.cuda.host_file import INDEX_NAME
from host_runtime.server import api_key
from host_runtime.server.run_config import RunConfig

READY_TIMEOUT_S = 120


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    lab.up(folder, LabShape(2, 1, 1, 1500, "block"))
    yield folder
    lab.down(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("drop=0.05", {"drop": 0.05}),
        (
            "drop=0.05,duplicate=0.05, reorder=0.1,seed=7,delay_us=20",
            {"drop": 0.05, "duplicate": 0.05, "reorder": 0.1, "seed": 7, "delay_us": 20},
        ),
    ],
)
def test_faults_are_parsed(text: str | None, expected: dict[str, float] | None) -> None:
    assert parse_faults(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "drop", "drop=much", "loss=0.1", "drop=1.5", "drop=nan", "seed=-1", "delay_us=10000001"],
)
def test_bad_faults_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--faults"):
        parse_faults(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder"], "there is no model folder no-such-folder"),
        (["."], "no config.json"),
        (["ducklet", "--api-key-file", "open"], "--api-key-file: other users can read open"),
        (["ducklet", "--api-key-file", "short"], "--api-key-file: short does not hold one line"),
        (["ducklet", "--host-weights", "."], "--host-weights: there is no host.json in ."),
        (["ducklet", "--host-weights", ".", "--device", "cpu"], "--device cpu does not use"),
        (["ducklet", "--max-context", "2049"], "--max-context 2049 is more than ducklet can do"),
        (["ducklet", "--inventory", "nothing.yml"], "cannot read inventory nothing.yml"),
        (["ducklet", "--host", "256.0.0.1"], "--host 256.0.0.1"),
        (["ducklet", "--experts", "local", "--faults", "drop=0.1"], "--experts local has none"),
        (["ducklet", "--host", "a" * 70], f"--host {'a' * 70}"),
        (["ducklet", "--api-key-file", "nothing"], "no key file nothing"),
        (["ducklet", "--model-name", "two words"], "--model-name 'two words'"),
        (["ducklet", "--model-name", "Änte"], "--model-name 'Änte'"),
        (["ducklet", "--model-name", ""], "--model-name ''"),
        (["ducklet", "--max-queue", "-1"], "'--max-queue'"),
        (["ducklet", "--scrub-pause", "nan"], "'--scrub-pause'"),
    ],
)
def test_wrong_input_is_named_before_anything_starts(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, key, mode in (("open", "k" * 16, 0o644), ("short", "k" * 15, 0o600)):
        (tmp_path / name).write_text(key)
        (tmp_path / name).chmod(mode)
    assert cli.run(["serve", *arguments, "--port", "0"]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_folder_whose_name_cannot_be_the_models_needs_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").touch()
    assert cli.run(["serve", str(folder), "--port", "0"]) == ExitCode.USAGE
    assert "the folder's name 'my model' can be no name in the API" in capsys.readouterr().err
    assert api_name("mine", folder) == "mine"


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("max_queue", 0, QUEUE_MAX),
        ("threads", 1, THREADS_MAX),
        ("scrub_pause_s", 0, SCRUB_PAUSE_S_MAX),
        *(("faults", {name: 0}, {name: most}) for name, most in FAULT_COUNTS.items()),
        ("model_name", "!", "~" * 200),
    ],
    ids=str,
)
def test_bounds_of_options_are_those_of_the_run_file(
    key: str, least: Any, most: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command line lets through, the server takes; beyond, the option is named."""
    minimal = {"schema_version": 1, "model_dir": str(tmp_path), "model_name": "x"}
    for value in (least, most):
        document = {**minimal, "experts": "local", key: value}
        RunConfig.model_validate_json(json.dumps(document))
    if key in ("max_queue", "threads", "scrub_pause_s"):
        option = "--" + key.removesuffix("_s").replace("_", "-")
        for value in (least - 1, most + 1):
            assert cli.run(["serve", "ducklet", option, str(value)]) == ExitCode.USAGE
            assert f"'{option}'" in capsys.readouterr().err
        for value in (least, most):  # the first thing that is checked after the options
            words = ["serve", "ducklet", option, str(value), "--api-key-file", "nothing"]
            assert cli.run(words) == ExitCode.USAGE
            assert "no key file nothing" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = cli.run(["serve", "ducklet", "--experts", "local", "--port", str(port)])
    assert code == ExitCode.FAILURE
    said = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said
    assert "--port 0" in said


@pytest.mark.slow
def test_unreachable_ducks_are_named_with_exit_code_4(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.kill(folder, ["d02"])
    code = cli.run(["serve", "ducklet", "--inventory", str(folder.inventory), "--port", "0"])
    assert code == ExitCode.UNREACHABLE
    said = capsys.readouterr().err
    assert "1 of 2 ducks cannot be reached" in said
    assert "d02: does not answer" in said
    assert "d01:" not in said


def test_a_duck_of_another_build_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same duckd with another build hash in it, as an old installation would have."""
    other = "deadbeef" * 5
    original = native_path("duckd").read_bytes()
    build = cli.build_hash().encode()
    assert original.count(build) >= 1
    (tmp_path / "duckd").write_bytes(original.replace(build, other.encode()))
    (tmp_path / "duckd").chmod(0o755)
    folder = LabFolder(tmp_path / "lab")
    monkeypatch.setattr("duckctl.lab.ducks.native_path", lambda name: tmp_path / name)
    lab.up(folder, LabShape(2, 1, 1, 1500, "block"))
    try:
        code = cli.run(["serve", "ducklet", "--inventory", str(folder.inventory), "--port", "0"])
        assert code == ExitCode.FAILURE
        said = capsys.readouterr().err
        assert f"d01 runs build {other[:12]}, the host has {build.decode()[:12]}" in said
        assert cli.run(["health", "--inventory", str(folder.inventory)]) == ExitCode.PARTIAL
        assert "(differs)" in capsys.readouterr().out
    finally:
        lab.down(folder)


def test_a_missing_cache_names_the_command_that_makes_it(
    folder: LabFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / "cache"
    code = cli.run(
        [
            *("serve", "ducklet", "--inventory", str(folder.inventory), "--port", "0"),
            *("--cache-dir=~/cache", "--format", "fp8"),
        ]
    )
    assert code == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "no fp8 weight cache of ducklet for 2 ducks" in said
    command = (
        f"duckctl shard-weights ducklet --inventory {folder.inventory} "
        f"--format fp8 --cache-dir {cache}"
    )
    assert command in said
    assert cli.run(command.split()[1:]) == ExitCode.OK
    capsys.readouterr()


class Server:
    """A running `duckctl serve`."""

    def __init__(self, temporary: Path, *arguments: str) -> None:
        self.temporary = temporary
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "duckctl", "serve", "ducklet", "--port", "0"),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=(temporary.parent / "serve.log").open("wb"),
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert self.process.stdout is not None
        line = read_ready_line(self.process.stdout, READY_TIMEOUT_S)
        assert line is not None, (temporary.parent / "serve.log").read_text(encoding="utf-8")
        assert line.startswith("ready http://127.0.0.1:")
        self.url = line.removeprefix("ready ")
        self.below = descendants(self.process.pid)
        assert len(self.below) >= 1

    def ask(self, text: str, max_tokens: int = 40) -> str:
        with ChatClient(self.url) as client:
            parts = list(
                client.stream(
                    [{"role": "user", "content": text}],
                    model="ducklet",
                    temperature=0,
                    max_tokens=max_tokens,
                )
            )
        return "".join(part.content for part in parts if not isinstance(part, ChatEnd))

    def is_gone(self) -> bool:
        return wait_until(lambda: not any(is_same(process) for process in self.below), 10)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class SignalledServer:
    """A server that only notes what it gets."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def send_signal(self, number: int) -> None:
        self.got.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.got.append("SIGKILL")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_server_and_a_second_one_at_once(number: signal.Signals) -> None:
    server = SignalledServer()
    before = signal.signal(number, signal.default_int_handler)  # whatever started the tests
    try:
        with forwarding(server):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert server.got == ["SIGTERM", "SIGKILL"]


def test_a_logout_does_not_stop_a_server_under_nohup() -> None:
    """nohup lets SIGHUP be ignored, and so it stays."""
    server = SignalledServer()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with forwarding(server):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert server.got == []


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "tmp", "--experts", "local", "--threads", "1")
    yield server
    server.end()


@pytest.mark.slow
def test_ctrl_c_stops_the_server_in_order(local: Server) -> None:
    assert "not prime" in local.ask("Is 143 prime?")
    assert len(list(local.temporary.iterdir())) == 1
    local.process.send_signal(signal.SIGINT)
    assert local.process.wait(20) == ExitCode.OK
    assert local.is_gone()
    assert list(local.temporary.iterdir()) == []


@pytest.mark.slow
def test_the_server_does_not_outlive_a_killed_command(local: Server) -> None:
    local.process.kill()
    assert local.is_gone()


@pytest.mark.slow
def test_the_exit_code_of_a_failing_server_is_passed_on(local: Server) -> None:
    (process,) = [p for p in local.below if identify(p.pid) == p][:1]
    os.kill(process.pid, signal.SIGKILL)
    assert local.process.wait(20) != ExitCode.OK


@pytest.mark.slow
def test_shard_and_serve_with_remote_experts(folder: LabFolder, tmp_path: Path) -> None:
    server = Server(
        tmp_path / "tmp",
        *("--inventory", str(folder.inventory), "--cache-dir", str(tmp_path / "cache")),
        *("--shard", "--threads", "1", "--poll", "sleep", "--prefill-chunk", "32"),
    )
    try:
        assert "not prime" in server.ask("Is 143 prime?")
        with ChatClient(server.url) as client:
            ready = client.readiness()
        assert ready["ready"] is True
        assert [duck["name"] for duck in ready["ducks"]] == ["d01", "d02"]
        assert all(duck["counters"]["calls"] > 0 for duck in ready["ducks"])
        private = next(server.temporary.glob("duckctl-*"))
        run = json.loads((private / "run.json").read_text(encoding="utf-8"))
        assert run["schema_version"] == 1
        assert (run["poll"], run["prefill_chunk"]) == ("sleep", 32)
        assert (private / "run.json").stat().st_mode & 0o077 == 0
    finally:
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(20)
        server.end()
    assert code == ExitCode.OK
    assert server.is_gone()
    assert list(server.temporary.iterdir()) == []


def test_early_checks_are_those_of_the_server() -> None:
    assert early_checks.API_KEY_CHARACTERS_MIN == api_key.CHARACTERS_MIN
    assert early_checks.HOST_WEIGHTS_INDEX == INDEX_NAME
