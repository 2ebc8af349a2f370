"""The command line starts fast, explains itself, and maps every outcome to its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from duckctl import cli
from duckctl.errors import DuckError, ExitCode, UnreachableError, UsageError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "transformers", "safetensors", "httpx", "fastapi", "pydantic", "rich")


BARE_ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "PY_COLORS")
}


def duckctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "duckctl", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**BARE_ENVIRONMENT, **environment},
    )


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with the words that call it."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), f"{path} {name}")


ALL_COMMANDS = list(commands(get_command(cli.app), "duckctl"))


def test_the_expected_commands_are_there() -> None:
    names = {path for path, _ in ALL_COMMANDS}
    assert names >= {
        "duckctl demo",
        "duckctl init",
        "duckctl inventory check",
        "duckctl inventory show",
        "duckctl lab up",
        "duckctl lab down",
        "duckctl lab status",
        "duckctl lab restart",
        "duckctl lab kill",
        "duckctl serve",
        "duckctl health",
        "duckctl shard-weights",
        "duckctl chat",
    }


@pytest.mark.parametrize("path", [path for path, _ in ALL_COMMANDS])
def test_help_explains_with_examples(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*path.split()[1:], "--help"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert f"Usage: {path}" in text
    examples = text.split("Examples:", 1)
    assert len(examples) == 2, "no examples"
    assert re.search(rf"^ +{path}\b", examples[1], re.MULTILINE)


def test_every_command_that_tells_a_result_has_json() -> None:
    """docs/reference/cli.md names those that have none."""
    without = {
        path.removeprefix("duckctl ")
        for path, command in ALL_COMMANDS
        if not any("--json" in getattr(option, "opts", []) for option in command.params)
    }
    assert without == {
        *("serve", "chat", "boot serve", "boot config", "lab exec"),
        *("bench gpu", "bench overlap", "bench trace"),
    }


@pytest.mark.parametrize("path", [path for path, _ in ALL_COMMANDS])
def test_every_option_says_what_it_does(path: str) -> None:
    command = dict(ALL_COMMANDS)[path]
    silent = [p.name for p in command.params if not getattr(p, "help", None) and p.name != "help"]
    assert silent == []


def test_start_up_imports_nothing_heavy() -> None:
    program = (
        "import sys; from duckctl.cli import run; run(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stderr.strip() == "[]"
    assert "Commands:" in result.stdout


def test_loading_the_commands_imports_no_torch() -> None:
    modules = [entry.module for entry in cli.COMMANDS if cli.is_installed(entry)]
    program = (
        f"import sys, importlib\nfor name in {modules!r}:\n"
        "    importlib.import_module('duckctl.commands.' + name)\n"
        f"print([name for name in {HEAVY!r} + ('host_runtime',) if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == "[]"


def test_version_names_the_build() -> None:
    result = duckctl("--version")
    assert result.returncode == ExitCode.OK
    assert re.fullmatch(r"duckctl \d+\.\d+\.\d+ \(build ([0-9a-f]{40}|none, .*)\)\n", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lba"], "There is no command 'lba'. Did you mean lab?"),
        (["xyzzy"], "There is no command 'xyzzy'."),
        (["lab", "upp"], "No such command 'upp'. Did you mean 'up'?"),
        (["lab", "up", "--duck", "3"], "No such option: --duck (Possible options: --ducks)"),
        (["lab", "up", "--ducks", "many"], "Invalid value for '--ducks'"),
        (["lab", "up", "--poll", "often"], "expected block, sleep or spin"),
        (["lab", "restart"], "Missing argument"),
        (["events", "-n", "9" * 23], "Invalid value for '--last'"),
        (["serve"], "Missing argument"),
        (["serve", "ducklet", "--format", "fp5"], "Invalid value for '--format'"),
    ],
)
def test_a_mistyped_command_line_is_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert "hint: see: duckctl" in captured.err
    assert captured.out == ""


def raise_(error: BaseException) -> Any:
    def load(_path: Path) -> None:
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DuckError("the pond is frozen", "wait"), 1, "error: the pond is frozen\n  hint: wait\n"),
        (UsageError("no such pond"), 2, "error: no such pond\n"),
        (UnreachableError("d01 is silent"), 4, "error: d01 is silent\n"),
        (ValueError("odd"), 1, f"error: ValueError: odd\n  hint: {cli.DEBUG_HINT}\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_a_message_and_an_exit_code(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("duckctl.commands.inventory.load_inventory", raise_(error))
    assert cli.run(["inventory", "check", "some.yml"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "arguments", [["--debug", "inventory", "check"], ["inventory", "check", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("duckctl.commands.inventory.load_inventory", raise_(ValueError("odd")))
    assert cli.run(arguments) == ExitCode.FAILURE
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert cli.DEBUG_HINT not in said


def test_words_behind_a_double_dash_are_left_alone() -> None:
    assert cli._hoist_global_flags(["lab", "up", "--debug", "--", "--quiet"]) == [
        "--debug",
        "lab",
        "up",
        "--",
        "--quiet",
    ]


def test_results_go_to_stdout_and_talk_to_stderr() -> None:
    rack = str(ROOT / "inventory" / "rack32.yml")
    shown = duckctl("inventory", "show", rack)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "duck32" in shown.stdout
    checked = duckctl("inventory", "check", rack)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert checked.stderr == f"{rack}: 32 ducks in 4 domains, no mistakes\n"
    assert duckctl("--quiet", "inventory", "check", rack).stderr == ""


def test_a_pipe_gets_neither_colour_nor_wrapped_rows() -> None:
    result = duckctl("inventory", "show", str(ROOT / "inventory" / "rack32.yml"), TERM="xterm")
    assert "\x1b" not in result.stdout
    row = next(line for line in result.stdout.splitlines() if "duck32" in line)
    assert "a8:b8:e0:21:04:12" in row
    assert "reboot > wol" in row


def in_terminal(*arguments: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "duckctl", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**BARE_ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "160", **environment},
    ) as process:
        os.close(slave)
        chunks = []
        with contextlib.suppress(OSError):  # EIO: the last writer has closed the terminal
            while chunk := os.read(master, 65536):
                chunks.append(chunk)
        assert process.wait(60) == 0
    os.close(master)
    return b"".join(chunks).decode()


@pytest.mark.slow
def test_a_terminal_gets_styles_unless_they_are_unwanted() -> None:
    show = ["inventory", "show", str(ROOT / "inventory" / "lab.yml")]
    assert "\x1b[" in in_terminal(*show)
    assert "\x1b" not in in_terminal(*show, "--no-color")
    assert "\x1b" not in in_terminal(*show, NO_COLOR="1")
    assert "\x1b" not in in_terminal(*show, TERM="dumb")


def test_json_has_a_schema_version_and_the_selected_ducks() -> None:
    rack = str(ROOT / "inventory" / "rack32.yml")
    result = duckctl("inventory", "show", rack, "--limit", "domain1,!duck03", "--json")
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert [duck["name"] for duck in document["ducks"]] == [
        f"duck{n:02}" for n in (1, 2, 4, 5, 6, 7, 8)
    ]
    assert document["ducks"][0] == {
        "name": "duck01",
        "slot": 0,
        "domain": "domain1",
        "address": "10.21.1.11",
        "port": 7211,
        "mac": "a8:b8:e0:21:01:0b",
        "image": "linux",
        "cores": 4,
        "memory_gib": 32,
        "link_mbps": 2500,
        "power": [{"backend": "reboot"}, {"backend": "wol"}],
    }
    assert document["domains"][0]["call_address"] == "10.21.1.255"


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    result = subprocess.run(
        f"{sys.executable} -P -m duckctl inventory show {ROOT}/inventory/rack32.yml | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in result.stderr


def test_mistakes_of_an_inventory_are_all_shown_with_exit_code_2() -> None:
    path = ROOT / "tests" / "duckctl" / "bad_inventories" / "several_mistakes.yml"
    result = duckctl("inventory", "check", str(path))
    assert result.returncode == ExitCode.USAGE
    assert "has 3 mistakes:" in result.stderr
    assert "did you mean 'duck_cores'?" in result.stderr


def test_strict_turns_warnings_into_failure(tmp_path: Path) -> None:
    path = tmp_path / "rack.yml"
    text = (ROOT / "inventory" / "rack32.yml").read_text(encoding="utf-8")
    path.write_text(text.replace('duck_mac: "a8:b8:e0:21:01:0b", ', ""), encoding="utf-8")
    relaxed = duckctl("inventory", "check", str(path), "--json")
    assert relaxed.returncode == ExitCode.OK
    assert json.loads(relaxed.stdout)["warnings"] == [
        "duck01: without duck_mac it cannot be booted from the network"
    ]
    assert duckctl("inventory", "check", str(path), "--strict").returncode == ExitCode.FAILURE


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--from-fleet=~/nothing"],
        ["serve", "ducklet", "--api-key-file=~/nothing"],
        ["cache", "ls", "--cache-dir=~/nothing"],
        ["inventory", "check", "~/nothing"],
        ["bench", "ducks", "--inventory=~/nothing"],
        ["boot", "status", "--inventory=~/nothing"],
    ],
)
def test_every_path_takes_the_home_folder(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shells expand `~` only at the start of a word, so `--option=~/x` arrives as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.run(arguments) == ExitCode.USAGE
    assert f"{tmp_path}/nothing" in capsys.readouterr().err


def test_a_home_folder_that_nobody_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cache", "ls", "--cache-dir=~nobody-here/x"]) == ExitCode.USAGE
    assert "there is no folder ~nobody-here/x" in capsys.readouterr().err
