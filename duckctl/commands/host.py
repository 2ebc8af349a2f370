"""``duckctl host``: the GPU machine, set up and compared by the playbooks."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from duckctl.console import console, print_json, print_table, talk, warn
from duckctl.errors import ExitCode, UsageError
from duckctl.keys import read_public_key
from duckctl.playbook import (
    Event,
    HostEvent,
    PlaybookResult,
    PlayStarted,
    TaskStarted,
    run_playbook,
)
from duckctl.yaml_source import NOT_PLAIN

app = typer.Typer(help="Set up the GPU machine by the playbooks, and compare it.")

INVENTORY = typer.Option(..., "--inventory", "-i", help="Inventory file.")
SETTINGS = typer.Option(
    [], "--set", metavar="NAME=VALUE", help="A variable of a role; the value is YAML. Repeatable."
)
CHECK = typer.Option(False, "--check", help="Change nothing; say what would change.")
DIFF = typer.Option(False, "--diff", help="Show the difference of every change.")
AS_JSON = typer.Option(False, "--json", help="Print JSON, with every change.")
ASK = typer.Option(False, "--ask-become-pass", "-K", help="Ask for the password of sudo.")


@app.command()
def setup(
    inventory: Path = INVENTORY,
    settings: list[str] = SETTINGS,
    restart: bool = typer.Option(
        False, "--restart", help="Restart the host if its kernel needs new arguments."
    ),
    check: bool = CHECK,
    diff: bool = DIFF,
    as_json: bool = AS_JSON,
    ask: bool = ASK,
) -> None:
    """Make the host ready: ports of the domains, CPU isolation, DPDK, network boot, serving.

    A second run changes nothing. What a role takes: docs/reference/playbooks.md.

    \b
    Examples:
      duckctl host setup -i inventory/rack32.yml --check --diff
      duckctl host setup -i inventory/rack32.yml
      duckctl host setup -i inventory/rack32.yml --set cpu_isolation_cpus=2-6 --restart
    """
    variables = read_settings(settings)
    if restart:
        variables["host_restart"] = True
    _run("host", inventory, "gpu_host", variables, check, diff, as_json, ask)


@app.command("check")
def check_command(
    inventory: Path = INVENTORY,
    settings: list[str] = SETTINGS,
    as_json: bool = AS_JSON,
    ask: bool = ASK,
) -> None:
    """Compare the host with what `setup` makes of it; change nothing.

    Give the same settings as to `setup`.

    \b
    Examples:
      duckctl host check -i inventory/rack32.yml
      duckctl host check -i inventory/rack32.yml --set cpu_isolation_cpus=2-6 --json
    """
    _run("verify", inventory, "gpu_host", read_settings(settings), False, False, as_json, ask)


@app.command()
def release(
    inventory: Path = INVENTORY, check: bool = CHECK, as_json: bool = AS_JSON, ask: bool = ASK
) -> None:
    """Give the domains' ports back to the kernel, e.g. to boot ducks over them.

    \b
    Examples:
      duckctl host release -i inventory/rack32.yml
    """
    _run("release", inventory, "gpu_host", {}, check, False, as_json, ask)


@app.command("linux-ducks")
def linux_ducks(
    inventory: Path = INVENTORY,
    limit: str = typer.Option("ducks", "--limit", help="Ducks, e.g. 'duck[01-08],!duck03'."),
    duckd: Path | None = typer.Option(None, "--duckd", help="duckd file.  [default: this build's]"),
    fleet_public: Path = typer.Option(..., "--fleet-public", help="The fleet's public key (.pub)."),
    settings: list[str] = SETTINGS,
    check: bool = CHECK,
    diff: bool = DIFF,
    as_json: bool = AS_JSON,
    ask: bool = ASK,
) -> None:
    """Set up ducks that keep a Linux system of their own: duckd as a service.

    Ducks that boot an image from the network need none of this.

    \b
    Examples:
      duckctl host linux-ducks -i fleet.yml --fleet-public fleet.pub --check --diff
      duckctl host linux-ducks -i fleet.yml --fleet-public fleet.pub --limit domain1
    """
    from duckctl.native import native_path

    variables = read_settings(settings) | {
        "duck_linux_duckd": str((duckd or native_path("duckd")).resolve()),
        "duck_linux_fleet_public": str(fleet_public.resolve()),
    }
    if not fleet_public.is_file():
        raise UsageError(f"there is no file {fleet_public}", "it lies beside the fleet's key")
    read_public_key(fleet_public)
    _run("ducks", inventory, limit, variables, check, diff, as_json, ask)


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` texts -> variables; values are YAML: numbers, true, [lists]."""
    variables: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"'{text}' is not NAME=VALUE", "such as --set dpdk_enabled=true")
        try:
            variables[name] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError, *NOT_PLAIN) as error:
            raise UsageError(f"the value of '{name}' is not YAML: {error}") from error
    return variables


def _run(
    name: str,
    inventory: Path,
    limit: str,
    variables: dict[str, Any],
    check: bool,
    diff: bool,
    as_json: bool,
    ask: bool,
) -> None:
    changes: list[HostEvent] = []
    result = run_playbook(
        name,
        inventory,
        limit,
        variables,
        check,
        diff or as_json,
        _teller(changes, check, diff and not as_json),
        record_in=records_folder(),
        become_password=getpass.getpass("sudo password: ") if ask else None,
    )
    if as_json:
        keys = ("host", "role", "task", "diff")
        listed = [{key: getattr(change, key) for key in keys} for change in changes]
        print_json(result.document() | {"changes": listed})
    else:
        _print(result)
    for host in result.bad:
        warn(f"{host.host}: {host.problem}")
    talk(f"{_summary(result)}; record: {result.record}")
    if result.exit_code != ExitCode.OK:
        raise typer.Exit(result.exit_code)


def _teller(changes: list[HostEvent], check: bool, diff: bool) -> Callable[[Event], None]:
    """Says what happens, a line per change; keeps the changes."""
    done = "would change" if check else "changed"

    def tell(event: Event) -> None:
        if isinstance(event, HostEvent):
            if event.outcome == "changed":
                changes.append(event)
                talk(f"  {event.host}: {done}: {event.task}")
                if diff and event.diff:
                    console().print(event.diff, markup=False, soft_wrap=True)
            elif event.message and event.outcome == "ok":
                talk(f"  {event.host}: {event.message}")
            elif event.outcome in ("failed", "unreachable"):
                talk(f"  {event.host}: {event.outcome}: {event.task}")
        elif isinstance(event, PlayStarted):
            talk(event.play)
        else:
            assert isinstance(event, TaskStarted)

    return tell


def _print(result: PlaybookResult) -> None:
    rows = [
        (h.host, h.status, h.changed, h.ok, h.skipped, h.problem.split("\n")[0] or "-")
        for h in result.hosts
    ]
    print_table("", ("host", "result", "changed>", "ok>", "skipped>", "problem"), rows)


def _summary(result: PlaybookResult) -> str:
    verb = "would change" if result.check else "changed"
    return f"{result.changed} tasks {verb} something, {result.seconds:.0f} s"


def records_folder() -> Path:
    """Where runs are recorded: $XDG_STATE_HOME/duckctl/playbooks."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "duckctl" / "playbooks"
