"""``duckctl reboot``: ducks down and up again, all or in turn."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from duckctl.console import talk, warn
from duckctl.errors import ExitCode, UsageError
from duckctl.inventory import Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.keys import check_key
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.machine import UP, DuckRecord, Limits, State
from duckctl.lifecycle.store import Store, open_store
from duckctl.provision.ask import confirm_restart
from duckctl.provision.decide import Do, DuckPlan, batch_size, batches
from duckctl.provision.lock import fleet_lock
from duckctl.provision.results import print_plan, print_result
from duckctl.provision.run import (
    Runner,
    RunResult,
    Survey,
    away_from_network,
    explain_failures,
    new_run_id,
    prepare,
    survey,
)
from duckctl.provision.show import Show, name_some

app = typer.Typer()


@app.command()
def reboot(
    pattern: str = typer.Argument("", help="Ducks, e.g. duck07 or domain1."),
    everyone: bool = typer.Option(False, "--all", help="All ducks of the fleet."),
    serial: str | None = typer.Option(
        None, "--serial", help="So many at a time, e.g. 4 or 25%.  [default: all at once]"
    ),
    max_fail: int = typer.Option(
        0, "--max-fail", min=0, help="Begin no further batch when more than N did not return."
    ),
    timeout: float = typer.Option(
        300.0, "--timeout", min=1, help="Seconds that one step of a boot may take at most."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be done; do nothing."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before many are restarted."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Restart ducks and wait until each is back with a new boot id, verified and ready.

    Each is asked by protocol first, then switched by its power backends in the inventory's order.
    Ducks that serve are waited for until the serving host has loaded them again. Exit code 0: all
    are back. 3: some are not; each is named with the last stage that it reached. 1: none is.

    \b
    Examples:
      duckctl reboot duck07
      duckctl reboot --all --serial 25% --yes
      duckctl reboot @lost --timeout 120 --json
    """
    fleet = choose_inventory(inventory)
    check_key(fleet.key_file)
    if bool(pattern) == everyone:
        raise UsageError("name the ducks, or all of them with --all", "e.g. duckctl reboot duck07")
    ducks = choose(fleet, pattern or "all")
    if serial is not None:
        _check_serial(serial, len(ducks))
    limits = Limits().at_most(timeout)
    if dry_run:
        found = survey(fleet, None, ducks, limits, restart_all=True)
        print_plan(found.plans, [], "not concerned", away_from_network(fleet, found.plans), as_json)
        return
    folder = fleet.path.resolve().parent
    with fleet_lock(folder, fleet.name, "reboot"), open_store(fleet, new_run_id("reboot")) as store:
        found = survey(fleet, store, ducks, limits, restart_all=True)
        names = [plan.duck.name for plan in found.touched]
        serving = [n for n in names if found.look.answers[n].get("state") == "serving"]
        confirm_restart(names, serving, yes)
        result = _run(fleet, store, found, serial, max_fail)
    print_result(result, as_json)
    if result.exit_code != ExitCode.OK:
        raise typer.Exit(result.exit_code)


def _check_serial(serial: str, count: int) -> None:
    try:
        batch_size(serial, count)
    except ValueError:
        raise UsageError(
            f"--serial {serial}: expected a number of ducks or a share from 1% to 100%"
        ) from None


def _run(fleet: Fleet, store: Store, found: Survey, serial: str | None, max_fail: int) -> RunResult:
    begin_s, show = time.monotonic(), Show()
    prepare(fleet, found.plans)
    runner = Runner(fleet, store, found, show)
    cut = batches(found.touched, serial)
    rest = [plan for plan in found.plans if not plan.touches]
    done: list[DuckPlan] = []
    try:
        with show.bars(len(found.touched)):
            for number, batch in enumerate(cut, 1):
                names = [plan.duck.name for plan in batch]
                show.stage(f"batch {number} of {len(cut)}: {name_some(names)}")
                runner.run(batch)
                done += batch
                lost = [p.duck.name for p in done if _is_away(runner.records[p.duck.name])]
                if len(lost) > max_fail and number < len(cut):
                    warn(f"stopped after batch {number} of {len(cut)}: {name_some(lost)} are away")
                    break
            runner.run([plan for plan in rest if plan.do is not Do.LEAVE])
    except KeyboardInterrupt:
        talk("interrupted; ducks on their way come up by themselves: duckctl wait --for=ready")
        raise
    left = {
        p.duck.name: "not restarted: the run stopped before" for p in found.touched[len(done) :]
    }
    notes = {**left, **_reload_notes(found, runner)}
    records = explain_failures(fleet, runner.records)
    seconds = time.monotonic() - begin_s
    return RunResult(store.run, found.plans, records, seconds, notes, runner.steps())


def _is_away(record: DuckRecord) -> bool:
    """It should be up and is not; a person who works on a duck counts as no failure."""
    return record.state not in (*UP, State.MAINTENANCE)


def _reload_notes(found: Survey, runner: Runner) -> dict[str, str]:
    """Weights are in memory: what a restart has emptied is filled again by the host that serves."""
    notes = {}
    for plan in found.touched:
        before = found.look.answers[plan.duck.name]
        record = runner.records[plan.duck.name]
        if not before.get("weights_id") or record.state in (State.SERVING, State.MAINTENANCE):
            continue
        if before.get("state") == "serving":
            notes[plan.duck.name] = "served before; the serving host has not loaded it again"
        else:
            notes[plan.duck.name] = "its weights are gone; the next `duckctl serve` loads them"
    return notes
