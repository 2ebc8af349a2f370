"""One run of `duckctl provision` or `duckctl reboot`: look, plan, act, report.

Nothing is kept for a later run but the history (lifecycle.store): a run that is killed at any
moment is gone on with by running the same command again.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duckctl.boot.intents import Intents
from duckctl.boot.plan import boot_paths, boots_from_network, plan_boot
from duckctl.boot.ports import port_conflicts
from duckctl.console import warn
from duckctl.errors import ExitCode
from duckctl.health import ProbeError
from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.boot_log import Listener, listen
from duckctl.lifecycle.greet import Greeter
from duckctl.lifecycle.look import Look, look_at
from duckctl.lifecycle.machine import UP, DuckRecord, Limits, State, Step
from duckctl.lifecycle.report import duck_document, step_seconds
from duckctl.lifecycle.store import Store, store_path
from duckctl.provision.crew import PowerHands, ProbeEyes, SystemClock, ladder_names, switched_off
from duckctl.provision.decide import (
    Do,
    DuckPlan,
    Rules,
    Situation,
    plan_duck,
    settle_s,
)
from duckctl.provision.engine import Engine, Senses
from duckctl.provision.show import Show, name_some

LISTEN_PERIOD_S = 0.3
DHCP_PORT = 67


def new_run_id(what: str) -> str:
    """``provision-20261130-081530-3fa1``: sorts by time, and tells two of one second apart."""
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class Survey:
    """What was found before anything was done."""

    look: Look
    records: Mapping[str, DuckRecord]
    ladders: Mapping[str, Sequence[str]]
    plans: tuple[DuckPlan, ...]
    rules: Rules

    @property
    def touched(self) -> list[DuckPlan]:
        return [plan for plan in self.plans if plan.touches]


@dataclass(frozen=True)
class RunResult:
    """What a run came to. ``steps``: how long each duck was in each step of its boot."""

    run: str
    plans: tuple[DuckPlan, ...]
    records: Mapping[str, DuckRecord]
    seconds: float
    notes: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Ducks that are not up though they should be."""
        return [name for name in self._counted if self.records[name].state not in UP]

    @property
    def exit_code(self) -> ExitCode:
        """0: all are up; 3: some are not; 1: none is. Ducks in maintenance do not count."""
        if not self.failed:
            return ExitCode.OK
        return ExitCode.PARTIAL if len(self.failed) < len(self._counted) else ExitCode.FAILURE

    @property
    def _counted(self) -> list[str]:
        """A duck may have been put into maintenance after the plan was made."""
        names = [plan.duck.name for plan in self.plans if plan.do is not Do.LEAVE]
        return [name for name in names if self.records[name].state is not State.MAINTENANCE]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "run": self.run,
            "seconds": round(self.seconds, 1),
            "failed": self.failed,
            "restarted": [plan.duck.name for plan in self.plans if plan.touches],
            "ducks": [
                {
                    **duck_document(plan.duck, self.records[plan.duck.name]),
                    "action": str(plan.do),
                    "why": plan.why,
                    "note": self.notes.get(plan.duck.name),
                    "step_seconds": {
                        step: round(seconds, 1)
                        for step, seconds in self.steps.get(plan.duck.name, {}).items()
                    },
                }
                for plan in self.plans
            ],
        }


class LogEars:
    """Hears by the boot service's logs, at most a few times per second."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self._listener = Listener(fleet, store)
        self._heard_s = 0.0

    def listen(self) -> None:
        now_s = time.monotonic()
        if now_s - self._heard_s >= LISTEN_PERIOD_S:
            self._heard_s = now_s
            self._listener.listen()


def survey(
    fleet: Fleet, store: Store | None, ducks: Sequence[Duck], limits: Limits, restart_all: bool
) -> Survey:
    """Looks at the ducks and plans. With ``store`` None nothing is written, nor waited for."""
    names = [duck.name for duck in ducks]
    if store is not None:
        listen(fleet, store)
        records = store.states(names)
        # An earlier run may have asked for a restart a moment ago: let it take effect first.
        time.sleep(settle_s(list(records.values()), time.time()))
    else:
        records = read_states(fleet, names)
    look = look_at(fleet, ducks) if store is not None else _look_without_trace(fleet, ducks)
    if store is not None:
        Greeter(fleet).greet_all(ducks, records, look.answers, time.time())
    rules = Rules(look.expected, limits, restart_all)
    ladders = {duck.name: ladder_names(duck, fleet) for duck in ducks}
    unsure = [duck for duck in ducks if _is_unsure(records[duck.name], look.answers[duck.name])]
    off, images = switched_off(unsure, fleet), _other_images(fleet)
    situations = [
        Situation(
            *(duck, records[duck.name], look.answers[duck.name], ladders[duck.name]),
            is_off=duck.name in off,
            other_image=images.get(duck.name, ""),
        )
        for duck in ducks
    ]
    now_s = time.time()
    plans = tuple(plan_duck(situation, rules, now_s) for situation in situations)
    return Survey(look, records, ladders, plans, rules)


def _other_images(fleet: Fleet) -> dict[str, str]:
    """What the next boot brings up, by duck, where `duckctl boot set` named an image."""
    intents = Intents(boot_paths(fleet).intents).read()
    return {name: i.image for name, i in intents.items() if i.action == "image" and i.image}


def _look_without_trace(fleet: Fleet, ducks: Sequence[Duck]) -> Look:
    """For a preview: pins no key; a host that is not set up yet reaches no duck."""
    try:
        return look_at(fleet, ducks, extra=("--no-pin",))
    except ProbeError as error:
        warn(f"no duck could be asked: {error.message}")
    silent = {"reachable": False, "error": "could not be asked"}
    return Look("", {duck.name: {"name": duck.name, **silent} for duck in ducks})


def _is_unsure(record: DuckRecord, facts: Mapping[str, Any]) -> bool:
    """It was to be switched when a run ended: nobody knows whether that was done."""
    was_asked = record.state is State.BOOTING and record.step is Step.POWER
    return was_asked and not facts["reachable"]


def read_states(fleet: Fleet, names: Sequence[str]) -> dict[str, DuckRecord]:
    """The records as they are, without making or changing the state file."""
    if not store_path(fleet).exists():
        return {name: DuckRecord(name) for name in names}
    with Store(store_path(fleet), read_only=True) as store:
        return store.states(names)


def away_from_network(fleet: Fleet, plans: Sequence[DuckPlan]) -> dict[str, str]:
    """Ducks that are about to be started and would not get their image: name -> why."""
    intents = Intents(boot_paths(fleet).intents).read()
    found = {}
    for plan in plans:
        intent = intents.get(plan.duck.name)
        if intent is None or not boots_from_network(plan.duck):
            continue
        if plan.touches and intent.action != "image":
            reason = f" ({intent.reason})" if intent.reason else ""
            found[plan.duck.name] = f"its boot intent is '{intent.action}'{reason}"
    return found


def nobody_answers_boots(fleet: Fleet, plans: Sequence[DuckPlan]) -> bool:
    """True if ducks are to boot from the network and no DHCP server runs on the host, this one."""
    if fleet.host is not None and fleet.host.ansible.get("ansible_connection") != "local":
        return False
    awaited = (Do.RESTART, Do.SWITCH, Do.WAIT, Do.BY_HAND)
    if not any(plan.do in awaited and boots_from_network(plan.duck) for plan in plans):
        return False
    return not any(owner.port == DHCP_PORT for owner in port_conflicts(plan_boot(fleet)))


def arm(fleet: Fleet, names: Sequence[str]) -> None:
    """Lets these ducks boot their image once; what stood there before is back at their hello."""
    intents = Intents(boot_paths(fleet).intents)
    for name in names:
        intents.set_image(name, None, one_shot=True, reason="provision")


def prepare(fleet: Fleet, plans: Sequence[DuckPlan]) -> None:
    """Says what a person has to do, and lets ducks boot from the network that would not."""
    by_hand = [plan.duck.name for plan in plans if plan.do is Do.BY_HAND]
    if by_hand:
        warn(f"switch on by hand, with network boot first: {name_some(by_hand)}")
    if nobody_answers_boots(fleet, plans):
        warn(
            "no DHCP server runs on this host: start the boot service, or ducks will wait in vain "
            f"(duckctl boot serve --inventory {fleet.path})"
        )
    away = away_from_network(fleet, plans)
    for name, why in away.items():
        warn(f"{name}: {why}; it boots its image once for this run")
    arm(fleet, list(away))


class Runner:
    """Acts on plans, in one go or in batches, and tells how it goes."""

    def __init__(self, fleet: Fleet, store: Store, found: Survey, show: Show) -> None:
        self._fleet, self._store, self._found, self._show = fleet, store, found, show
        self._first = max((event.number for event in store.events(last=1)), default=0)
        self._greeter = Greeter(fleet, warn)
        self._senses = Senses(
            ProbeEyes(fleet), PowerHands(fleet), LogEars(fleet, store), SystemClock()
        )
        self.records: dict[str, DuckRecord] = dict(found.records)

    def run(self, plans: Sequence[DuckPlan]) -> None:
        """Blocks until these ducks are up, have failed, or are left alone."""
        found = self._found
        engine = Engine(
            *(self._store, self._senses, found.rules.expected, found.rules.limits),
            on_change=self._show.change,
            on_answer=self._greeter.greet,
        )
        try:
            engine.run(plans, found.ladders, found.look.answers)
        finally:
            with contextlib.suppress(AttributeError):
                self.records |= engine.records

    def steps(self) -> dict[str, dict[str, float]]:
        """How long each duck was in each step since this began."""
        return step_seconds(self._store.events(after=self._first))


def explain_failures(fleet: Fleet, records: Mapping[str, DuckRecord]) -> dict[str, DuckRecord]:
    """Adds to a failed duck's reason that the boot service holds it back, where it does."""
    intents = Intents(boot_paths(fleet).intents).read()
    found = dict(records)
    for name, record in records.items():
        intent = intents.get(name)
        if record.state is State.FAILED and intent is not None and intent.action == "held":
            found[name] = replace(record, reason=f"{record.reason}; held: {intent.reason}")
    return found
