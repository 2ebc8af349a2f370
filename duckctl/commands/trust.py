"""``duckctl trust``: the ducks' own keys, as the host has pinned them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from duckctl import trust as pins
from duckctl.console import print_json, print_table, talk
from duckctl.inventory import select
from duckctl.inventory_choice import choose_inventory

app = typer.Typer(no_args_is_help=True)

INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
TIMEOUT = typer.Option(2.0, "--timeout", min=0.1, max=60, help="Seconds per duck.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
COLUMNS = ("duck", "policy", "key", "boot", "since", "changes>")


@app.callback()
def trust() -> None:
    """Show, accept and forget the ducks' own keys.

    A duck shows who it is by a key of its own. The host remembers it at the first contact and
    refuses another one from then on.

    \b
    Examples:
      duckctl trust ls
      duckctl trust accept duck07
      duckctl trust forget duck07
    """


@app.command()
def ls(inventory: Path | None = INVENTORY, as_json: bool = AS_JSON) -> None:
    """List the pinned key of each duck, its policy and the last change.

    \b
    Examples:
      duckctl trust ls
      duckctl trust ls --json | jq '.ducks[] | select(.identity == null)'
    """
    _show(pins.pins_of(choose_inventory(inventory)), as_json)


@app.command()
def accept(
    limit: str = typer.Argument(help="Ducks, e.g. 'duck07' or 'duck[01-08]'."),
    inventory: Path | None = INVENTORY,
    timeout: float = TIMEOUT,
    as_json: bool = AS_JSON,
) -> None:
    """Ask the named ducks for their keys and pin these, whatever was pinned before.

    Do this for a duck that you replaced or installed anew. Compare the key that is shown with the
    one on the duck's own console if somebody else may be on the network.

    Exit code 4: a duck does not answer; those before it are pinned.

    \b
    Examples:
      duckctl trust accept duck07
      duckctl trust accept 'duck[01-08]' --inventory inventory/rack32.yml
    """
    fleet = choose_inventory(inventory)
    ducks = select(fleet, limit)
    _show(pins.accept(fleet, ducks, timeout), as_json)
    talk(f"pinned {len(ducks)} key{'s' if len(ducks) > 1 else ''} anew")


@app.command()
def forget(
    name: list[str] = typer.Argument(help="Names of ducks, in the inventory or no more."),
    inventory: Path | None = INVENTORY,
    as_json: bool = AS_JSON,
) -> None:
    """Forget the keys of the named ducks: the next one that each shows is pinned.

    \b
    Examples:
      duckctl trust forget duck07
      duckctl trust forget duck07 duck08 --inventory inventory/rack32.yml
    """
    _show(pins.forget(choose_inventory(inventory), name), as_json)


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_table("", COLUMNS, [_row(duck) for duck in document["ducks"]])


def _row(duck: Mapping[str, Any]) -> tuple[object, ...]:
    policy = duck["policy"] or "not in the inventory"
    if duck["identity"] is None:
        return (duck["name"], policy, "none yet", "-", "-", "-")
    events = duck["events"]
    since = f"{_day(events[-1]['time_s'])} ({events[-1]['what']})" if events else "-"
    changes = max(len(events) - 1, 0)
    return (duck["name"], policy, duck["fingerprint"], duck["boot_id"][:8], since, changes)


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")
