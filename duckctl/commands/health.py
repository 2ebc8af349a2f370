"""``duckctl health``: asks every duck how it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from duckctl.console import human_bytes, print_json, print_table, talk, warn
from duckctl.errors import ExitCode
from duckctl.health import DuckHealth, FleetHealth, fleet_health, probe
from duckctl.inventory import select
from duckctl.inventory_choice import choose_inventory

app = typer.Typer()


@app.command()
def health(
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    limit: str = typer.Option("all", "--limit", help="Ducks, e.g. 'duck[01-08],!duck03'."),
    timeout: float = typer.Option(2.0, "--timeout", min=0.1, max=60, help="Seconds per duck."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Ask every duck for its state, build, memory, temperature and counters.

    Exit code 0: all are well. 3: some are not, the worst is named. 4: none answers.

    \b
    Examples:
      duckctl health
      duckctl health --inventory inventory/rack32.yml --limit 'domain1,!duck03'
      duckctl health --json | jq '.ducks[] | select(.problem != null) | .name'
    """
    fleet = choose_inventory(inventory)
    report = fleet_health(probe(fleet, select(fleet, limit), timeout, ("--stats",)))
    if as_json:
        print_json(_document(report))
    else:
        print_table("", COLUMNS, [_row(duck) for duck in report.ducks])
    ill = [duck for duck in report.ducks if duck.problem]
    if report.worst is not None:
        talk_line = f"{len(ill)} of {len(report.ducks)} ducks are not well; the worst: "
        warn(f"{talk_line}{report.worst.name} {report.worst.problem}")
    else:
        talk(f"all {len(report.ducks)} ducks are well")
    if report.exit_code != ExitCode.OK:
        raise typer.Exit(report.exit_code)


def _document(report: FleetHealth) -> dict[str, Any]:
    return {
        "build": report.build,
        "healthy": report.worst is None,
        "worst": report.worst.name if report.worst else None,
        "ducks": [{**duck.facts, "problem": duck.problem or None} for duck in report.ducks],
    }


COLUMNS = (
    *("duck", "address", "state", "build", "cores>", "memory>", "weights", "kernel", "temp>"),
    *("round trip>", "calls>", "dropped>", "problem"),
)


def _row(duck: DuckHealth) -> tuple[object, ...]:
    facts = duck.facts
    address = facts.get("endpoint", "")
    if not duck.reachable:
        return (duck.name, address, "no answer", *["-"] * 9, duck.problem)
    temperature = facts.get("temperature_c")
    stats: Mapping[str, Any] = facts.get("stats") or {}
    dropped = sum(value for key, value in stats.items() if key.startswith("dropped_"))
    return (
        duck.name,
        address,
        facts["state"],
        f"{str(facts['build'])[:8]}{'' if facts['build_ok'] else ' (differs)'}",
        facts["core_count"],
        human_bytes(facts["memory_bytes"]),
        str(facts.get("weights_id") or "none")[:8],
        str(facts.get("kernel") or "-").split(";")[0],
        "-" if temperature is None else f"{temperature:.0f} °C",
        f"{facts['round_trip_us']:.0f} µs",
        stats.get("calls_finished", "-"),
        dropped if stats else "-",
        duck.problem or "-",
    )
