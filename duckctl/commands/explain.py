"""``duckctl explain``: what a duck would be answered at boot, and what it last asked for."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from duckctl.console import print_json, print_table, talk
from duckctl.errors import UsageError
from duckctl.inventory import select
from duckctl.inventory_choice import choose_inventory

if TYPE_CHECKING:
    from duckctl.boot.answers import BootAnswer
    from duckctl.boot.plan import BootPlan
    from duckctl.inventory import Duck

app = typer.Typer()

HTTP_PORT = typer.Option(80, "--http-port", min=1, max=65535, help="As given to `boot serve`.")


@app.command()
def explain(
    name: str = typer.Argument(help="A duck."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    http_port: int = HTTP_PORT,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Say what a duck would be answered, by every kind of firmware, and what it last asked for.

    \b
    Examples:
      duckctl explain duck03
      duckctl explain duck03 --inventory inventory/rack32.yml --json
    """
    from duckctl.boot.explain import explain_duck, last_asked, last_found
    from duckctl.boot.follow import read_log
    from duckctl.boot.plan import BootPolicy, plan_boot
    from duckctl.boot.watch import read_findings

    plan = plan_boot(choose_inventory(inventory), BootPolicy(http_port=http_port))
    found = select(plan.fleet, name)
    if len(found) != 1:
        raise UsageError(f"'{name}' means {len(found)} ducks; explain takes one")
    duck = found[0]
    answers = explain_duck(plan, duck)
    events = last_asked(read_log(plan.fleet, plan.paths), duck)
    findings = last_found(read_findings(plan.paths.findings), duck)
    if as_json:
        print_json(
            {
                "duck": duck.name,
                "mac": duck.mac,
                "mode": plan.mode_of(duck.domain),
                "intent": asdict(plan.intent_of(duck)),
                "image": plan.image_name_of(duck),
                "answers": [
                    {"asker": e.asker, "arch": e.arch, "ipxe": e.ipxe, **_answer(e.answer)}
                    for e in answers
                ],
                "last": [asdict(event) for event in events],
                "findings": [asdict(finding) for finding in findings],
            }
        )
        return
    talk(_title(plan, duck))
    rows = [
        (e.asker, "-" if e.arch is None else e.arch, e.answer.action, e.answer.file or "-",
         e.answer.reason)
        for e in answers
    ]  # fmt: skip
    print_table("would be answered", ("asker", "arch>", "answer", "boot file", "why"), rows)
    last = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.time)), e.kind,
         "-" if e.arch is None else e.arch, e.address or "-", e.file or "-", e.text)
        for e in events
    ]  # fmt: skip
    if last:
        print_table("last asked", ("time", "what", "arch>", "address", "file", ""), last)
    else:
        talk(f"{duck.name} has not asked for anything yet (log: {plan.paths.dnsmasq_log})")
    if findings:
        told = [(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(f.time)), f.kind, f.text)
                 for f in findings]  # fmt: skip
        print_table("found out", ("time", "what", ""), told)


def _title(plan: BootPlan, duck: Duck) -> str:
    intent = plan.intent_of(duck)
    what = f"boots {plan.image_name_of(duck)}" if intent.action == "image" else intent.action
    once = " once" if intent.one_shot else ""
    mode = plan.mode_of(duck.domain)
    return f"{duck.name}: {duck.mac or 'no MAC'}, {duck.domain.name} ({mode}), {what}{once}"


def _answer(answer: BootAnswer) -> dict[str, Any]:
    return {
        "action": answer.action,
        "address": str(answer.address) if answer.address else None,
        "server": str(answer.server) if answer.server else None,
        "file": answer.file or None,
        "stage": answer.stage or None,
        "image": answer.image or None,
        "reason": answer.reason,
    }
