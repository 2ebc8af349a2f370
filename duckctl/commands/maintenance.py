"""``duckctl maintenance``: ducks that no command may touch."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from duckctl.console import talk
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import open_store

app = typer.Typer(help="Take ducks out of every run while a person works on them.")
INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
PATTERN = typer.Argument(help="Ducks, e.g. duck07 or domain1.")


@app.command()
def on(
    pattern: str = PATTERN,
    inventory: Path | None = INVENTORY,
    reason: str = typer.Option("", "--reason", help="Why; shown by status."),
) -> None:
    """Leave these ducks alone from now on: provision and reboot skip them.

    \b
    Examples:
      duckctl maintenance on duck07 --reason "new memory"
    """
    _mark(pattern, inventory, Event(Kind.MAINTENANCE_ON, time.time(), reason))


@app.command()
def off(pattern: str = PATTERN, inventory: Path | None = INVENTORY) -> None:
    """The work is done: these ducks take part again.

    \b
    Examples:
      duckctl maintenance off duck07
      duckctl maintenance off @maintenance
    """
    _mark(pattern, inventory, Event(Kind.MAINTENANCE_OFF, time.time()))


def _mark(pattern: str, inventory: Path | None, event: Event) -> None:
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, pattern)
    with open_store(fleet) as store:
        before = store.states([duck.name for duck in ducks])
        after = store.record_all([(duck.name, event) for duck in ducks])
    for name, record in after.items():
        changed = record.state is not before[name].state
        talk(f"{name}: {record.describe()}{'' if changed else ' (as before)'}")
