"""Looks at ducks, as many as there are, and writes down what that means for their lives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duckctl.health import ProbeError, probe_all
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.greet import Greeter
from duckctl.lifecycle.machine import DuckRecord
from duckctl.lifecycle.observe import events_of
from duckctl.lifecycle.store import Store
from duckctl.lifecycle.verify import Expectation

LOOK_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Look:
    """One answer per duck (docs/reference/fleet.md), and the build that they should have."""

    build: str
    answers: Mapping[str, Mapping[str, Any]]

    @property
    def expected(self) -> Expectation:
        return Expectation(self.build)


def look_at(
    fleet: Fleet,
    ducks: Sequence[Duck],
    timeout_s: float = LOOK_TIMEOUT_S,
    extra: Sequence[str] = (),
) -> Look:
    """Asks ducks how they are. Raises ProbeError when the probe itself fails.

    ``extra``: more words for the probe, such as ``--no-pin``.
    """
    try:
        document = probe_all(fleet, ducks, timeout_s, extra)
    except ProbeError as error:
        if "Cannot assign requested address" not in error.message:
            raise
        raise ProbeError(
            f"this machine has not the host's address of every domain: {error.message}",
            f"set the host up: duckctl host setup -i {fleet.path}; a lab of virtual boxes: "
            "duckctl lab exec -- duckctl ...",
        ) from error
    answers = {str(entry["name"]): entry for entry in document["ducks"]}
    return Look(str(document["build"]), answers)


def refresh(
    fleet: Fleet, store: Store, ducks: Sequence[Duck], timeout_s: float = LOOK_TIMEOUT_S
) -> tuple[Look, dict[str, DuckRecord]]:
    """Looks and records; gives the answers and the new records of these ducks."""
    look = look_at(fleet, ducks, timeout_s)
    names = [duck.name for duck in ducks]
    records, at_s = store.states(names), time.time()
    Greeter(fleet).greet_all(ducks, records, look.answers, at_s)
    events = [
        (duck.name, event)
        for duck in ducks
        for event in events_of(
            records[duck.name], duck, look.answers[duck.name], look.expected, at_s
        )
    ]
    return look, {**records, **store.record_all(events)}
