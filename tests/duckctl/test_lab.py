"""A lab starts, reports, restarts and ends its own ducks, and never anything else."""

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
from processes import processes_naming

from duckctl import cli
from duckctl.errors import ExitCode, UsageError
from duckctl.inventory import load_inventory
from duckctl.lab import ducks as lab
from duckctl.lab import machines
from duckctl.lab.state import LabDuck, LabError, LabFolder, LabShape, LabState
from duckctl.lab.vm import lab as vm
from duckctl.native import native_path
from duckctl.process import end, identify, is_same, start_detached, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    folder = LabFolder(tmp_path / "lab")
    yield folder
    lab.down(folder)


def run(folder: LabFolder, *arguments: str) -> int:
    command, *rest = arguments
    return cli.run(["lab", command, "--state-dir", str(folder.root), *rest])


def status(folder: LabFolder, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(folder, "status", "--json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def state_of(folder: LabFolder) -> LabState:
    state = folder.load()
    assert state is not None
    return state


SHAPE = LabShape(ducks=3, domains=2, cores_per_duck=1, mtu=1500, poll="block")


def test_up_starts_ducks_and_writes_a_good_inventory(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "up", "--ducks", "3", "--domains", "2") == ExitCode.OK
    fleet = load_inventory(folder.inventory)
    assert [(d.name, d.domain.name, str(d.address)) for d in fleet.ducks] == [
        ("d01", "domain1", "127.21.1.11"),
        ("d02", "domain1", "127.21.1.12"),
        ("d03", "domain2", "127.21.2.11"),
    ]
    assert fleet.key_file == folder.key_file
    code, document = status(folder, capsys)
    assert code == ExitCode.OK
    assert document["schema_version"] == 1
    assert [duck["state"] for duck in document["ducks"]] == ["running"] * 3
    assert [duck["port"] for duck in document["ducks"]] == [duck.port for duck in fleet.ducks]
    assert all(len(duck["build"]) == 40 for duck in document["ducks"])


def test_a_second_up_changes_nothing(folder: LabFolder) -> None:
    first = lab.up(folder, SHAPE)
    assert lab.up(folder, SHAPE) == first


def test_up_starts_only_what_is_missing(folder: LabFolder) -> None:
    before = lab.up(folder, SHAPE)
    lab.kill(folder, ["d02"])
    after = lab.up(folder, SHAPE)
    assert [duck.port for duck in after.ducks] == [duck.port for duck in before.ducks]
    assert [a.pid == b.pid for a, b in zip(after.ducks, before.ducks, strict=True)] == [
        True,
        False,
        True,
    ]


def test_another_shape_is_refused_while_ducks_run(folder: LabFolder) -> None:
    lab.up(folder, SHAPE)
    with pytest.raises(UsageError, match=r"another shape runs .*3 ducks in 2 domains"):
        lab.up(folder, LabShape(4, 2, 1, 1500, "block"))


def test_down_ends_every_duck_and_forgets_the_lab(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    state = lab.up(folder, SHAPE)
    assert run(folder, "down") == ExitCode.OK
    assert not any(is_same(duck.process) for duck in state.ducks)
    assert not folder.inventory.exists()
    assert folder.key_file.exists()
    assert run(folder, "down") == ExitCode.OK
    assert "no lab runs" in capsys.readouterr().err
    assert run(folder, "down", "--json") == ExitCode.OK
    ended = json.loads(capsys.readouterr().out)
    assert (ended["state_dir"], ended["processes_ended"]) == (str(folder.root), 0)
    code, document = status(folder, capsys)
    assert (code, document["ducks"]) == (ExitCode.UNREACHABLE, [])


def test_kill_and_restart_keep_the_port(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lab.up(folder, SHAPE)
    assert run(folder, "kill", "d02") == ExitCode.OK
    code, document = status(folder, capsys)
    assert code == ExitCode.PARTIAL
    assert [duck["state"] for duck in document["ducks"]] == ["running", "dead", "running"]
    assert run(folder, "kill", "d02") == ExitCode.FAILURE
    assert "d02: no process to kill" in capsys.readouterr().err
    assert run(folder, "restart", "d02") == ExitCode.OK
    after = state_of(folder)
    assert after.duck("d02").port == before.duck("d02").port
    assert after.duck("d02").pid != before.duck("d02").pid
    assert status(folder, capsys)[0] == ExitCode.OK


def test_restart_of_a_running_duck_replaces_its_process(folder: LabFolder) -> None:
    before = lab.up(folder, SHAPE)
    after = lab.restart(folder, ["d01", "d03"])
    assert not is_same(before.duck("d01").process)
    assert after.duck("d01").is_running()
    assert after.duck("d02") == before.duck("d02")


@pytest.mark.parametrize("command", ["kill", "restart"])
def test_an_unknown_duck_is_named(
    folder: LabFolder, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.up(folder, SHAPE)
    assert run(folder, command, "d09") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "no duck 'd09'" in said
    assert "d01, d02, d03" in said


def test_without_a_lab_the_command_that_makes_one_is_named(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "restart", "d01") == ExitCode.FAILURE
    assert "duckctl lab up" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--ducks", "0"], ["--ducks", "65"], ["--domains", "5"]])
def test_impossible_shapes_are_refused(folder: LabFolder, arguments: list[str]) -> None:
    assert run(folder, "up", *arguments) == ExitCode.USAGE
    assert not folder.state_file.exists()


def test_a_foreign_process_under_a_recorded_pid_is_left_alone(folder: LabFolder) -> None:
    lab.up(folder, SHAPE)
    state = state_of(folder)
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        identity = identify(sleeper.pid)
        assert identity is not None
        real = state.duck("d01")
        stale = LabDuck(
            "d01", real.domain, real.address, real.port,
            identity.pid, identity.start_ticks, identity.boot_id, real.build,
        )  # fmt: skip
        folder.save(state.with_duck(stale))
        assert not stale.is_running()
        assert lab.down(folder) == 2
        assert sleeper.poll() is None
        assert real.is_running()
    finally:
        end([real.process], 5)
        sleeper.kill()
        sleeper.wait()


def test_a_state_of_an_earlier_boot_is_stale(folder: LabFolder) -> None:
    lab.up(folder, SHAPE)
    state = state_of(folder)
    ducks = tuple(
        LabDuck(d.name, d.domain, d.address, d.port, d.pid, d.start_ticks, "earlier boot", d.build)
        for d in state.ducks
    )
    lab.down(folder)
    folder.save(LabState(state.shape, ducks))
    fresh = lab.up(folder, LabShape(2, 1, 1, 1500, "block"))
    assert [duck.is_running() for duck in fresh.ducks] == [True, True]


def test_a_taken_port_names_the_duck_and_its_log(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    state = lab.up(folder, SHAPE)
    victim = state.duck("d02")
    lab.kill(folder, ["d02"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as squatter:
        squatter.bind((victim.address, victim.port))
        assert run(folder, "restart", "d02") == ExitCode.FAILURE
    said = capsys.readouterr().err
    assert "d02 ended with exit code 1" in said
    assert f"{victim.address}:{victim.port}" in said
    assert str(folder.log("d02")) in said
    assert state_of(folder).duck("d01").is_running()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """What is started from now on: d03's program is a shell script that fails, others are real."""
    broken = tmp_path / "broken-duckd"
    broken.write_text("#!/bin/sh\necho 'no pond here' >&2\nexit 7\n", encoding="utf-8")
    broken.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []

    def start(arguments: list[str], log: Path, tied: bool) -> subprocess.Popen[bytes]:
        if "d03" in arguments:
            arguments = [str(broken), *arguments[1:]]
        started.append(start_detached(arguments, log, tied))
        return started[-1]

    monkeypatch.setattr("duckctl.lab.ducks.start_detached", start)
    return started


def test_a_failed_start_leaves_no_process(
    folder: LabFolder, started: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(LabError, match=r"d03 ended with exit code 7(.|\n)*no pond here"):
        lab.up(folder, SHAPE)
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)
    assert not folder.state_file.exists()


@pytest.mark.parametrize("change", ["restart", "turn_on", "up"])
def test_a_failed_start_of_a_known_lab_keeps_it(
    folder: LabFolder, change: str, request: pytest.FixtureRequest
) -> None:
    """No duck runs, and the one that is started fails: the lab is on record as it was before."""
    before = lab.up(folder, SHAPE)
    inventory = folder.inventory.read_text()
    lab.kill(folder, ["d01", "d02", "d03"])
    started = request.getfixturevalue("started")
    with pytest.raises(LabError, match="d03 ended with exit code 7"):
        if change == "restart":
            lab.restart(folder, ["d01", "d03"])
        elif change == "turn_on":
            machines.turn_on(folder, "d03")
        else:
            lab.up(folder, SHAPE)
    assert started
    assert all(process.poll() is not None for process in started)
    assert (state_of(folder), folder.inventory.read_text()) == (before, inventory)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--firmware", "nonsense"], "duck processes have no --firmware"),
        (["--boot", "pxe", "--bmc", "--off"], "duck processes have no --boot, --bmc, --off"),
        (["--nic", "virtio", "--memory", "64"], "duck processes have no --nic, --memory"),
        (["--image", "linux", "--dispatch", "unicast"], "have no --image, --dispatch"),
        (["--no-wait"], "duck processes have no --no-wait"),
        (["--cores-per-duck", "1,4"], "--cores-per-duck 1,4: duck processes have one number"),
        (["--cores-per-duck", "1,x"], "'x' is not a number from 1 to 64"),
    ],
)
def test_options_of_virtual_boxes_are_refused_without_them(
    words: list[str], problem: str, folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started and ignored; the hint names the backend that heeds the option."""
    assert run(folder, "up", *words) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert problem in error
    assert "hint: " not in error or "add --backend qemu" in error
    assert not folder.state_file.exists()


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for root in ("/proc/x", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        assert cli.run(["lab", "up", "--state-dir", root]) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert f"error: cannot make the lab's folder {root}: " in error
        assert "hint: name a folder that can be written to with --state-dir" in error


def test_a_lock_that_cannot_be_written_is_named(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a folder that was there and belongs to somebody else."""
    (folder.root / "lock").mkdir(parents=True)
    assert run(folder, "up") == ExitCode.FAILURE
    assert f"error: cannot write {folder.root / 'lock'}: Is a" in capsys.readouterr().err


def contents(root: Path) -> dict[str, int]:
    """Every path below a folder, and the folder itself, with its mode."""
    found = {str(path.relative_to(root)): path.stat().st_mode for path in root.rglob("*")}
    return {**found, ".": root.stat().st_mode}


def test_a_folder_without_a_lab_is_left_as_it_is(tmp_path: Path) -> None:
    """down, restart, kill and switches of either backend: no new mode, nothing written."""
    folder = LabFolder(tmp_path / "foreign")
    folder.root.mkdir()
    folder.root.chmod(0o755)
    (folder.root / "letter.txt").write_text("mine")
    before = contents(folder.root)
    assert run(folder, "down") == ExitCode.OK
    for words in (["restart", "d01"], ["kill", "d01"], ["power", "on", "d01"]):
        assert run(folder, *words) == ExitCode.FAILURE
    assert [lab.down(folder), vm.down(folder)] == [0, 0]
    changes = (lab.restart, lab.kill, vm.switch_on, vm.switch_off, vm.cycle, vm.reset)
    for change in (*changes, vm.hang, vm.resume):
        with pytest.raises(LabError, match=r"there is no .*lab in"):
            change(folder, ["d01"])
    for press in (machines.turn_on, machines.turn_off, machines.cycle):
        with pytest.raises(LabError, match="there is no lab in"):
            press(folder, "d01")
    assert contents(folder.root) == before


@pytest.mark.parametrize("mode", [None, 0o755, 0o2775])
def test_only_a_folder_of_its_own_is_closed_to_others(folder: LabFolder, mode: int | None) -> None:
    """`up` makes a folder for its owner only; in one that was there, only what it makes."""
    if mode is not None:
        folder.root.mkdir()
        folder.root.chmod(mode)
    for _ in range(2):
        lab.up(folder, LabShape(1, 1, 1, 1500, "block"))
        assert folder.root.stat().st_mode & 0o7777 == (0o700 if mode is None else mode)
        parts = (folder.log("d01").parent, folder.identity("d01").parent)
        assert [part.stat().st_mode & 0o777 for part in parts] == [0o700, 0o700]
        lab.down(folder)


def test_a_damaged_state_file_is_named(
    folder: LabFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.create()
    folder.state_file.write_text('{"schema_version": 1, "shape": {}', encoding="utf-8")
    assert run(folder, "status") == ExitCode.FAILURE
    assert "lab.json is damaged" in capsys.readouterr().err
    folder.state_file.unlink()


def test_a_loose_key_is_refused(folder: LabFolder, capsys: pytest.CaptureFixture[str]) -> None:
    lab.up(folder, SHAPE)
    lab.down(folder)
    folder.key_file.chmod(0o644)
    assert run(folder, "up") == ExitCode.USAGE
    assert "mode 0644" in capsys.readouterr().err


def test_interrupted_up_leaves_no_process(folder: LabFolder) -> None:
    """SIGINT while ducks start: the command ends with 130 and nothing of it stays."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "duckctl", "lab", "up", "--ducks", "16"),
            *("--state-dir", str(folder.root)),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: folder.state_file.exists() or process.poll() is not None, 20)
    recorded = folder.load()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    if process.returncode == ExitCode.OK:
        return  # it was faster than the signal: an ordinary lab, which the fixture ends
    assert process.returncode == ExitCode.INTERRUPTED, said
    assert not folder.state_file.exists()
    assert recorded is not None
    assert wait_until(lambda: not any(duck.is_running() for duck in recorded.ducks), 5)
    # A duck that was started but not yet on record would be missed above.
    assert wait_until(lambda: not processes_naming(str(folder.public_key_file)), 5)


def test_two_commands_do_not_work_on_one_lab(folder: LabFolder) -> None:
    """Two `lab up` at once: both succeed, and there is one set of ducks."""
    arguments = [
        *(sys.executable, "-P", "-m", "duckctl", "lab", "up", "--ducks", "2", "--json"),
        *("--state-dir", str(folder.root)),
    ]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    documents = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert documents[0]["ducks"] == documents[1]["ducks"]


def test_ducks_outlive_the_command_but_tied_ones_do_not(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from duckctl.lab import ducks as lab; "
        "from duckctl.lab.state import LabFolder, LabShape; "
        "lab.up(LabFolder(Path(sys.argv[1])), LabShape(1, 1, 1, 1500, 'block'), "
        "tied=sys.argv[2] == 'tied'); os.kill(os.getpid(), 9)"
    )
    for kind, lives in (("free", True), ("tied", False)):
        folder = LabFolder(tmp_path / kind)
        result = subprocess.run(
            [sys.executable, "-P", "-c", program, str(folder.root), kind], check=False, timeout=60
        )
        assert result.returncode == -signal.SIGKILL
        duck = state_of(folder).duck("d01")
        if lives:
            assert duck.is_running()
        else:
            assert wait_until(lambda duck=duck: not duck.is_running(), 10)  # type: ignore[misc]
        lab.down(folder)


def test_the_program_is_the_installed_one(folder: LabFolder) -> None:
    duck = lab.up(folder, LabShape(1, 1, 1, 1500, "block")).duck("d01")
    assert os.path.samefile(f"/proc/{duck.pid}/exe", native_path("duckd"))  # noqa: PTH121


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_a_process_is_on_record(number: signal.Signals) -> None:
    done = []
    before = signal.signal(number, signal.SIG_DFL)  # also if nohup has started this process
    try:
        with pytest.raises(KeyboardInterrupt), lab.interrupts_wait():
            os.kill(os.getpid(), number)
            done.append(True)
    finally:
        signal.signal(number, before)
    assert done == [True]
