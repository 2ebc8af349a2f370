"""``duckctl bench boot``: seconds from power-on to HELLO, by stage."""

from __future__ import annotations

import typer

from duckctl.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the command to `duckctl bench`."""
    app.command("boot")(boot_command)


def boot_command(
    cases: list[str] = typer.Option([], "--case", help="A way of booting; --list shows them."),
    repeats: int = typer.Option(5, "--repeat", min=1, max=100, help="Boots per case."),
    image: str = typer.Option("duckos", "--image", help="Name of an image, or a duckos FILE."),
    list_cases: bool = typer.Option(False, "--list", help="List the cases and end."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Time from power-on to HELLO of virtual boxes (TCG), by stage; medians over fresh labs.

    \b
    Examples:
      duckctl bench boot
      duckctl bench boot --case bios --case uefi --repeat 9 --json
      duckctl bench boot --case bios-32-guests --repeat 3
    """
    from duckctl.bench import boot
    from duckctl.console import print_json, print_table, talk
    from duckctl.lab.vm.stages import STAGES, shown

    if list_cases:
        rows = [(name, shape.describe()) for name, shape in boot.CASES.items()]
        print_table("", ("case", "lab"), rows)
        return
    for case in cases:
        if case not in boot.CASES:
            raise UsageError(f"--case '{case}' is unknown", f"cases: {', '.join(boot.CASES)}")
    found = []
    for case in cases or boot.DEFAULT_CASES:
        talk(f"{case}: {repeats} boots")
        found.append(boot.measure(case, repeats, image))
    if as_json:
        print_json({"cases": [figures.document() for figures in found]})
        return
    table = []
    for figures in found:
        medians = figures.medians()
        worst = max(run[-1] or 0.0 for run in figures.runs)
        times = [shown(medians[stage]) for stage in STAGES]
        table.append((figures.case, figures.guests, *times, shown(worst)))
    columns = ("case", "guests>", *(f"{stage}>" for stage in STAGES), "worst hello>")
    print_table("seconds since power-on, medians, slowest guest", columns, table)
