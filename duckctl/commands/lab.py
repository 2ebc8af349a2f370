"""``duckctl lab``: a fleet on this machine, of processes or of virtual boxes."""

from __future__ import annotations

from pathlib import Path

import typer

from duckctl.commands import lab_vm
from duckctl.console import print_json, print_table, talk, warn
from duckctl.errors import ExitCode, UsageError
from duckctl.health import fleet_health, probe
from duckctl.inventory import load_inventory, select
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabDuck, LabError, LabFolder, LabShape, LabState, default_folder
from duckctl.lab.vm.shape import numbers
from duckctl.process import tail

app = typer.Typer(help="A fleet on this machine: duck processes, or boxes in virtual networks.")

STATE_DIR = typer.Option(
    None, "--state-dir", help="Folder of the lab.  [default: $XDG_STATE_HOME/duckctl/lab]"
)
PROBE_TIMEOUT_S = 3.0
TYPED = "COMMANDLINE"  # the source of an option that was given, not left to its default
# What duck processes have no use for.
QEMU_OPTIONS = ("boot", "firmware", "nic", "memory", "image", "dispatch", "bmc", "off")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
NAMES = typer.Argument(help="Ducks, e.g. d02.")


def _folder(state_dir: Path | None) -> LabFolder:
    return LabFolder((state_dir or default_folder()).absolute())


def _duck_state(duck: LabDuck) -> str:
    return "running" if duck.is_running() else "dead" if duck.pid else "not started"


def _report(folder: LabFolder, state: LabState | None, as_json: bool) -> None:
    ducks = state.ducks if state else ()
    if as_json:
        print_json(
            {
                "state_dir": str(folder.root),
                "inventory": str(folder.inventory) if state else None,
                "ducks": [
                    {
                        "name": duck.name,
                        "domain": duck.domain,
                        "address": duck.address,
                        "port": duck.port,
                        "pid": duck.pid,
                        "state": _duck_state(duck),
                        "build": duck.build,
                        "log": str(folder.log(duck.name)),
                    }
                    for duck in ducks
                ],
            }
        )
        return
    rows = [
        (d.name, d.domain, f"{d.address}:{d.port}", d.pid, _duck_state(d), folder.log(d.name))
        for d in ducks
    ]
    if rows:
        print_table("", ("duck", "domain", "address", "pid>", "state", "log"), rows)


def _require_answers(folder: LabFolder, names: list[str]) -> None:
    """The ducks answer to the lab's key: what a host will see, not only that processes run."""
    fleet = load_inventory(folder.inventory)
    report = fleet_health(probe(fleet, select(fleet, ",".join(names)), PROBE_TIMEOUT_S))
    for duck in report.ducks:
        if not duck.reachable:
            raise LabError(
                f"{duck.name} runs, but {duck.problem}; the end of {folder.log(duck.name)}:\n"
                f"{tail(folder.log(duck.name))}"
            )
        if duck.problem:
            warn(f"{duck.name} {duck.problem}")


def _process_cores(context: typer.Context, cores: str, wait: bool) -> int:
    """Cores of each duck process. Raises UsageError for options that only virtual boxes heed."""
    sources = {name: context.get_parameter_source(name) for name in QEMU_OPTIONS}
    given = [f"--{name}" for name, source in sources.items() if source and source.name == TYPED]
    if not wait:
        given.append("--no-wait")
    if given:
        raise UsageError(
            f"duck processes have no {', '.join(given)}", "add --backend qemu, or leave it out"
        )
    counts = numbers(cores, "--cores-per-duck", 1, 64)
    if len(counts) > 1:
        raise UsageError(
            f"--cores-per-duck {cores}: duck processes have one number of cores",
            "give one number, or add --backend qemu",
        )
    return counts[0]


@app.command()
def up(
    context: typer.Context,
    ducks: int = typer.Option(4, "--ducks", help="Number of ducks."),
    domains: int = typer.Option(1, "--domains", help="Number of domains they are spread over."),
    backend: str = typer.Option(
        "process", "--backend", help="process, qemu, or qemu,process: dealt out in turn."
    ),
    cores: str = typer.Option("1", "--cores-per-duck", help="Cores of each duck; qemu: 1,4 too."),
    mtu: int = typer.Option(1500, "--mtu", min=1500, max=9000, help="MTU of the domains."),
    poll: str = typer.Option("block", "--poll", help="Processes: block, sleep or spin."),
    boot: str = typer.Option(
        "pxe", "--boot", help="qemu: pxe, proxy (beside another DHCP server), http or kernel."
    ),
    firmware: str = typer.Option("bios", "--firmware", help="qemu: bios, uefi or bios,uefi."),
    nic: str = typer.Option("virtio", "--nic", help="qemu: virtio, e1000e or virtio,e1000e."),
    memory: str = typer.Option("128", "--memory", help="qemu: MiB of each guest."),
    image: str = typer.Option("duckos", "--image", help="qemu: what guests boot; a name or FILE."),
    dispatch: str = typer.Option("broadcast", "--dispatch", help="qemu: of CALLs; or unicast."),
    bmc: bool = typer.Option(False, "--bmc", help="qemu: a board controller (IPMI) per guest."),
    off: bool = typer.Option(False, "--off", help="qemu: leave the boxes without power."),
    wait: bool = typer.Option(True, "--wait/--no-wait", help="qemu: until every duck answers."),
    state_dir: Path | None = STATE_DIR,
    as_json: bool = AS_JSON,
) -> None:
    """Start ducks and write an inventory of them; ducks that run already are left alone.

    \b
    Examples:
      duckctl lab up --ducks 4
      duckctl lab up --ducks 8 --domains 4 --state-dir /tmp/lab8
      duckctl lab up --backend qemu --ducks 2 --firmware bios,uefi
      duckctl lab up --backend qemu,process --ducks 2 --boot kernel
    """
    folder = _folder(state_dir)
    if poll not in ("block", "sleep", "spin"):
        raise typer.BadParameter("expected block, sleep or spin", param_hint="--poll")
    if backend != "process":
        lab_vm.up(
            folder,
            lab_vm.shape_of(
                ducks=ducks, domains=domains, backend=backend, cores=cores, mtu=mtu, poll=poll,
                boot=boot, firmware=firmware, nic=nic, memory=memory, dispatch=dispatch, bmc=bmc,
            ),
            image,
            power=not off,
            wait=wait,
            as_json=as_json,
        )  # fmt: skip
        return
    core_count = _process_cores(context, cores, wait)
    if folder.backend() == "qemu":
        raise UsageError(
            f"a qemu lab is up in {folder.root}",
            "end it with `duckctl lab down`, or use another --state-dir",
        )
    state = lab.up(folder, LabShape(ducks, domains, core_count, mtu, poll))
    _require_answers(folder, [duck.name for duck in state.ducks])
    _report(folder, state, as_json)
    talk(f"inventory: {folder.inventory}")


@app.command()
def down(state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON) -> None:
    """End the lab's ducks and what was made for them; logs and key stay.

    \b
    Examples:
      duckctl lab down
      duckctl lab down --state-dir /tmp/lab8
    """
    folder = _folder(state_dir)
    count = lab_vm.down(folder) if folder.backend() == "qemu" else lab.down(folder)
    if as_json:
        print_json({"state_dir": str(folder.root), "processes_ended": count})
        return
    talk(f"{count} processes ended" if count else f"no lab runs in {folder.root}")


@app.command()
def status(state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON) -> None:
    """Show the lab's ducks. Exit code 3 when some do not run, 4 when none does.

    \b
    Examples:
      duckctl lab status
      duckctl lab status --json
    """
    folder = _folder(state_dir)
    if folder.backend() == "qemu":
        lab_vm.status(folder, as_json)
        return
    state = folder.load()
    _report(folder, state, as_json)
    running = sum(duck.is_running() for duck in state.ducks) if state else 0
    if state is None:
        talk(f"no lab in {folder.root}; start one: duckctl lab up --ducks 4")
    if running == 0:
        raise typer.Exit(ExitCode.UNREACHABLE)
    if state is not None and running < len(state.ducks):
        raise typer.Exit(ExitCode.PARTIAL)


@app.command()
def restart(
    names: list[str] = NAMES, state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON
) -> None:
    """Restart ducks at their old addresses, with empty memory, and wait for them.

    \b
    Examples:
      duckctl lab restart d02
      duckctl lab restart d01 d03 --state-dir /tmp/lab8
    """
    folder = _folder(state_dir)
    if folder.backend() == "qemu":
        lab_vm.restart(folder, names, as_json)
        return
    state = lab.restart(folder, names)
    _require_answers(folder, names)
    _report(folder, state, as_json)


@app.command()
def kill(
    names: list[str] = NAMES, state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON
) -> None:
    """Kill ducks at once, as a power cut would.

    \b
    Examples:
      duckctl lab kill d02
    """
    folder = _folder(state_dir)
    if folder.backend() == "qemu":
        lab_vm.power(folder, "off", names, as_json)
        return
    _report(folder, lab.kill(folder, names), as_json)


@app.command()
def power(
    action: str = typer.Argument(help="on, off, cycle, reset, hang or resume."),
    names: list[str] = NAMES,
    state_dir: Path | None = STATE_DIR,
    as_json: bool = AS_JSON,
) -> None:
    """Press the switches of a qemu lab's ducks; does not wait for them to boot.

    \b
    Examples:
      duckctl lab power hang d01      its processors stand still, as in a locked-up machine
      duckctl lab power cycle d01
    """
    lab_vm.power(_folder(state_dir), action, names, as_json)


@app.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def execute(
    command: list[str] = typer.Argument(help="The command and its arguments."),
    state_dir: Path | None = STATE_DIR,
) -> None:
    """Run a command in the network of a qemu lab's host; its exit code is this one's.

    \b
    Examples:
      duckctl lab exec -- duckctl health
      duckctl lab exec -- duckctl serve ducklet --shard
      duckctl lab exec -- tcpdump -ni nic1
    """
    lab_vm.execute(_folder(state_dir), command)


@app.command()
def timings(state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON) -> None:
    """Show how long each stage of a qemu lab's last boot took, from power-on to HELLO.

    \b
    Examples:
      duckctl lab timings
      duckctl lab timings --json
    """
    lab_vm.timings(_folder(state_dir), as_json)
