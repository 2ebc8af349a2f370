"""Starts and ends the processes of a qemu lab: on record first, then started, then noted by pid."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duckctl.console import detail, talk
from duckctl.lab.ducks import interrupts_wait
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm.needs import environment
from duckctl.lab.vm.state import Process, VmState, save
from duckctl.process import end, identify, send

END_TIMEOUT_S = 5.0
# A lab that was killed between fork and exec has a child that no word of its own names yet.
STARTING_S = 0.2


@dataclass(frozen=True)
class Launch:
    """A process to start: stdout and stderr go to ``log``; ``banner`` gets the time of start."""

    process: Process
    arguments: Sequence[str]
    log: Path
    cwd: Path = Path("/")
    banner: Path | None = None


def start(folder: LabFolder, state: VmState, launches: Sequence[Launch]) -> VmState:
    """Starts processes, which outlive duckctl. All are on record before the first is started."""
    for launch in launches:
        state = state.with_process(replace(launch.process, pid=0, start_ticks=0))
    save(folder, state)
    try:
        for launch in launches:
            with interrupts_wait():
                state = state.with_process(_start_one(launch))
    finally:
        save(folder, state)
    return state


def _start_one(launch: Launch) -> Process:
    detail(f"starting {' '.join(launch.arguments)}")
    if launch.banner is not None:
        with launch.banner.open("a", encoding="utf-8") as file:
            file.write(f"---- power on at {time.time():.3f} ----\n")
    try:
        with launch.log.open("ab") as output:
            child = subprocess.Popen(
                launch.arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=launch.cwd,
                env=environment(),
            )
    except OSError as error:
        role, program = launch.process.role, launch.arguments[0]
        raise LabError(f"{role}: cannot start {program}: {error}") from error
    identity = identify(child.pid)
    if identity is None:
        return launch.process  # it has ended already
    return replace(launch.process, pid=identity.pid, start_ticks=identity.start_ticks)


def finish(state: VmState, roles: Iterable[str], is_gentle: bool = True) -> list[str]:
    """Ends the live processes of these roles and gives their roles; SIGKILL unless gentle."""
    wanted = [process for role in roles if (process := state.process(role)) is not None]
    if any(not process.pid for process in wanted):
        time.sleep(STARTING_S)
    living = {
        process.role: identity
        for process in wanted
        if (identity := state.running(process.role)) is not None
    }
    if not is_gentle:
        send(living.values(), signal.SIGKILL)
    for killed in end(list(living.values()), END_TIMEOUT_S):
        talk(f"process {killed.pid} did not end in {END_TIMEOUT_S:.0f} s and was killed")
    left = [role for role in living if state.running(role) is not None]
    if left:
        raise LabError(f"{', '.join(left)}: the process does not end")
    return list(living)
