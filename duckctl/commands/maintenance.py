"""``duckctl maintenance``: ducks that no command may touch."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from duckctl.console import print_json, talk
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.report import duck_document
from duckctl.lifecycle.store import open_store

app = typer.Typer(help="Take ducks out of every run while a person works on them.")
INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
PATTERN = typer.Argument(help="Ducks, e.g. duck07 or domain1.")


@app.command()
def on(
    pattern: str = PATTERN,
    inventory: Path | None = INVENTORY,
    reason: str = typer.Option("", "--reason", help="Why; shown by status."),
    as_json: bool = AS_JSON,
) -> None:
    """Leave these ducks alone from now on: provision and reboot skip them.

    \b
    Examples:
      duckctl maintenance on duck07 --reason "new memory"
    """
    _mark(pattern, inventory, Event(Kind.MAINTENANCE_ON, time.time(), reason), as_json)


@app.command()
def off(
    pattern: str = PATTERN, inventory: Path | None = INVENTORY, as_json: bool = AS_JSON
) -> None:
    """The work is done: these ducks take part again.

    \b
    Examples:
      duckctl maintenance off duck07
      duckctl maintenance off @maintenance
    """
    _mark(pattern, inventory, Event(Kind.MAINTENANCE_OFF, time.time()), as_json)


def _mark(pattern: str, inventory: Path | None, event: Event, as_json: bool) -> None:
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, pattern)
    with open_store(fleet) as store:
        before = store.states([duck.name for duck in ducks])
        after = store.record_all([(duck.name, event) for duck in ducks])
    changes = {name: record.state is not before[name].state for name, record in after.items()}
    if as_json:
        documents = [
            {**duck_document(duck, after[duck.name]), "changed": changes[duck.name]}
            for duck in ducks
        ]
        print_json({"fleet": fleet.name, "ducks": documents})
        return
    for name, record in after.items():
        talk(f"{name}: {record.describe()}{'' if changes[name] else ' (as before)'}")
