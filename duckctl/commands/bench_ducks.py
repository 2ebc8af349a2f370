"""``duckctl bench ducks``: what each idle duck of a fleet can do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from duckctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from duckctl.selftest import DuckFigures


def register(app: typer.Typer) -> None:
    """Adds the command to ``duckctl bench``."""
    app.command("ducks")(ducks)


def ducks(
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    limit: str = typer.Option("all", "--limit", help="Ducks, e.g. 'duck[01-08],!duck03'."),
    formats: list[str] = typer.Option([], "--format", help="[default: fp8, fp9]"),
    region_mib: int = typer.Option(64, "--mib", min=8, max=4096, help="Weights to load and read."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Read bandwidth with 1 to all cores and the kernel's speed, on every idle duck.

    The figures are kept: `duckctl health` warns when a duck grows slow, compared with its first run
    of the same --mib. Ducks that hold weights or serve are left alone and named. Exit code 3: some
    ducks were not measured, 1: none was.

    \b
    Examples:
      duckctl bench ducks
      duckctl bench ducks --inventory inventory/rack32.yml --limit domain1 --json
      duckctl bench ducks --format q4 --mib 256
    """
    from duckctl.console import print_json
    from duckctl.inventory_choice import choose_inventory
    from duckctl.lifecycle.choose import choose
    from duckctl.selftest import FORMATS, measure
    from duckctl.shards.layout import FORMAT_CODES

    for name in formats:
        if name not in FORMAT_CODES:
            known = ", ".join(sorted(FORMAT_CODES))
            raise UsageError(f"--format '{name}' is unknown", f"formats: {known}")
    fleet = choose_inventory(inventory)
    figures = measure(fleet, choose(fleet, limit), formats or FORMATS, region_mib)
    if as_json:
        print_json({"ducks": [asdict(duck) for duck in figures]})
    else:
        _print(figures, formats or list(FORMATS))
    failed = [duck for duck in figures if duck.problem]
    if failed:
        raise typer.Exit(ExitCode.FAILURE if len(failed) == len(figures) else ExitCode.PARTIAL)


def _print(figures: list[DuckFigures], formats: list[str]) -> None:
    from duckctl.console import print_table

    columns = ("duck", "read GB/s with 1, 2, ... cores", *(f"{f} Gparam/s>" for f in formats))
    rows = []
    for duck in figures:
        rates = ", ".join(f"{rate / 1e9:.1f}" for rate in duck.read_bytes_per_s) or "-"
        speeds = [
            f"{duck.params_per_s[fmt] / 1e9:.1f} ({duck.body[fmt]})"
            if fmt in duck.params_per_s
            else "-"
            for fmt in formats
        ]
        rows.append((duck.name, rates, *speeds, duck.problem or "-"))
    print_table("", (*columns, "problem"), rows)
