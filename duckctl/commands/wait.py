"""``duckctl wait``: until ducks are in a state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import typer

from duckctl.console import print_json, talk, warn
from duckctl.errors import ExitCode
from duckctl.inventory import Duck
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.boot_log import listen
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.look import refresh
from duckctl.lifecycle.machine import UP, DuckRecord, State
from duckctl.lifecycle.report import counts, duck_document, summary_line
from duckctl.lifecycle.store import open_store

app = typer.Typer()
PERIOD_S = 1.0


class Goal(StrEnum):
    """What can be waited for."""

    READY = "ready"
    SERVING = "serving"
    LOST = "lost"


def _is_there(record: DuckRecord, goal: Goal) -> bool:
    if goal is Goal.READY:
        return record.state in UP
    return record.state is (State.SERVING if goal is Goal.SERVING else State.LOST)


def until_there(
    ducks: Sequence[Duck],
    goal: Goal,
    look: Callable[[Sequence[Duck]], Mapping[str, DuckRecord]],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, DuckRecord], list[Duck]]:
    """The last records, and the ducks that are not there: none, or those when the time was over.

    Only the missing ones are asked again; the others may be lost meanwhile, so "none is missing" is
    believed of a look at all of them only.
    """
    deadline = clock() + timeout_s
    records: dict[str, DuckRecord] = {}
    asked = list(ducks)
    while True:
        records |= look(asked)
        missing = [duck for duck in ducks if not _is_there(records[duck.name], goal)]
        if not missing and len(asked) < len(ducks):
            asked = list(ducks)
            continue
        left_s = deadline - clock()
        if not missing or left_s <= 0:
            return records, missing
        asked = missing
        sleep(min(PERIOD_S, left_s))


@app.command()
def wait(
    pattern: str = typer.Argument("all", help="Ducks, e.g. 'duck[01-08]' or domain1."),
    goal: Goal = typer.Option(Goal.READY, "--for", help="State to wait for; ready: or beyond."),
    timeout: float = typer.Option(300.0, "--timeout", min=0, help="Seconds at most."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Wait until all these ducks are ready, serving, or lost.

    Exit code 0: all are. 3: only some were when the time was over. 4: none was.

    \b
    Examples:
      duckctl wait --for=ready --timeout 120
      duckctl wait domain1 --for=serving && duckctl bench serve
    """
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, pattern)
    with open_store(fleet) as store:

        def look(asked: Sequence[Duck]) -> Mapping[str, DuckRecord]:
            listen(fleet, store)
            return refresh(fleet, store, asked)[1]

        records, missing = until_there(ducks, goal, look, timeout)
    if as_json:
        print_json(
            {
                "for": str(goal),
                "reached": not missing,
                "counts": counts(records),
                "ducks": [duck_document(duck, records[duck.name]) for duck in ducks],
            }
        )
    for duck in missing:
        record = records[duck.name]
        reason = f": {record.reason}" if record.reason else ""
        warn(f"{duck.name} is {record.describe()}{reason}")
    talk(summary_line(records))
    if missing:
        code = ExitCode.UNREACHABLE if len(missing) == len(ducks) else ExitCode.PARTIAL
        raise typer.Exit(code)
