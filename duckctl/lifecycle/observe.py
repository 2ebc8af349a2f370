"""From one look at a duck to the events that it means. Pure: the probe looks, the store records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duckctl.inventory import Duck
from duckctl.lifecycle.machine import DuckRecord, Event, Kind, State
from duckctl.lifecycle.verify import Expectation, problems_of

# What the duck says of itself -> what that means for its life.
ACTIVITY = {
    "idle": Kind.IDLE,
    "ready": Kind.IDLE,  # weights are there, no session
    "faulted": Kind.IDLE,
    "loading": Kind.LOAD,
    "serving": Kind.SERVE,
}


def events_of(
    record: DuckRecord, duck: Duck, facts: Mapping[str, Any], expected: Expectation, at_s: float
) -> list[Event]:
    """The events of one probe answer, in order. Looking twice at the same duck gives no more."""
    if not facts["reachable"]:
        return [Event(Kind.SILENT, at_s, error_of(facts) or "does not answer")]
    boot_id = str(facts.get("boot_id") or "")
    if not boot_id.strip("0"):  # it answered with another protocol version: no INFO to read
        return [Event(Kind.MISFIT, at_s, error_of(facts) or "speaks another protocol version")]
    if record.old_boot_id == boot_id and record.state in (State.BOOTING, State.REBOOTING):
        return []  # it has not gone down yet
    events = []
    problems = problems_of(duck, facts, expected)
    is_known_misfit = record.state is State.FAILED and record.boot_id == boot_id and problems
    if not is_known_misfit:
        events.append(Event(Kind.HELLO, at_s, boot_id=boot_id, build=str(facts["build"])))
    if problems:
        return [*events, Event(Kind.MISFIT, at_s, "; ".join(problems))]
    activity = ACTIVITY.get(str(facts["state"]))
    events.append(Event(Kind.VERIFIED, at_s))
    if activity is not None:
        events.append(Event(activity, at_s))
    return events


def error_of(facts: Mapping[str, Any]) -> str:
    """The probe's words without the duck's name, which the reader has in front of him."""
    name, words = facts.get("name"), str(facts.get("error") or "")
    return words.removeprefix(f"{name} ({facts.get('endpoint')}) ").removeprefix(f"{name}: ")
