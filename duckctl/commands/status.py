"""``duckctl status``: where every duck is in its life."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from duckctl.console import SCHEMA_VERSION, console, plain, print_json, print_table, talk
from duckctl.errors import ExitCode
from duckctl.inventory import Duck, Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.boot_log import listen
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.look import LOOK_TIMEOUT_S, refresh
from duckctl.lifecycle.machine import DuckRecord
from duckctl.lifecycle.report import (
    COLUMNS,
    counts,
    duck_document,
    exit_code,
    row,
    summary_line,
)
from duckctl.lifecycle.store import Store, open_to_read

app = typer.Typer()


@app.command()
def status(
    pattern: str = typer.Argument("all", help="Ducks, e.g. 'duck[01-08]', domain1, @failed."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Go on until Ctrl-C."),
    period: float = typer.Option(2.0, "--period", min=0.2, max=3600, help="Seconds, for -w."),
    offline: bool = typer.Option(False, "--offline", help="Only what is on record; ask no duck."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON; with -w one line per look."),
) -> None:
    """Show the state of every duck, its reason, and for how long.

    Exit code 0: all are up. 3: some are not. 4: none is.

    \b
    Examples:
      duckctl status
      duckctl status -w
      duckctl status @failed --inventory rack.yml
      duckctl status --json | jq -r '.ducks[] | select(.state == "lost") | .name'
    """
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, pattern)
    with open_to_read(fleet, insist=watch and offline) as store:
        if watch:
            _watch(fleet, store, ducks, period, offline, as_json)
            return
        records = _records(fleet, store, ducks, offline)
        if as_json:
            print_json(_document(fleet, ducks, records))
        else:
            _print(ducks, records)
        code = exit_code(list(records.values()))
    if code != ExitCode.OK:
        raise typer.Exit(code)


def _records(
    fleet: Fleet, store: Store, ducks: Sequence[Duck], offline: bool
) -> dict[str, DuckRecord]:
    if offline:
        return store.states([duck.name for duck in ducks])
    listen(fleet, store)
    return refresh(fleet, store, ducks, LOOK_TIMEOUT_S)[1]


def _document(
    fleet: Fleet, ducks: Sequence[Duck], records: dict[str, DuckRecord]
) -> dict[str, Any]:
    return {
        "fleet": fleet.name,
        "time": time.time(),
        "counts": counts(records),
        "ducks": [duck_document(duck, records[duck.name]) for duck in ducks],
    }


def _print(ducks: Sequence[Duck], records: dict[str, DuckRecord]) -> None:
    now_s = time.time()
    print_table("", COLUMNS, [row(duck, records[duck.name], now_s) for duck in ducks])
    talk(summary_line(records))


def _watch(
    fleet: Fleet,
    store: Store,
    ducks: Sequence[Duck],
    period_s: float,
    offline: bool,
    as_json: bool,
) -> None:
    """A table that is drawn again on a terminal; elsewhere a line for each change."""
    last: dict[str, DuckRecord] = {}
    while True:
        records = _records(fleet, store, ducks, offline)
        if as_json:
            document = {"schema_version": SCHEMA_VERSION, **_document(fleet, ducks, records)}
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        elif sys.stdout.isatty():
            console().clear()
            _print(ducks, records)
        else:
            _print_changes(last, records)
        sys.stdout.flush()
        last = records
        time.sleep(period_s)


def _print_changes(last: dict[str, DuckRecord], records: dict[str, DuckRecord]) -> None:
    for name, record in records.items():
        before = last.get(name)
        if before is None or before.describe() != record.describe():
            reason = f": {record.reason}" if record.reason else ""
            stamp = time.strftime("%H:%M:%S")
            sys.stdout.write(plain(f"{stamp} {name} {record.describe()}{reason}") + "\n")
