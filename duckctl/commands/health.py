"""``duckctl health``: asks every duck how it is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from duckctl.calibration import DuckCalibration, load
from duckctl.console import console, human_bytes, print_json, print_table, talk, warn
from duckctl.errors import ExitCode, UsageError
from duckctl.health import DuckHealth, FleetHealth, fleet_health, probe_all
from duckctl.inventory import Duck, Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.choose import choose
from duckctl.prometheus import render, write_page
from duckctl.vital_signs import loss_share

app = typer.Typer()

CLEAR = "\x1b[H\x1b[2J\x1b[3J"  # ECMA-48: home, erase the screen and what scrolled off it


@app.command()
def health(
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    limit: str = typer.Option("all", "--limit", help="Ducks, e.g. 'duck[01-08],!duck03'."),
    timeout: float = typer.Option(2.0, "--timeout", min=0.1, max=60, help="Seconds per duck."),
    watch: bool = typer.Option(False, "-w", "--watch", help="Ask again until Ctrl-C."),
    every: float = typer.Option(5.0, "--every", min=0.5, max=3600, help="Seconds, with --watch."),
    count: int = typer.Option(0, "--count", min=0, help="Rounds of --watch.  [default: no end]"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    prometheus: str = typer.Option(
        "", "--prometheus", metavar="FILE", help="Write Prometheus' text format; - is stdout."
    ),
) -> None:
    """Ask every duck for its state, build, memory, link, temperature and counters.

    Judged against the inventory: duck_memory_gib, duck_cores, duck_link_mbps, duck_mac, domain_mtu,
    duck_temperature_c_max (95), duck_loss_permille_max (10), and the duck's own first calibration.

    Exit code 0: all are well. 3: some are not, the worst is named. 4: none answers.

    \b
    Examples:
      duckctl health
      duckctl health --inventory inventory/rack32.yml --limit 'domain1,!duck03'
      duckctl health --json | jq '.ducks[] | select(.problem != null) | .name'
      duckctl health -w --every 15 --prometheus /var/lib/node_exporter/duckctl.prom
    """
    if as_json and prometheus == "-":
        raise UsageError("--json and --prometheus - both want stdout", "give --prometheus a file")
    fleet = choose_inventory(inventory)
    ducks = choose(fleet, limit)
    rounds = 0
    while True:
        report = _ask(fleet, ducks, timeout)
        rounds += 1
        _show(report, load(fleet), as_json, prometheus, clear=watch)
        if not watch or rounds == count:
            break
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(every)
            continue
        break
    if report.exit_code != ExitCode.OK:
        raise typer.Exit(report.exit_code)


def _ask(fleet: Fleet, ducks: Sequence[Duck], timeout: float) -> FleetHealth:
    return fleet_health(probe_all(fleet, ducks, timeout, ("--stats",)), fleet, load(fleet))


def _show(
    report: FleetHealth,
    calibrations: Mapping[str, DuckCalibration],
    as_json: bool,
    prometheus: str,
    clear: bool,
) -> None:
    if prometheus:
        page = render(report, calibrations)
        if prometheus == "-":
            sys.stdout.write(page)
            sys.stdout.flush()
        else:
            write_page(Path(prometheus).expanduser(), page)
    if as_json:
        print_json(_document(report, calibrations))
    elif prometheus != "-":
        if clear and console().is_terminal:
            sys.stdout.write(CLEAR)
        print_table("", COLUMNS, [_row(duck) for duck in report.ducks])
    ill = [duck for duck in report.ducks if duck.problem]
    if report.worst is not None:
        talk_line = f"{len(ill)} of {len(report.ducks)} ducks are not well; the worst: "
        warn(f"{talk_line}{report.worst.name} {report.worst.problem}")
    else:
        talk(f"all {len(report.ducks)} ducks are well")


def _document(report: FleetHealth, calibrations: Mapping[str, DuckCalibration]) -> dict[str, Any]:
    return {
        "build": report.build,
        "healthy": report.worst is None,
        "worst": report.worst.name if report.worst else None,
        "ducks": [
            {
                **duck.facts,
                "loss_share": loss_share(duck.facts.get("stats")),
                "calibration": _calibration(calibrations.get(duck.name)),
                "problem": duck.problem or None,
                "problems": list(duck.problems),
            }
            for duck in report.ducks
        ],
    }


def _calibration(figures: DuckCalibration | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    return {
        "read_bytes_per_s": figures.latest.best_bytes_per_s,
        "read_bytes_per_s_by_cores": list(figures.latest.read_bytes_per_s),
        "baseline_bytes_per_s": figures.baseline.best_bytes_per_s,
        "drift": figures.drift,
        "body": figures.latest.body,
        "at": figures.latest.at,
    }


COLUMNS = (
    *("duck", "address", "state", "build", "cores>", "memory>", "link>", "weights", "kernel"),
    *("temp>", "round trip>", "calls>", "dropped>", "lost>", "problem"),
)


def _row(duck: DuckHealth) -> tuple[object, ...]:
    facts = duck.facts
    address = facts.get("endpoint", "")
    if not duck.reachable:
        return (duck.name, address, "no answer", *["-"] * 11, duck.problem)
    if facts.get("state") is None:
        return (duck.name, address, "refused", *["-"] * 11, duck.problem)
    temperature = facts.get("temperature_c")
    stats: Mapping[str, Any] = facts.get("stats") or {}
    dropped = sum(value for key, value in stats.items() if key.startswith("dropped_"))
    lost = loss_share(stats)
    return (
        duck.name,
        address,
        facts["state"],
        f"{str(facts['build'])[:8]}{'' if facts['build_ok'] else ' (differs)'}",
        facts["core_count"],
        human_bytes(facts["memory_bytes"]),
        facts["link_mbps"] or "-",
        str(facts.get("weights_id") or "none")[:8],
        str(facts.get("kernel") or "-").split(";")[0],
        "-" if temperature is None else f"{temperature:.0f} °C",
        f"{facts['round_trip_us']:.0f} µs",
        stats.get("calls_finished", "-"),
        dropped if stats else "-",
        "-" if lost is None else f"{lost * 100:.2f} %",
        "; ".join(duck.problems) or "-",
    )
