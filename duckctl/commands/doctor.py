"""``duckctl doctor``: what of this host is not as a fleet needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from duckctl.console import console, print_json, talk
from duckctl.doctor import CHECKS, Environment, Finding, run_checks
from duckctl.errors import ExitCode, UsageError
from duckctl.inventory import load_inventory

app = typer.Typer()
MARKS = {"ok": "ok", "note": "note", "warn": "WARNING", "fail": "FAILED"}


@app.command()
def doctor(
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Compare with this inventory too.  [default: only the machine]"
    ),
    only: list[str] = typer.Option([], "--only", help="Only this check; may be repeated."),
    dpdk: bool | None = typer.Option(
        None,
        "--dpdk/--no-dpdk",
        help="Is DPDK wanted.  [default: if a domain has 'domain_device: pci']",
    ),
    every: bool = typer.Option(False, "--all", help="Show what is well, too."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, with all findings."),
) -> None:
    """Look at this host: ports, links, network boot, IOMMU, hugepages, CPUs, GPU, disk.

    Nothing is changed. Each finding says what was found, what was expected and what to do.
    Exit code 0: nothing failed (there may be warnings). 1: something failed.

    \b
    Examples:
      duckctl doctor
      duckctl doctor --inventory inventory/rack32.yml --dpdk --all
      duckctl doctor --only hugepages --only iommu
      duckctl doctor --json | jq '.findings[] | select(.level == "fail")'
    """
    unknown = [name for name in only if name not in CHECKS]
    if unknown:
        raise UsageError(f"there is no check '{unknown[0]}'", f"known: {', '.join(CHECKS)}")
    fleet = load_inventory(inventory) if inventory is not None else None
    findings = run_checks(Environment(), fleet, dpdk, only)
    failed = [finding for finding in findings if finding.level == "fail"]
    if as_json:
        print_json({"healthy": not failed, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings, every)
    if failed:
        raise typer.Exit(ExitCode.FAILURE)


def _print(findings: Sequence[Finding], every: bool) -> None:
    shown = [f for f in findings if every or f.level != "ok"]
    output = console()
    for finding in shown:
        lines = [f"{MARKS[finding.level]:8} {finding.check}: {finding.subject}: {finding.found}"]
        if finding.level != "ok":
            lines += [f"{'':8}   expected: {finding.expected}"] if finding.expected else []
            lines += [f"{'':8}   next: {finding.next_step}"] if finding.next_step else []
        output.print("\n".join(lines), markup=False, soft_wrap=True)
    count = {level: sum(f.level == level for f in findings) for level in MARKS}
    talk(
        f"{len(findings)} findings: {count['ok']} ok, {count['note']} notes, "
        f"{count['warn']} warnings, {count['fail']} failed"
    )
