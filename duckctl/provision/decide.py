"""What a run would do with each duck: a pure function of inventory, history and one look.

A duck that answers and is right is never touched. A duck that an earlier run has started and that
is still within its time is only waited for: so a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from duckctl.boot.plan import boots_from_network
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import DuckRecord, Limits, State, Step
from duckctl.lifecycle.observe import error_of
from duckctl.lifecycle.verify import Expectation, needs_new_image, problems_of

# REBOOT is obeyed within 50 ms, and power switches answer within seconds. An answer of the old boot
# this soon after a restart was asked for says nothing.
SETTLE_S = 5.0


class Do(StrEnum):
    """What happens to one duck."""

    KEEP = "keep"  # answers and is right
    RESTART = "restart"  # answers; is asked to restart by protocol, then by its power backends
    SWITCH = "switch"  # is silent; its power backends
    WAIT = "wait"  # was started already, and has time left
    BY_HAND = "by-hand"  # is silent, and nothing can switch it: a person has to
    LEAVE = "leave"  # in maintenance
    REPORT = "report"  # answers, is wrong, and a restart would not help


@dataclass(frozen=True)
class DuckPlan:
    """One duck's part of a plan. ``boots`` names the image that a restart brings up.

    ``old_boot_id``: only another one proves that the duck was restarted; empty: any answer will do.
    """

    duck: Duck
    do: Do
    why: str
    boots: str = ""
    old_boot_id: str = ""
    answers: bool = False

    @property
    def touches(self) -> bool:
        """True if the duck will be restarted or switched."""
        return self.do in (Do.RESTART, Do.SWITCH)


@dataclass(frozen=True)
class Situation:
    """What is known of one duck when a plan is made.

    ``ladder``: its usable power backends. ``is_off``: a switch that can tell says so.
    ``other_image``: what its boot intent names; empty: it boots the inventory's image.
    """

    duck: Duck
    record: DuckRecord
    facts: Mapping[str, Any]
    ladder: Sequence[str]
    is_off: bool = False
    other_image: str = ""

    @property
    def boots(self) -> str:
        """The image that its next boot brings up."""
        return self.other_image or self.duck.image


@dataclass(frozen=True)
class Rules:
    """What the run is for. ``restart_all``: `duckctl reboot`, also those that are right."""

    expected: Expectation
    limits: Limits
    restart_all: bool = False


def plan_duck(situation: Situation, rules: Rules, now_s: float) -> DuckPlan:
    """What to do with one duck."""
    duck, record, facts = situation.duck, situation.record, situation.facts
    if record.state is State.MAINTENANCE:
        note = f" ({record.reason})" if record.reason else ""
        return DuckPlan(duck, Do.LEAVE, f"in maintenance{note}")
    if facts["reachable"]:
        return _plan_answering(situation, rules)
    due_s = rules.limits.due_s(record)
    if due_s is not None and now_s < due_s and not situation.is_off:
        waited = f"{record.describe()} since {max(0.0, now_s - record.since_s):.0f} s"
        return DuckPlan(duck, Do.WAIT, f"was started before: {waited}", situation.boots)
    silent = "does not answer"
    if record.state is State.FAILED and record.step is not None and record.step is not Step.VERIFY:
        silent = f"does not answer, failed before at {record.step}"
    switches = [name for name in situation.ladder if name != "reboot"]
    if not switches and not boots_from_network(duck):
        return DuckPlan(duck, Do.REPORT, f"{silent}, and no power backend can switch it")
    if not switches:
        why = f"{silent}; a person has to switch it on"
        return DuckPlan(duck, Do.BY_HAND, why, situation.boots)
    why = f"{silent}; by {', then '.join(dict.fromkeys(switches))}"
    old_boot_id = record.boot_id if rules.restart_all else record.old_boot_id
    return DuckPlan(duck, Do.SWITCH, why, situation.boots, old_boot_id)


def _plan_answering(situation: Situation, rules: Rules) -> DuckPlan:
    duck, facts = situation.duck, situation.facts
    problems = (
        problems_of(duck, facts, rules.expected)
        if facts.get("build")
        else [error_of(facts) or "speaks another protocol version"]
    )
    boot_id = str(facts.get("boot_id") or "")
    if facts.get("identity_ok") is False:  # it would not obey, and a restart would not cure it
        return DuckPlan(duck, Do.REPORT, "; ".join(problems), answers=True)
    if rules.restart_all:
        return DuckPlan(duck, Do.RESTART, "as asked", situation.boots, boot_id)
    if not problems:
        return DuckPlan(duck, Do.KEEP, "answers and is right")
    if not facts.get("build") or needs_new_image(duck, facts, rules.expected):
        return DuckPlan(duck, Do.RESTART, "; ".join(problems), situation.boots, boot_id)
    return DuckPlan(duck, Do.REPORT, "; ".join(problems), answers=True)


def settle_s(records: Sequence[DuckRecord], now_s: float) -> float:
    """How long to wait before the ducks' answers can be believed: a restart may be under way."""
    waits = [
        record.since_s + SETTLE_S - now_s
        for record in records
        if record.state is State.REBOOTING and record.since_s <= now_s
    ]
    return max([0.0, *waits])


def batches(ducks: Sequence[DuckPlan], serial: str | None) -> list[list[DuckPlan]]:
    """Cuts a rolling restart: ``4`` ducks or ``25%`` at a time (at least one); None: all at once.

    Neighbours in a domain go together only when they must: batches take the domains in turn.
    """
    if not ducks:
        return []
    size = len(ducks) if serial is None else batch_size(serial, len(ducks))
    by_domain: dict[str, list[DuckPlan]] = {}
    for plan in ducks:
        by_domain.setdefault(plan.duck.domain.name, []).append(plan)
    spread: list[DuckPlan] = []
    while by_domain:
        for name in list(by_domain):
            spread.append(by_domain[name].pop(0))
            if not by_domain[name]:
                del by_domain[name]
    return [spread[first : first + size] for first in range(0, len(spread), size)]


def batch_size(serial: str, count: int) -> int:
    """``4`` -> 4; ``25%`` of ``count``, rounded down, at least 1. Raises ValueError."""
    text = serial.strip()
    number = int(text.removesuffix("%"))
    if number < 1 or (text.endswith("%") and number > 100):
        raise ValueError(f"'{serial}' is no number of ducks and no share from 1% to 100%")
    return max(1, count * number // 100) if text.endswith("%") else number
