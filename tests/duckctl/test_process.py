"""Processes are known by more than their pid, so that duckctl ends its own ones and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from duckctl.process import (
    ProcessIdentity,
    boot_id,
    command_line,
    descendants,
    die_with_parent,
    end,
    identify,
    is_same,
    read_ready_line,
    send,
    tail,
    wait_until,
)

SLEEPER = "import signal, sys, time; sys.stdout.write('up\\n'); sys.stdout.flush(); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def start(started: list[subprocess.Popen[bytes]], program: str, *words: str) -> ProcessIdentity:
    process = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert read_ready_line(process.stdout, 20) == "up"
    identity = identify(process.pid)
    assert identity is not None
    return identity


def test_a_live_process_is_itself(processes: list[subprocess.Popen[bytes]]) -> None:
    identity = start(processes, SLEEPER, "--name", "d01")
    assert is_same(identity)
    assert is_same(identity, ("--name", "d01"))
    assert not is_same(identity, ("--name", "d02"))
    assert command_line(identity.pid)[-2:] == ["--name", "d01"]


# A program that becomes itself again and again: its command line is empty for a moment each time.
CHAIN = """
import os, sys
count = int(sys.argv[1])
if count:
    again = [sys.executable, "-I", "-S", "-c", sys.argv[2], str(count - 1), *sys.argv[2:]]
    os.execv(sys.executable, again)
"""


@pytest.mark.slow
def test_a_process_that_changes_its_program_is_itself(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    """`ip netns exec` becomes the program that it was asked for: a guest has not ended then."""
    chain = [sys.executable, "-I", "-S", "-c", CHAIN, "150", CHAIN, "--name", "d01"]
    process = subprocess.Popen(chain)
    processes.append(process)
    identity = identify(process.pid)
    assert identity is not None
    # This process's own words are there until the first execve.
    assert wait_until(lambda: "--name" in command_line(process.pid), 20)
    looks = 0
    while is_same(identity, ("--name", "d01")):
        looks += 1
    assert identify(process.pid) is None, f"a live process was taken for another, look {looks}"
    assert looks > 100


def test_a_process_of_another_start_or_boot_is_never_touched(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    identity = start(processes, SLEEPER)
    for other in (
        replace(identity, start_ticks=identity.start_ticks - 1),
        replace(identity, boot_id="another boot"),
    ):
        assert not is_same(other)
        send([other], signal.SIGKILL)
        assert end([other], 0.1) == []
    assert processes[0].poll() is None
    assert is_same(identity)


WAITER = """
import os, signal, sys
from duckctl.process import signals_interrupt
with signals_interrupt():
    try:
        sys.stdout.write("up\\n")
        sys.stdout.flush()
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(7)
    finally:
        os.write(1, b"cleaned up")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_lets_a_process_clean_up(
    processes: list[subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    # Not as this process may have been started itself, by nohup.
    heeding = f"import signal; signal.signal({number:d}, signal.SIG_DFL)\n"
    identity = start(processes, heeding + WAITER)
    send([identity], number)
    out, _ = processes[0].communicate(timeout=20)
    assert (processes[0].returncode, out) == (7, b"cleaned up")


def test_an_ignored_signal_stays_ignored(processes: list[subprocess.Popen[bytes]]) -> None:
    """As nohup starts it."""
    identity = start(processes, "import signal; signal.signal(1, signal.SIG_IGN)\n" + WAITER)
    send([identity], signal.SIGHUP)
    assert not wait_until(lambda: processes[0].poll() is not None, 0.3)
    send([identity], signal.SIGTERM)
    assert processes[0].wait(20) == 7


def test_a_process_that_is_gone_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    gone = ProcessIdentity(process.pid, 1, boot_id())
    assert identify(process.pid) is None
    assert not is_same(gone)
    assert end([gone], 0.1) == []


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    assert wait_until(lambda: identify(process.pid) is None, 20)
    assert process.wait() == 0


def test_a_process_that_ignores_sigterm_is_killed(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    polite = start(processes, SLEEPER)
    stubborn = start(processes, STUBBORN)
    assert end([polite, stubborn], 0.3) == [stubborn]
    assert processes[0].wait() == -signal.SIGTERM
    assert processes[1].wait() == -signal.SIGKILL


def test_descendants_include_grandchildren(processes: list[subprocess.Popen[bytes]]) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
    parent = start(processes, program)
    below = descendants(parent.pid)
    assert len(below) == 1
    assert {parent.pid, below[0].pid} <= {identity.pid for identity in descendants(os.getpid())}
    end([*below, parent], 5)


def test_a_tied_process_ends_with_its_parent(processes: list[subprocess.Popen[bytes]]) -> None:
    program = (
        "import subprocess, sys; from duckctl.process import die_with_parent; "
        f"subprocess.run([sys.executable, '-c', {SLEEPER!r}], preexec_fn=die_with_parent)"
    )
    parent = start(processes, program)
    (child,) = descendants(parent.pid)
    send([parent], signal.SIGKILL)
    assert wait_until(lambda: not is_same(child), 10)


def test_die_with_parent_is_harmless_in_a_parent_that_lives() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "print('alive')"],
        preexec_fn=die_with_parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "alive\n"


def test_silence_and_an_early_end_are_no_ready_line(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    for program in ("import signal; signal.pause()", "pass", "print('half', end='')"):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        assert read_ready_line(process.stdout, 0.5 if "pause" in program else 20) is None


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "d01.log"
    assert tail(log) == ""
    log.write_text("".join(f"line {n}\n" for n in range(5000)), encoding="utf-8")
    assert tail(log, 2) == "line 4998\nline 4999"
