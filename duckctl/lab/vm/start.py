"""Starts and ends the processes of a qemu lab: on record first, then started, then noted by pid."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
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


def start(
    folder: LabFolder, state: VmState, process: Process, arguments: Sequence[str], log: Path,
    cwd: Path | None = None,
) -> VmState:  # fmt: skip
    """Starts one process, stdout and stderr in ``log``; it outlives duckctl."""
    state = state.with_process(replace(process, pid=0, start_ticks=0))
    save(folder, state)
    detail(f"starting {' '.join(arguments)}")
    with interrupts_wait():
        try:
            with log.open("ab") as output:
                child = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd=cwd or "/",
                    env=environment(),
                )
        except OSError as error:
            raise LabError(f"{process.role}: cannot start {arguments[0]}: {error}") from error
        identity = identify(child.pid)
        if identity is not None:
            noted = replace(process, pid=identity.pid, start_ticks=identity.start_ticks)
            state = state.with_process(noted)
            save(folder, state)
    return state


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
