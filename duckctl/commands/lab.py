"""``duckctl lab``: process ducks on this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from duckctl.console import print_json, print_table, talk, warn
from duckctl.errors import ExitCode
from duckctl.health import fleet_health, probe
from duckctl.inventory import load_inventory, select
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabDuck, LabError, LabFolder, LabShape, LabState, default_folder
from duckctl.process import tail

app = typer.Typer(help="Start and stop process ducks on this machine (no privileges, loopback).")

STATE_DIR = typer.Option(
    None, "--state-dir", help="Folder of the lab.  [default: $XDG_STATE_HOME/duckctl/lab]"
)
PROBE_TIMEOUT_S = 3.0
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
NAMES = typer.Argument(help="Ducks, e.g. d02.")


def _folder(state_dir: Path | None) -> LabFolder:
    return LabFolder((state_dir or default_folder()).expanduser().absolute())


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


@app.command()
def up(
    ducks: int = typer.Option(4, "--ducks", help="Number of ducks."),
    domains: int = typer.Option(1, "--domains", help="Number of domains they are spread over."),
    cores: int = typer.Option(1, "--cores-per-duck", min=1, max=64, help="Cores of each duck."),
    mtu: int = typer.Option(1500, "--mtu", min=1500, max=9000, help="MTU of the domains."),
    poll: str = typer.Option("block", "--poll", help="Wait policy: block, sleep or spin."),
    state_dir: Path | None = STATE_DIR,
    as_json: bool = AS_JSON,
) -> None:
    """Start ducks and write an inventory of them; ducks that run already are left alone.

    \b
    Examples:
      duckctl lab up --ducks 4
      duckctl lab up --ducks 8 --domains 4 --state-dir /tmp/lab8
    """
    folder = _folder(state_dir)
    if poll not in ("block", "sleep", "spin"):
        raise typer.BadParameter("expected block, sleep or spin", param_hint="--poll")
    state = lab.up(folder, LabShape(ducks, domains, cores, mtu, poll))
    _require_answers(folder, [duck.name for duck in state.ducks])
    _report(folder, state, as_json)
    talk(f"inventory: {folder.inventory}")


@app.command()
def down(state_dir: Path | None = STATE_DIR) -> None:
    """End the lab's ducks; logs and key stay.

    \b
    Examples:
      duckctl lab down
      duckctl lab down --state-dir /tmp/lab8
    """
    folder = _folder(state_dir)
    count = lab.down(folder)
    talk(f"{count} ducks ended" if count else f"no lab runs in {folder.root}")


@app.command()
def status(state_dir: Path | None = STATE_DIR, as_json: bool = AS_JSON) -> None:
    """Show the lab's ducks. Exit code 3 when some do not run, 4 when none does.

    \b
    Examples:
      duckctl lab status
      duckctl lab status --json
    """
    folder = _folder(state_dir)
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
    """Restart ducks on their old ports, with empty memory.

    \b
    Examples:
      duckctl lab restart d02
      duckctl lab restart d01 d03 --state-dir /tmp/lab8
    """
    folder = _folder(state_dir)
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
    _report(folder, lab.kill(folder, names), as_json)
