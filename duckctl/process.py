"""Processes that duckctl starts: identity that survives pid reuse, ready lines, a sure end.

Linux only: what a pid is comes from /proc.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

READY_LINE_BYTES_MAX = 4096
POLL_S = 0.01
TAIL_LINES = 8
TAIL_BYTES = 4096


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid with its start time (clock ticks since boot) and the boot it belongs to."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """Changes with every start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat_fields(pid: int) -> list[str] | None:
    """State and later fields of /proc/PID/stat (proc(5)); None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a live process; None when it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def is_stopped(identity: ProcessIdentity) -> bool:
    """True while a signal (SIGSTOP) holds the process."""
    fields = _stat_fields(identity.pid)
    return fields is not None and fields[0] == "T"


def command_line(pid: int) -> list[str]:
    """Arguments of a live process; empty when it is gone, and for a moment of each execve(2)."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0") if part]


def descendants(pid: int) -> list[ProcessIdentity]:
    """All live processes below ``pid``, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[ProcessIdentity] = []
    waiting = list(children.get(pid, []))
    while waiting:
        child = waiting.pop(0)
        identity = identify(child)
        if identity is not None:
            found.append(identity)
        waiting += children.get(child, [])
    return found


def is_same(identity: ProcessIdentity, words: Iterable[str] = ()) -> bool:
    """True if the process still lives and is the one meant: start time, boot and arguments.

    A process without arguments is in the middle of an execve(2): its start time has to do then.
    """
    if identify(identity.pid) != identity:
        return False
    arguments = command_line(identity.pid)
    return not arguments or all(word in arguments for word in words)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Polls a condition; False when ``timeout_s`` has passed first."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(identities: Sequence[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    """Ends processes: SIGTERM to all, SIGKILL to those that are left after ``timeout_s``.

    Gives those that had to be killed. Processes that are no longer the ones meant are left alone.
    """
    send(identities, signal.SIGTERM)
    if wait_until(lambda: not any(is_same(identity) for identity in identities), timeout_s):
        return []
    stubborn = [identity for identity in identities if is_same(identity)]
    send(stubborn, signal.SIGKILL)
    wait_until(lambda: not any(is_same(identity) for identity in stubborn), timeout_s)
    return stubborn


def send(identities: Iterable[ProcessIdentity], number: signal.Signals) -> None:
    """A signal to each process that is still the one meant.

    A pidfd is opened before the check, so the signal cannot hit a later process of the same pid.
    """
    for identity in identities:
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            continue
        try:
            if is_same(identity):
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)


def tail(path: Path, lines_max: int = TAIL_LINES) -> str:
    """The last lines of a log, empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines_max:])


def read_ready_line(stream: IO[bytes], timeout_s: float) -> str | None:
    """The first line of a starting process; None when it ended or stayed silent."""
    descriptor = stream.fileno()
    os.set_blocking(descriptor, False)
    deadline = time.monotonic() + timeout_s
    collected = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while b"\n" not in collected and len(collected) < READY_LINE_BYTES_MAX:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            chunk = os.read(descriptor, READY_LINE_BYTES_MAX)
            if not chunk:
                return None
            collected += chunk
    return collected.split(b"\n")[0].decode("utf-8", errors="replace").strip()


def start_detached(
    arguments: Sequence[str | os.PathLike[str]], log: Path, tied: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a process in its own session: stderr in ``log``, stdout a pipe.

    It outlives duckctl, unless it is ``tied``: then it ends with duckctl, however that ends.
    """
    with log.open("ab") as log_file:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
            cwd="/",
            preexec_fn=die_with_parent if tied else None,
        )


class ToldToEnd(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends also what takes Ctrl-C for something smaller."""


INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those that this process does not ignore (as nohup makes it ignore SIGHUP)."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs inside as Ctrl-C does, so that it cleans up behind itself.

    A signal that is ignored stays so.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise ToldToEnd

    numbers = heeded((signal.SIGTERM, signal.SIGHUP))
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Between fork and exec: the kernel sends SIGTERM to this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
