"""The fleet's states as a table and as JSON, shared by status, wait, provision and reboot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from duckctl.errors import ExitCode
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import UP, DuckRecord, State
from duckctl.lifecycle.store import StoredEvent

COLUMNS = ("duck", "domain", "address", "state", "for>", "boots>", "build", "reason")


def age(seconds: float) -> str:
    """``7 s``, ``12 min``, ``3 h``, ``5 d``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def row(duck: Duck, record: DuckRecord, now_s: float) -> tuple[object, ...]:
    """One line of the table."""
    return (
        *(duck.name, duck.domain.name, f"{duck.address}:{duck.port}", record.describe()),
        age(now_s - record.since_s) if record.since_s else "-",
        record.boots or "-",
        record.build[:8] or "-",
        record.reason or "-",
    )


def duck_document(duck: Duck, record: DuckRecord) -> dict[str, Any]:
    """One duck as JSON has it."""
    return {
        "name": duck.name,
        "domain": duck.domain.name,
        "address": str(duck.address),
        "port": duck.port,
        "mac": duck.mac,
        "image": duck.image,
        "state": str(record.state),
        "step": str(record.step) if record.step else None,
        "reason": record.reason or None,
        "since": record.since_s or None,
        "seen": record.seen_s or None,
        "boot_id": record.boot_id or None,
        "build": record.build or None,
        "boots": record.boots,
        "attempts": record.attempts,
        "verified": record.verified,
    }


def event_document(event: StoredEvent) -> dict[str, Any]:
    """One event as JSON has it."""
    return {
        "number": event.number,
        "time": event.at_s,
        "duck": event.duck,
        "event": event.kind,
        "before": event.before,
        "after": event.after,
        "reason": event.reason or None,
        "run": event.run or None,
    }


def counts(records: Mapping[str, DuckRecord]) -> dict[str, int]:
    """How many ducks are in which state, in the order of a duck's life."""
    found = Counter(record.state for record in records.values())
    return {str(state): found[state] for state in State if found[state]}


def summary_line(records: Mapping[str, DuckRecord]) -> str:
    """``30 ready, 1 lost, 1 failed``."""
    return ", ".join(f"{count} {state}" for state, count in counts(records).items()) or "no ducks"


def step_seconds(events: Sequence[StoredEvent]) -> dict[str, dict[str, float]]:
    """How long each duck was in each state of its boot; of a step that it was in twice, the sum.

    Times of the boot service's log are whole seconds.
    """
    spent: dict[str, dict[str, float]] = {}
    last: dict[str, StoredEvent] = {}
    for event in events:
        before = last.get(event.duck)
        if before is not None and before.after.startswith(("booting", "rebooting")):
            steps = spent.setdefault(event.duck, {})
            name = before.after.removeprefix("booting(").removesuffix(")")
            name = "going_down" if name.startswith("rebooting") else name
            steps[name] = steps.get(name, 0.0) + max(0.0, event.at_s - before.at_s)
        last[event.duck] = event
    return spent


def exit_code(records: Sequence[DuckRecord]) -> ExitCode:
    """0: all are up (those in maintenance do not count); 3: some are; 4: none is."""
    counted = [record for record in records if record.state is not State.MAINTENANCE]
    up = sum(record.state in UP for record in counted)
    if up == len(counted):
        return ExitCode.OK
    return ExitCode.PARTIAL if up else ExitCode.UNREACHABLE
