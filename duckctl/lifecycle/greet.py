"""Tells the boot service which ducks came up: what was set for one boot ends there, and loops are
counted anew.

A duck came up when a boot answers that was not seen before. It ends only what was set before it
began: what is set while a duck runs is for its next boot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duckctl.boot.intents import Intents
from duckctl.boot.plan import boot_paths, boots_from_network
from duckctl.console import detail
from duckctl.errors import DuckError
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord, State


class Greeter:
    """``tell`` is told once why the boot service's files cannot be written; ducks are up also
    then."""

    def __init__(self, fleet: Fleet, tell: Callable[[str], None] = detail) -> None:
        self._intents = Intents(boot_paths(fleet).intents)
        self._tell = tell
        self._told = False

    def greet(self, duck: Duck, record: DuckRecord, facts: Mapping[str, Any], at_s: float) -> None:
        """One answer; ``record``: what was known before it, ``at_s``: when it came, in seconds
        since 1970."""
        if _is_new(duck, record, facts):
            self._say_hello(duck, _began_s(facts, at_s))

    def greet_all(
        self,
        ducks: Sequence[Duck],
        records: Mapping[str, DuckRecord],
        answers: Mapping[str, Mapping[str, Any]],
        at_s: float,
    ) -> None:
        """Many answers. Also ends what a hello that could not be written has left behind."""
        answering = [duck for duck in ducks if _boot_id(duck, answers[duck.name])]
        if not answering:
            return
        try:
            standing = self._intents.read()
        except DuckError as error:
            self._refused(error)
            return
        for duck in answering:
            facts, intent = answers[duck.name], standing.get(duck.name)
            began_s = _began_s(facts, at_s)
            is_over = intent is not None and intent.ends_by(began_s)
            if is_over or _is_new(duck, records[duck.name], facts):
                self._say_hello(duck, began_s)

    def _say_hello(self, duck: Duck, began_s: float) -> None:
        try:
            self._intents.hello(duck.name, began_s)
        except DuckError as error:
            self._refused(error)

    def _refused(self, error: DuckError) -> None:
        if not self._told:
            why = "; ".join(filter(None, (error.message, error.hint)))
            self._tell(f"the boot service is not told which ducks came up: {why}")
        self._told = True


def _boot_id(duck: Duck, facts: Mapping[str, Any]) -> str:
    """Of a duck that answers and boots from the network; else empty."""
    told = str(facts.get("boot_id") or "") if facts["reachable"] else ""
    return told if told.strip("0") and boots_from_network(duck) else ""


def _is_new(duck: Duck, record: DuckRecord, facts: Mapping[str, Any]) -> bool:
    """In maintenance no boot is written down: each look would take it for a new one."""
    known = ("", record.boot_id, record.old_boot_id)
    return _boot_id(duck, facts) not in known and record.state is not State.MAINTENANCE


def _began_s(facts: Mapping[str, Any], at_s: float) -> float:
    """When the boot that answers began, in seconds since 1970 by this host's clock."""
    return float(facts.get("answered_at") or at_s) - float(facts.get("uptime_s") or 0.0)
