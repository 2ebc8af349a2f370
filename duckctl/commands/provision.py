"""``duckctl provision``: from bare boxes to a ready fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from duckctl.console import talk, warn
from duckctl.errors import ExitCode
from duckctl.inventory import Duck, Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.keys import check_key
from duckctl.lifecycle.choose import choose
from duckctl.lifecycle.machine import Limits, State
from duckctl.lifecycle.store import open_store
from duckctl.provision.ask import confirm_restart
from duckctl.provision.decide import Do
from duckctl.provision.host import configure_host, host_step
from duckctl.provision.images import ImageStep, describe
from duckctl.provision.lock import fleet_lock
from duckctl.provision.make_images import images_for, make_images
from duckctl.provision.results import print_plan, print_result
from duckctl.provision.run import (
    Runner,
    RunResult,
    away_from_network,
    explain_failures,
    new_run_id,
    prepare,
    survey,
)
from duckctl.provision.self_test import self_test
from duckctl.provision.show import Show

app = typer.Typer()


@app.command()
def provision(
    pattern: str = typer.Argument("all", help="Ducks, e.g. 'duck[01-08]', domain1, @failed."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be done; do nothing."),
    skip_host: bool = typer.Option(False, "--skip-host", help="Do not run the host's playbook."),
    skip_images: bool = typer.Option(False, "--skip-images", help="Take the images as they are."),
    skip_self_test: bool = typer.Option(
        False, "--skip-self-test", help="Do not measure the ducks' memory bandwidth."
    ),
    timeout: float = typer.Option(
        300.0, "--timeout", min=1, help="Seconds that one step of a boot may take at most."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before many are restarted."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Bring ducks up: build images, configure the host, boot, wait for hello, verify.

    A duck that answers and is right is never touched. A run that was interrupted or killed is gone
    on with by the same command. Exit code 0: all are up. 3: some are not. 1: none is.

    \b
    Examples:
      duckctl provision --inventory rack.yml --dry-run
      duckctl provision --inventory rack.yml
      duckctl provision @failed --inventory rack.yml
      duckctl provision 'domain1,!duck03' --skip-host --json
    """
    fleet = choose_inventory(inventory)
    check_key(fleet.key_file)
    ducks = choose(fleet, pattern)
    limits = Limits().at_most(timeout)
    images = [] if skip_images else images_for(fleet, ducks)
    if dry_run:
        found = survey(fleet, None, ducks, limits, restart_all=False)
        away = away_from_network(fleet, found.plans)
        print_plan(found.plans, images, host_step(fleet, skip_host), away, as_json)
        return
    for warning in fleet.warnings:
        warn(warning)
    with fleet_lock(fleet.path.resolve().parent, fleet.name, "provision"):
        result = _run(fleet, ducks, limits, images, skip_host, skip_self_test, yes)
    print_result(result, as_json)
    if result.exit_code != ExitCode.OK:
        raise typer.Exit(result.exit_code)


def _run(
    fleet: Fleet,
    ducks: Sequence[Duck],
    limits: Limits,
    images: Sequence[ImageStep],
    skip_host: bool,
    skip_self_test: bool,
    yes: bool,
) -> RunResult:
    run, begin_s = new_run_id("provision"), time.monotonic()
    show = Show()
    for step in images:
        show.stage(describe(step))
    make_images(fleet, images)
    show.stage(f"host: {host_step(fleet, skip_host)}")
    if not skip_host:
        configure_host(fleet)
    with open_store(fleet, run) as store:
        show.stage(f"looking at {len(ducks)} ducks")
        found = survey(fleet, store, ducks, limits, restart_all=False)
        restarted = [plan.duck.name for plan in found.plans if plan.do is Do.RESTART]
        serving = [n for n in restarted if found.records[n].state is State.SERVING]
        confirm_restart(restarted, serving, yes)
        prepare(fleet, found.plans)
        runner = Runner(fleet, store, found, show)
        try:
            with show.bars(len(ducks)):
                runner.run(found.plans)
        except KeyboardInterrupt:
            talk("interrupted; what was begun is on record: the same command goes on with it")
            raise
        notes = {}
        if not skip_self_test:
            up = [duck for duck in ducks if runner.records[duck.name].is_up]
            notes = self_test(fleet, up, runner.records)
        records = explain_failures(fleet, runner.records)
        steps = runner.steps()
    return RunResult(run, found.plans, records, time.monotonic() - begin_s, notes, steps)
