"""Starts, restarts and ends the process ducks of a lab.

A folder's ``lab.json`` names every process before it is asked anything, so a later ``lab down``
finds ducks of an interrupted ``lab up`` too. Only recorded processes are ever ended, and only
after their start time and arguments were compared.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from duckctl.console import detail, talk
from duckctl.errors import UsageError
from duckctl.keys import make_key, public_key
from duckctl.lab.inventory_text import lab_inventory
from duckctl.lab.state import LabDuck, LabError, LabFolder, LabShape, LabState
from duckctl.native import native_path
from duckctl.process import (
    INTERRUPTS,
    ToldToEnd,
    end,
    heeded,
    identify,
    read_ready_line,
    send,
    start_detached,
    tail,
    wait_until,
)

READY_TIMEOUT_S = 10.0
END_TIMEOUT_S = 3.0
DUCKS_MAX = 64
DOMAINS_MAX = 16
READY_LINE = re.compile(
    r"duckd ready name=(?P<name>\S+) listen=(?P<address>[\d.]+):(?P<port>\d+)\S*"
    r" pid=(?P<pid>\d+) build=(?P<build>[0-9a-f]{40})"
)


def plan(shape: LabShape) -> tuple[LabDuck, ...]:
    """Names and addresses of a lab's ducks: domains in turn get equal runs of ducks."""
    if not 1 <= shape.ducks <= DUCKS_MAX:
        raise UsageError(f"--ducks {shape.ducks}: a lab has 1 to {DUCKS_MAX} ducks")
    if not 1 <= shape.domains <= min(DOMAINS_MAX, shape.ducks):
        limit = min(DOMAINS_MAX, shape.ducks)
        raise UsageError(
            f"--domains {shape.domains}: {shape.ducks} ducks can be in 1 to {limit} domains"
        )
    ducks = []
    for slot in range(shape.ducks):
        domain = slot * shape.domains // shape.ducks
        first = -(-domain * shape.ducks // shape.domains)
        address = f"127.21.{domain + 1}.{11 + slot - first}"
        ducks.append(LabDuck(f"d{slot + 1:02}", f"domain{domain + 1}", address))
    return tuple(ducks)


def up(folder: LabFolder, shape: LabShape, tied: bool = False) -> LabState:
    """Starts what does not run yet; a second call changes nothing.

    ``tied`` ducks end when this process ends.
    """
    fresh = plan(shape)
    with folder.locked():
        before = state = folder.load()
        if state is not None and any(duck.is_running() for duck in state.ducks):
            if state.shape != shape:
                raise UsageError(
                    f"a lab of another shape runs in {folder.root} ({_describe(state.shape)})",
                    "end it with `duckctl lab down`, or use another --state-dir",
                )
        else:
            state = LabState(shape, fresh)
        if not folder.key_file.exists():
            make_key(folder.key_file)
        public_key(folder.key_file)  # checks the pair
        missing = [duck for duck in state.ducks if not duck.is_running()]
        if not missing:
            talk(f"all {shape.ducks} ducks run already")
        state = _start(folder, state, missing, before, tied)
        folder.inventory.write_text(lab_inventory(state, folder), encoding="utf-8")
        return state


def _describe(shape: LabShape) -> str:
    return (
        f"{shape.ducks} ducks in {shape.domains} domain{'s' if shape.domains > 1 else ''}, "
        f"{shape.cores_per_duck} core{'s' if shape.cores_per_duck > 1 else ''} each, "
        f"MTU {shape.mtu}, poll {shape.poll}"
    )


def down(folder: LabFolder) -> int:
    """Ends the lab's own processes and gives their number."""
    if folder.load() is None:
        return 0  # nothing is written into a folder without a lab
    with folder.locked():
        state = folder.load()
        if state is None:
            return 0
        running = [duck for duck in state.ducks if duck.is_running()]
        for killed in end([duck.process for duck in running], END_TIMEOUT_S):
            talk(f"duckd {killed.pid} did not end in {END_TIMEOUT_S:.0f} s and was killed")
        left = [duck.name for duck in running if duck.is_running()]
        if left:
            raise LabError(f"{', '.join(left)}: the process does not end")
        folder.forget()
        return len(running)


def restart(folder: LabFolder, names: Sequence[str]) -> LabState:
    """Ends the named ducks if they run and starts them on their old ports."""
    with _locked(folder) as state:
        chosen = [state.duck(name) for name in names]
        end([duck.process for duck in chosen if duck.is_running()], END_TIMEOUT_S)
        return _start(folder, state, chosen, state)


def kill(folder: LabFolder, names: Sequence[str]) -> LabState:
    """SIGKILL to the named ducks, as a power cut would end them."""
    with _locked(folder) as state:
        chosen = [state.duck(name) for name in names]
        dead = [duck.name for duck in chosen if not duck.is_running()]
        if dead:
            raise LabError(f"{', '.join(dead)}: no process to kill", "see: duckctl lab status")
        send([duck.process for duck in chosen], signal.SIGKILL)
        end([duck.process for duck in chosen], END_TIMEOUT_S)
        return state


@contextmanager
def _locked(folder: LabFolder) -> Iterator[LabState]:
    """The lab under its lock. Raises LabError, and writes nothing, where there is none."""
    _required(folder)
    with folder.locked():
        yield _required(folder)


def _required(folder: LabFolder) -> LabState:
    state = folder.load() if folder.root.exists() else None
    if state is None:
        raise LabError(f"there is no lab in {folder.root}", "start one: duckctl lab up --ducks 4")
    return state


def _start(
    folder: LabFolder,
    state: LabState,
    ducks: Sequence[LabDuck],
    before: LabState | None,
    tied: bool = False,
) -> LabState:
    """Starts ducks together and waits for their ready lines; all or none of them stay.

    ``before`` is the lab on record, None for a new one: a start that fails leaves it so.
    """
    started: list[tuple[LabDuck, subprocess.Popen[bytes]]] = []
    try:
        for duck in ducks:
            with interrupts_wait():
                process = _spawn(folder, state.shape, duck, tied)
                started.append((duck, process))
            identity = identify(process.pid)
            if identity is None:
                continue
            duck = replace(
                duck, pid=process.pid, start_ticks=identity.start_ticks, boot_id=identity.boot_id
            )
            state = state.with_duck(duck)
            folder.save(state)
        for duck, process in started:
            state = state.with_duck(_await_ready(folder, state.duck(duck.name), process))
        folder.save(state)
    except BaseException:
        _undo(folder, before, [process for _, process in started])
        raise
    return state


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP take effect behind this block: a process that was started is also
    on record."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in heeded(INTERRUPTS)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt if came[0] == signal.SIGINT else ToldToEnd


def _undo(
    folder: LabFolder, before: LabState | None, started: list[subprocess.Popen[bytes]]
) -> None:
    """Ends what a failed start has begun and restores the state of before."""
    for process in started:
        process.kill()
    for process in started:
        process.wait(END_TIMEOUT_S)
    if before is None:
        folder.forget()
    else:
        folder.save(before)


def duckd_command(
    folder: LabFolder, name: str, address: str, port: int, cores: int, poll: str
) -> list[str]:
    """The command line of one process duck."""
    return [
        str(native_path("duckd")),
        *("--name", name),
        *("--listen", f"{address}:{port}"),
        *("--fleet-pub", str(folder.public_key_file)),
        *("--identity-file", str(folder.identity(name))),
        *("--cores", str(cores)),
        *("--poll", poll),
    ]


def _spawn(
    folder: LabFolder, shape: LabShape, duck: LabDuck, tied: bool
) -> subprocess.Popen[bytes]:
    arguments = duckd_command(
        folder, duck.name, duck.address, duck.port, shape.cores_per_duck, shape.poll
    )
    log = folder.log(duck.name)
    detail(f"starting {' '.join(arguments)}")
    try:
        return start_detached(arguments, log, tied)
    except OSError as error:
        raise LabError(f"{duck.name}: cannot start {arguments[0]}: {error.strerror}") from error


def _await_ready(folder: LabFolder, duck: LabDuck, process: subprocess.Popen[bytes]) -> LabDuck:
    assert process.stdout is not None
    with process.stdout as stream:
        line = read_ready_line(stream, READY_TIMEOUT_S)
    match = READY_LINE.fullmatch(line or "")
    if match is None or match["name"] != duck.name or match["address"] != duck.address:
        said = tail(folder.log(duck.name)) or "(its log is empty)"
        if line:
            what = f"answered '{line}' instead of its ready line"
        elif wait_until(lambda: process.poll() is not None, END_TIMEOUT_S):
            what = f"ended with exit code {process.returncode}"
        else:
            what = f"did not become ready within {READY_TIMEOUT_S:.0f} s"
        indented = "\n".join(f"    {text}" for text in said.splitlines())
        raise LabError(f"{duck.name} {what}; the end of {folder.log(duck.name)}:\n{indented}")
    return replace(duck, port=int(match["port"]), build=match["build"])
