"""Patterns that know the history: ``@failed``, ``@lost``, ``@ready`` beside names and groups."""

from __future__ import annotations

from collections.abc import Mapping

from duckctl.errors import UsageError
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.machine import DuckRecord, State
from duckctl.lifecycle.store import Store, store_path
from duckctl.patterns import select_names

# Groups that are no single state.
MIXED = {"@up": (State.READY, State.LOADING, State.SERVING, State.DRAINING)}


def state_groups(records: Mapping[str, DuckRecord]) -> dict[str, tuple[str, ...]]:
    """``@failed`` and the like, for every state, empty ones too."""
    wanted = {f"@{state}": (state,) for state in State} | MIXED
    return {
        group: tuple(name for name, record in records.items() if record.state in states)
        for group, states in wanted.items()
    }


def choose(fleet: Fleet, pattern: str) -> list[Duck]:
    """The ducks that a pattern means, in slot order. The history is read only for an ``@``."""
    names = [duck.name for duck in fleet.ducks]
    groups = dict(fleet.groups)
    if "@" in pattern:
        if store_path(fleet).exists():
            with Store(store_path(fleet), read_only=True) as store:
                records = store.states(names)
        else:
            records = {name: DuckRecord(name) for name in names}
        groups |= state_groups(records)
        empty = [term for term in groups if term in pattern.split() and not groups[term]]
        if empty and pattern.strip() == empty[0]:
            raise UsageError(f"no duck is {empty[0].removeprefix('@')}", "see: duckctl status")
    chosen = set(select_names(pattern, names, groups))
    return [duck for duck in fleet.ducks if duck.name in chosen]
