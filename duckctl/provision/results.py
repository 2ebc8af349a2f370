"""What a run prints at its end and before it begins: plans, summary, exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duckctl.console import print_json, print_table, talk, warn
from duckctl.lifecycle.machine import UP, Step
from duckctl.lifecycle.report import age, summary_line
from duckctl.provision.decide import Do, DuckPlan
from duckctl.provision.images import ImageStep, describe
from duckctl.provision.run import RunResult

# In this order in the summary of a plan.
VERBS = {
    Do.KEEP: "stay as they are",
    Do.RESTART: "are restarted",
    Do.SWITCH: "are switched on, or off and on",
    Do.WAIT: "are waited for",
    Do.BY_HAND: "have to be switched on by hand",
    Do.REPORT: "cannot be helped",
    Do.LEAVE: "are left alone",
}


def print_plan(
    plans: Sequence[DuckPlan],
    images: Sequence[ImageStep],
    host: str,
    intents: Mapping[str, str],
    as_json: bool,
) -> None:
    """What a run would do; nothing has been done."""
    if as_json:
        print_json(
            {
                "dry_run": True,
                "images": [{"name": i.name, "builds": i.builds, "why": i.why} for i in images],
                "host": host,
                "ducks": [
                    {
                        "name": plan.duck.name,
                        "action": str(plan.do),
                        "why": plan.why,
                        "boots": plan.boots or None,
                        "note": intents.get(plan.duck.name),
                    }
                    for plan in plans
                ],
            }
        )
        return
    for step in images:
        talk(describe(step))
    talk(f"host: {host}")
    rows = [(p.duck.name, p.do, p.boots or "-", _why(p, intents)) for p in plans]
    print_table("", ("duck", "action", "boots", "why"), rows)
    for do, verb in VERBS.items():
        count = sum(plan.do is do for plan in plans)
        if count:
            talk(f"{count} {verb}")


def _why(plan: DuckPlan, intents: Mapping[str, str]) -> str:
    note = intents.get(plan.duck.name)
    return f"{plan.why}; {note}" if note else plan.why


# Where to look when a duck failed at a step; {duck} is the first such duck.
HINTS = {
    Step.POWER: "its switch: duckctl power status {duck}",
    Step.DHCP: "network boot in its firmware, its cable, another card (duckctl discover)",
    Step.BOOT_FILE: "what it asked for and would be answered: duckctl explain {duck}",
    Step.IMAGE: "what it asked for and would be answered: duckctl explain {duck}",
    Step.HELLO: "its screen or serial line; UDP port 7211 between host and duck",
}


def hints_for(result: RunResult) -> list[str]:
    """One hint per step at which ducks failed."""
    first: dict[Step, str] = {}
    for name in result.failed:
        step = result.records[name].step
        if step in HINTS:
            first.setdefault(step, name)
    return [f"failed({step}): {HINTS[step].format(duck=name)}" for step, name in first.items()]


def _row(plan: DuckPlan, result: RunResult) -> tuple[object, ...]:
    name = plan.duck.name
    record, steps = result.records[name], result.steps.get(name, {})
    took = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in steps.items() if seconds >= 0.5)
    note = record.reason or result.notes.get(name)
    return (name, plan.do, record.describe(), took or "-", note or "-")


def print_result(result: RunResult, as_json: bool) -> None:
    """The end of a run: one line per duck that is not up, and the sum."""
    if as_json:
        print_json(result.document())
    else:
        columns = ("duck", "action", "state", "boot took", "note")
        print_table("", columns, [_row(plan, result) for plan in result.plans])
    for name in result.failed:
        record = result.records[name]
        warn(f"{name} is {record.describe()}: {record.reason or 'no reason is known'}")
    for hint in hints_for(result):
        talk(f"  hint: {hint}")
    up = sum(record.state in UP for record in result.records.values())
    talk(
        f"{up} of {len(result.plans)} ducks are up after {age(result.seconds)} "
        f"({summary_line(result.records)}); run {result.run}"
    )
