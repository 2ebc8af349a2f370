"""``duckctl events``: what has happened to the ducks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from duckctl.console import plain, print_json
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.boot_log import listen
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.report import event_document
from duckctl.lifecycle.store import StoredEvent, open_to_read

app = typer.Typer()
FOLLOW_S = 0.5


@app.command()
def events(
    pattern: str = typer.Argument("all", help="Ducks, e.g. duck07 or domain1."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    run: str = typer.Option("", "--run", help="Only what this run did (its id)."),
    last: int = typer.Option(
        50, "--last", "-n", min=0, max=1_000_000, help="Begin with the last N events."
    ),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until Ctrl-C."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON; with -f one line per event."),
) -> None:
    """Show the history: every change of a duck's state, when, and why.

    \b
    Examples:
      duckctl events --last 20
      duckctl events duck07 -f
      duckctl events -f --json | jq -c 'select(.after | startswith("failed"))'
    """
    fleet = choose_inventory(inventory)
    names = None if pattern == "all" else [duck.name for duck in choose(fleet, pattern)]
    with open_to_read(fleet, insist=follow) as store:
        listen(fleet, store)
        newest = max((event.number for event in store.events(last=1)), default=0)
        found = store.events(ducks=names, last=last, run=run)
        found = [event for event in found if event.number <= newest]
        if as_json and not follow:
            print_json({"fleet": fleet.name, "events": [event_document(e) for e in found]})
            return
        _print(found, as_json)
        while follow:
            time.sleep(FOLLOW_S)
            listen(fleet, store)
            found = store.events(after=newest, ducks=names, run=run)
            _print(found, as_json)
            newest = max([newest, *(event.number for event in found)])


def _print(found: Sequence[StoredEvent], as_json: bool) -> None:
    for event in found:
        if as_json:
            line = json.dumps(event_document(event), ensure_ascii=False)
        else:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_s))
            change = event.after if event.before == event.after else f"-> {event.after}"
            reason = f"  ({event.reason})" if event.reason else ""
            line = plain(f"{stamp} {event.duck} {event.kind} {change}{reason}")
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
