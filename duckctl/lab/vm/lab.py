"""A qemu lab's life: up, down, and the power switches of its ducks.

Every change happens under the folder's lock; waiting for ducks that boot does not.
"""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from duckctl.console import talk, warn
from duckctl.errors import UsageError
from duckctl.keys import make_key, public_key
from duckctl.lab.ducks import duckd_command
from duckctl.lab.state import LabDuck, LabError, LabFolder
from duckctl.lab.vm import boot, machine, needs, network, qmp
from duckctl.lab.vm.inventory import BMC_PASSWORD_FILE, vm_inventory
from duckctl.lab.vm.shape import WIRE_PORT, VmDuck, VmShape, new_lab_id, plan
from duckctl.lab.vm.start import Launch, finish, start
from duckctl.lab.vm.state import Process, VmState, load, required, save
from duckctl.process import boot_id, is_stopped, send, tail, wait_until

SIGNAL_TIMEOUT_S = 1.0
MADE_TIMEOUT_S = 15.0
MachineState = Literal["on", "off", "hung"]


def up(folder: LabFolder, shape: VmShape, image: str, power: bool = True) -> VmState:
    """Makes the lab, or starts what does not run of it; then every duck is switched on.

    Without ``power`` ducks stay as they are: off, in a new lab.
    """
    ducks = plan(shape)
    needs.require(shape)
    with folder.locked():
        state = load(folder)
        if state is None and any(duck.is_running() for duck in _process_ducks(folder)):
            raise UsageError(
                f"a lab of process ducks runs in {folder.root}",
                "end it with `duckctl lab down`, or use another --state-dir",
            )
        if state is not None and state.is_complete and network.is_made(state):
            if state.shape != shape or state.image != image:
                raise UsageError(
                    f"a lab of another shape is up in {folder.root}: {state.shape.describe()}",
                    "end it with `duckctl lab down`, or use another --state-dir",
                )
        else:
            if state is not None:
                _tear_down(folder, state)  # an earlier `up` did not get to its end
            state = network.planned(
                VmState(new_lab_id(), boot_id(), shape, ducks, namespaces=(), image=image)
            )
            save(folder, state)
        is_new = not state.is_complete
        try:
            state = _make(folder, state)
            chosen = [duck for duck in ducks if power and _is_off(state, duck)]
            state = _switch_on(folder, state, chosen)
        except BaseException:
            if is_new:
                _tear_down(folder, load(folder) or state)
            raise
    if power and not chosen:
        talk(f"all {len(ducks)} ducks have power already")
    return state


def _process_ducks(folder: LabFolder) -> Sequence[LabDuck]:
    state = folder.load() if folder.backend() == "process" else None
    return state.ducks if state else ()


def _make(folder: LabFolder, state: VmState) -> VmState:
    """Network, key, inventory, image and services, unless they are there."""
    if not state.is_complete:
        state = network.make(folder, state)
    if not folder.key_file.exists():
        make_key(folder.key_file)
    public_key(folder.key_file)  # checks the pair
    if state.shape.bmc:
        _make_password(folder.root / BMC_PASSWORD_FILE)
    folder.inventory.write_text(vm_inventory(state, folder.key_file.name), encoding="utf-8")
    if "qemu" in state.shape.kinds:
        boot.prepare_image(folder, state.image)
    missing = [
        Launch(Process(service.role, service.words), service.arguments, service.log)
        for service in boot.services(folder, state)
        if state.running(service.role) is None
    ]
    state = start(folder, state, missing)
    boot.await_services(folder, state)
    state = replace(state, is_complete=True)
    save(folder, state)
    return state


def _make_password(path: Path) -> None:
    """A password for the board controllers; one that is there stays."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(8) + "\n", encoding="ascii")


def down(folder: LabFolder) -> int:
    """Ends the lab's processes, removes its namespaces, and gives the number of processes."""
    if load(folder) is None:
        return 0  # nothing is written into a folder without a lab
    with folder.locked():
        state = load(folder)
        return 0 if state is None else _tear_down(folder, state)


def _tear_down(folder: LabFolder, state: VmState) -> int:
    ducks = [machine.role_of(duck) for duck in state.ducks]
    # The service that starts ducks on request ends before the ducks do.
    services = [p.role for p in state.processes if p.role not in ducks]
    count = len(finish(state, services)) + len(finish(state, ducks))
    for name, pids in network.foreign_processes(state).items():
        warn(
            f"other processes use the network of {name} and keep it alive until they end: "
            f"{', '.join(map(str, pids))}"
        )
    network.remove(state)
    shutil.rmtree(folder.root / "machines", ignore_errors=True)
    folder.forget()
    return count


# ---- power ------------------------------------------------------------------------------------


def state_of(folder: LabFolder, state: VmState, duck: VmDuck) -> MachineState:
    """``hung``: the machine has power, but its processors stand still."""
    process = state.running(machine.role_of(duck))
    if process is None:
        return "off"
    if duck.kind == "process":
        return "hung" if is_stopped(process) else "on"
    answer = qmp.ask(machine.folder_of(folder, duck) / machine.MONITOR, "query-status")
    return "on" if answer["running"] else "hung"


def _is_off(state: VmState, duck: VmDuck) -> bool:
    return state.running(machine.role_of(duck)) is None


def switch_on(folder: LabFolder, names: Sequence[str]) -> VmState:
    """Gives power to the named ducks; those that have it are left alone."""
    with _locked(folder) as state:
        chosen = [duck for duck in _chosen(state, names) if _is_off(state, duck)]
        return _switch_on(folder, state, chosen)


def switch_off(folder: LabFolder, names: Sequence[str]) -> VmState:
    """A power cut: the machine's process is killed, nothing is flushed."""
    with _locked(folder) as state:
        finish(state, [machine.role_of(d) for d in _chosen(state, names)], is_gentle=False)
        return state


def cycle(folder: LabFolder, names: Sequence[str]) -> VmState:
    """Power off and on again."""
    with _locked(folder) as state:
        chosen = _chosen(state, names)
        finish(state, [machine.role_of(duck) for duck in chosen], is_gentle=False)
        return _switch_on(folder, state, chosen)


def reset(folder: LabFolder, names: Sequence[str]) -> VmState:
    """The reset button: processors start anew, power stays."""
    return _press(folder, names, "system_reset", None)


def hang(folder: LabFolder, names: Sequence[str]) -> VmState:
    """Stops the processors, as a locked-up machine: it has power and answers nothing."""
    return _press(folder, names, "stop", signal.SIGSTOP)


def resume(folder: LabFolder, names: Sequence[str]) -> VmState:
    """Lets the processors of hung machines run on."""
    return _press(folder, names, "cont", signal.SIGCONT)


def _press(
    folder: LabFolder, names: Sequence[str], command: str, number: signal.Signals | None
) -> VmState:
    with _locked(folder) as state:
        for duck in _chosen(state, names):
            identity = state.running(machine.role_of(duck))
            if identity is None:
                raise LabError(f"{duck.name} is off", f"duckctl lab power on {duck.name}")
            if duck.kind == "qemu":
                qmp.ask(machine.folder_of(folder, duck) / machine.MONITOR, command)
            elif number is not None:
                send([identity], number)
                stop = number == signal.SIGSTOP
                wait_until(lambda: is_stopped(identity) == stop, SIGNAL_TIMEOUT_S)  # noqa: B023
            else:
                raise UsageError(f"{duck.name} is a process and has no reset button")
        return state


@contextmanager
def _locked(folder: LabFolder) -> Iterator[VmState]:
    """The lab under its lock. Raises LabError, and writes nothing, where there is none."""
    required(folder)
    with folder.locked():
        yield required(folder)


def _chosen(state: VmState, names: Sequence[str]) -> list[VmDuck]:
    return [state.duck(name) for name in names]


def _switch_on(folder: LabFolder, state: VmState, ducks: Sequence[VmDuck]) -> VmState:
    options = boot.start_options(folder, state) if ducks else ()
    return start(folder, state, [_launch(folder, state, duck, options) for duck in ducks])


def _launch(
    folder: LabFolder, state: VmState, duck: VmDuck, start_options: Sequence[str]
) -> Launch:
    log = folder.log(duck.name)
    role = machine.role_of(duck)
    if duck.kind == "process":
        command = duckd_command(
            folder, duck.name, duck.address, WIRE_PORT, duck.cores, state.shape.poll
        )
        words = (duck.name, f"{duck.address}:{WIRE_PORT}", str(folder.public_key_file))
        arguments = network.inside(state.namespace(duck.name), command)
        return Launch(Process(role, words), arguments, log, banner=log)
    place = machine.folder_of(folder, duck)
    place.mkdir(parents=True, exist_ok=True)
    (place / machine.MONITOR).unlink(missing_ok=True)
    if duck.firmware == "uefi" and not (place / machine.VARIABLES).exists():
        shutil.copyfile(needs.OVMF_VARIABLES, place / machine.VARIABLES)
    command = machine.guest_command(state, folder, duck, start_options)
    arguments = network.inside(state.namespace("sw"), command)
    process = Process(role, (machine.mark_of(state, duck),))
    return Launch(process, arguments, monitor_log(folder, duck), place, banner=log)


def monitor_log(folder: LabFolder, duck: VmDuck) -> Path:
    """What QEMU itself said; the guest's serial console is ``folder.log``."""
    return folder.root / "logs" / f"{duck.name}.qemu.log"


def require_on(folder: LabFolder, state: VmState, names: Sequence[str]) -> None:
    """Raises LabError for a machine that QEMU could not make; waits until each is made or not."""
    for duck in _chosen(state, names):
        if duck.kind == "qemu":
            wait_until(
                lambda: _is_off(state, duck) or _is_made(folder, duck),  # noqa: B023
                MADE_TIMEOUT_S,
            )
        if _is_off(state, duck):
            raise LabError(f"{duck.name} ended at once; {last_words(folder, duck)}")


def _is_made(folder: LabFolder, duck: VmDuck) -> bool:
    """QEMU's monitor answers when the machine is made; one that ends meanwhile may cut it off."""
    try:
        qmp.ask(machine.folder_of(folder, duck) / machine.MONITOR, "query-status")
    except qmp.QmpError:
        return False
    return True


def last_words(folder: LabFolder, duck: VmDuck) -> str:
    """The ends of a duck's logs."""
    logs = [folder.log(duck.name)] + ([monitor_log(folder, duck)] if duck.kind == "qemu" else [])
    return "\n".join(f"the end of {log}:\n{tail(log)}" for log in logs)


def require_inside(state: VmState) -> list[str]:
    """What to put in front of a command that must run in the lab's host namespace."""
    host = state.namespace("host")
    return [] if network.is_inside(host) else network.inside(host, [])
