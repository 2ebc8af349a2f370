"""What ``duckctl lab`` does when the lab's backend is qemu."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer

from duckctl.console import print_json, print_table, talk
from duckctl.errors import ExitCode, UsageError
from duckctl.lab.state import LabError, LabFolder
from duckctl.lab.vm import lab, machine, needs, shape, stages
from duckctl.lab.vm.shape import VmShape
from duckctl.lab.vm.state import VmState, required
from duckctl.process import INTERRUPTS, heeded

PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)

ACTIONS: dict[str, Callable[[LabFolder, Sequence[str]], VmState]] = {
    "on": lab.switch_on,
    "off": lab.switch_off,
    "cycle": lab.cycle,
    "reset": lab.reset,
    "hang": lab.hang,
    "resume": lab.resume,
}


def shape_of(
    *, ducks: int, domains: int, backend: str, cores: str, mtu: int, poll: str, boot: str,
    firmware: str, nic: str, memory: str, dispatch: str, bmc: bool,
) -> VmShape:  # fmt: skip
    """The shape that the options of `lab up` ask for. Raises UsageError."""
    return VmShape(
        ducks=ducks,
        domains=domains,
        kinds=shape.choices(backend, "--backend", shape.Kind),
        firmware=shape.choices(firmware, "--firmware", shape.Firmware),
        nics=shape.choices(nic, "--nic", shape.Nic),
        cores=shape.numbers(cores, "--cores-per-duck", 1, shape.CORES_MAX),
        memory_mib=shape.numbers(memory, "--memory", shape.MEMORY_MIB_MIN, shape.MEMORY_MIB_MAX),
        boot=one(boot, "--boot", shape.Boot),
        mtu=mtu,
        poll=poll,
        dispatch=one(dispatch, "--dispatch", shape.Dispatch),
        bmc=bmc,
    )


def one(text: str, option: str, kinds: object) -> Any:
    """A choice that is the same for all ducks."""
    words: tuple[str, ...] = shape.choices(text, option, kinds)
    if len(words) > 1:
        raise UsageError(f"{option} {text}: all ducks of a lab have the same")
    return words[0]


def up(
    folder: LabFolder, wanted: VmShape, image: str, *, power: bool, wait: bool, as_json: bool
) -> None:
    """Makes the lab and waits for every duck's answer."""
    marks = stages.LogMarks.now(folder)
    state = lab.up(folder, wanted, image, power)
    names = [duck.name for duck in state.ducks]
    if power and wait:
        stages.await_ducks(folder, state, names, marks)
    elif power:
        lab.require_on(folder, state, names)
    report(folder, as_json)
    talk(f"inventory: {folder.inventory}")
    talk("its ducks answer in the lab's network only: duckctl lab exec -- duckctl health")


def down(folder: LabFolder) -> int:
    """Ends the lab; the number of ended processes."""
    return lab.down(folder)


def restart(folder: LabFolder, names: Sequence[str], as_json: bool) -> None:
    """Power-cycles ducks and waits for their answers."""
    marks = stages.LogMarks.now(folder)
    state = lab.cycle(folder, names)
    stages.await_ducks(folder, state, names, marks)
    report(folder, as_json)


def power(folder: LabFolder, action: str, names: Sequence[str], as_json: bool) -> None:
    """One press of a switch."""
    if action not in ACTIONS:
        raise UsageError(f"'{action}' is none of {', '.join(ACTIONS)}")
    state = required(folder)
    dead = [name for name in names if lab.state_of(folder, state, state.duck(name)) == "off"]
    if dead and action == "off":
        raise LabError(f"{', '.join(dead)}: off already", "see: duckctl lab status")
    state = ACTIONS[action](folder, names)
    if action in ("on", "cycle"):
        lab.require_on(folder, state, names)
    report(folder, as_json)


def status(folder: LabFolder, as_json: bool) -> None:
    """Exit code 3 when some ducks do not run, 4 when none does."""
    states = report(folder, as_json)
    running = sum(state == "on" for state in states)
    if running < len(states):
        raise typer.Exit(ExitCode.PARTIAL if running else ExitCode.UNREACHABLE)


def report(folder: LabFolder, as_json: bool) -> list[str]:
    """Prints the lab as it is and gives the ducks' states."""
    state = required(folder)
    states = [lab.state_of(folder, state, duck) for duck in state.ducks]
    if as_json:
        print_json(_document(folder, state, states))
        return list(states)
    rows = []
    for duck, now in zip(state.ducks, states, strict=True):
        process = state.running(machine.role_of(duck))
        box = "process"
        if duck.kind == "qemu":
            box = f"{duck.firmware} {duck.nic} {duck.memory_mib} MiB"
        rows.append(
            (
                duck.name, f"domain{duck.domain}", duck.address, box, duck.cores,
                process.pid if process else 0, now, folder.log(duck.name),
            )
        )  # fmt: skip
    columns = ("duck", "domain", "address", "box", "cores>", "pid>", "state", "log")
    print_table("", columns, rows)
    return list(states)


def _document(folder: LabFolder, state: VmState, states: Sequence[str]) -> dict[str, object]:
    ducks = []
    for duck, now in zip(state.ducks, states, strict=True):
        process = state.running(machine.role_of(duck))
        ducks.append(
            {
                "name": duck.name,
                "domain": f"domain{duck.domain}",
                "address": duck.address,
                "port": shape.WIRE_PORT,
                "mac": duck.mac,
                "kind": duck.kind,
                "firmware": duck.firmware if duck.kind == "qemu" else None,
                "nic": duck.nic if duck.kind == "qemu" else None,
                "cores": duck.cores,
                "memory_mib": duck.memory_mib if duck.kind == "qemu" else None,
                "pid": process.pid if process else 0,
                "state": now,
                "log": str(folder.log(duck.name)),
            }
        )
    return {
        "state_dir": str(folder.root),
        "backend": "qemu",
        "inventory": str(folder.inventory),
        "host_namespace": state.namespace("host"),
        "image": state.image,
        "ducks": ducks,
    }


def execute(folder: LabFolder, command: Sequence[str]) -> NoReturn:
    """Becomes the command, in the host's namespace: all signals are the command's to handle.

    Raises UsageError.
    """
    arguments = [*lab.require_inside(required(folder)), *command]
    sys.stdout.flush()
    sys.stderr.flush()
    # From here to the command's start a signal ends this process. Python ignores PYTHON_IGNORES.
    ours = (*heeded(INTERRUPTS), *PYTHON_IGNORES)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ours}
    try:
        os.execvpe(arguments[0], arguments, needs.environment())
    except OSError as error:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise UsageError(f"cannot run {command[0]}: {error.strerror}") from error


def timings(folder: LabFolder, as_json: bool) -> None:
    """The stages of the last boot of each duck."""
    found = stages.load_timings(folder)
    if as_json:
        print_json({"ducks": [timing.document() for timing in found]})
        return
    rows = [(timing.name, *(stages.shown(value) for value in timing.times())) for timing in found]
    print_table("seconds since power-on", ("duck", *(f"{s}>" for s in stages.STAGES)), rows)
