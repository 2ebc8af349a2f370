"""Brings ducks up: one loop that hears, looks, switches, waits with deadlines, and writes it down.

Everything slow (probes, power switches) runs elsewhere and is asked for its results; the loop alone
decides and writes the history. What it decides from is in the history, so a run that was killed
is gone on with by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duckctl.boot.plan import boots_from_network
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import (
    UP,
    WAITED_FOR,
    WAITING,
    DuckRecord,
    Event,
    Kind,
    Limits,
    State,
    Step,
)
from duckctl.lifecycle.observe import events_of
from duckctl.lifecycle.store import Store
from duckctl.lifecycle.verify import Expectation
from duckctl.provision.decide import Do, DuckPlan

TURN_S = 0.1
LOOK_SOON_S = 1.0  # between two looks at a duck that may answer any moment
LOOK_LATE_S = 5.0  # at one whose boot the log tells of
LOOK_DUCKS_MAX = 64  # of one host transport
LOOKS_AT_ONCE = 2
# A serving host loads a duck that is back, beginning within seconds; 23 GB take minutes.
RELOAD_BEGIN_S = 30.0
RELOAD_S = 900.0
BY_HAND_S = 900.0  # a person walks to the shelf and switches boxes on
PROTOCOL = "reboot"  # its name in the inventory
FELL_SILENT = "it was up, and fell silent during the run"


class Clock(Protocol):
    """Wall time for the history, monotonic time for deadlines."""

    def wall_s(self) -> float: ...

    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Eyes(Protocol):
    """Looks at ducks in the background."""

    def look(self, ducks: Sequence[Duck]) -> None:
        """Begin to look at some ducks; the answers come by ``seen``."""

    def seen(self) -> list[tuple[list[str], Mapping[str, Any] | None]]:
        """Finished looks: the names asked for, and the probe's document (None: it failed)."""


@dataclass(frozen=True)
class Means:
    """One way to bring a duck up: the protocol, or a power backend by its place in the ladder.

    The name alone would not do: a duck may have two backends of one kind.
    """

    backend: str
    rung: int = -1


class Hands(Protocol):
    """Restarts and switches ducks in the background."""

    def restart(self, ducks: Sequence[Duck]) -> None:
        """Ask by protocol."""

    def switch(self, duck: Duck, means: Means) -> None:
        """Use the power backend that ``means`` names."""

    def done(self) -> list[tuple[str, str]]:
        """Finished jobs: the duck, and why it did not work (empty: it did)."""


BY_PROTOCOL = Means(PROTOCOL)
# The duck, what was known of it before, what it told, and when (seconds since 1970).
OnAnswer = Callable[[Duck, DuckRecord, Mapping[str, Any], float], None]


class Ears(Protocol):
    """Hears what booting boxes ask for."""

    def listen(self) -> None:
        """Write down what was heard since the last time (anybody may listen, and write)."""


@dataclass
class Course:
    """One duck in a run. ``means``: what is left to try, in order. Times are monotonic."""

    plan: DuckPlan
    record: DuckRecord
    means: list[Means]
    entered_s: float
    reload: bool = False  # it served before: wait until it does again
    busy: bool = False  # a switch is at work
    looked_s: float = -1e9
    looking: bool = False
    settled: bool = False
    failure: DuckRecord | None = None  # when it was given up


@dataclass(frozen=True)
class Senses:
    """Everything around the loop."""

    eyes: Eyes
    hands: Hands
    ears: Ears
    clock: Clock


class Engine:
    """Works through plans until every duck is up, has failed, or is left alone."""

    def __init__(
        self,
        store: Store,
        senses: Senses,
        expected: Expectation,
        limits: Limits,
        on_change: Callable[[Duck, DuckRecord], None] = lambda _duck, _record: None,
        on_answer: OnAnswer = lambda _duck, _record, _facts, _at_s: None,
    ) -> None:
        """``on_change``: a record is another now. ``on_answer``: a duck answered."""
        self._store = store
        self._eyes, self._hands = senses.eyes, senses.hands
        self._ears, self._clock = senses.ears, senses.clock
        self._expected = expected
        self._limits = limits
        self._on_change, self._on_answer = on_change, on_answer
        self._courses: dict[str, Course] = {}
        self._looks = 0
        self._newest = 0  # event that was taken into account

    def run(
        self,
        plans: Sequence[DuckPlan],
        ladders: Mapping[str, Sequence[str]],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Blocks until all are settled.

        ``ladders``: usable power backends by duck, in order. ``answers``: what the look said from
        which the plans were made.
        """
        self._begin(plans, ladders, answers)
        while not all(course.settled for course in self._courses.values()):
            if not self.turn():
                self._clock.sleep(TURN_S)

    # ---- the beginning -------------------------------------------------------------------------

    def _begin(
        self,
        plans: Sequence[DuckPlan],
        ladders: Mapping[str, Sequence[str]],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> None:
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        self._newest = max((event.number for event in self._store.events(last=1)), default=0)
        records = self._store.states([plan.duck.name for plan in plans])
        self._courses = {}
        for plan in plans:
            name = plan.duck.name
            record = records[name]
            ladder = [Means(backend, rung) for rung, backend in enumerate(ladders.get(name, ()))]
            switches = [means for means in ladder if means.backend != PROTOCOL]
            means = [BY_PROTOCOL] if plan.do is Do.RESTART else []
            if plan.do not in (Do.KEEP, Do.LEAVE, Do.REPORT, Do.BY_HAND):
                means += [switch for switch in switches for _ in range(2)]
            # A wait that an earlier run began goes on; a clock that was set back starts it anew.
            waited_s = max(0.0, wall_s - record.since_s) if record.state in WAITING else 0.0
            serves = answers.get(name, {}).get("state") == "serving"
            self._courses[name] = Course(plan, record, means, now_s - waited_s, reload=serves)
        at_s = self._clock.wall_s()
        self._apply([(plan.duck.name, event) for plan in plans for event in _opening(plan, at_s)])
        kept = [plan for plan in plans if plan.do is Do.KEEP]
        self._apply(
            [item for plan in kept for item in self._judge(answers[plan.duck.name], plan.duck.name)]
        )
        for course in self._courses.values():
            self._settle(course)
        self._try_next([c for c in self._courses.values() if c.plan.touches])

    # ---- the loop ------------------------------------------------------------------------------

    def turn(self) -> bool:
        """One round; True if something happened."""
        self._ears.listen()
        failed = self._take(self._news())
        events = self._see() + self._feel()
        failed += self._apply(events)
        failed += self._apply(self._expire())
        self._try_next(failed)
        self._look()
        return bool(events or failed)

    def _news(self) -> dict[str, DuckRecord]:
        """Records that were changed: by what was heard, here or by another command."""
        news = self._store.events(after=self._newest)
        if not news:
            return {}
        self._newest = news[-1].number
        names = {event.duck for event in news} & self._courses.keys()
        return self._store.states(sorted(names))

    def _see(self) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        for names, document in self._eyes.seen():
            self._looks = max(0, self._looks - 1)
            for name in self._courses.keys() & names:  # a batch before may have asked for others
                course = self._courses[name]
                course.looking, course.looked_s = False, self._clock.now_s()
            for facts in (document or {}).get("ducks", ()):
                if facts["name"] in self._courses:
                    events += self._judge(facts, facts["name"])
        return events

    def _judge(self, facts: Mapping[str, Any], name: str) -> list[tuple[str, Event]]:
        course, at_s = self._courses[name], self._clock.wall_s()
        self._on_answer(course.plan.duck, course.record, facts, at_s)
        events = events_of(course.record, course.plan.duck, facts, self._expected, at_s)
        return [(name, event) for event in events]

    def _feel(self) -> list[tuple[str, Event]]:
        """The results of switches."""
        events = []
        for name, problem in self._hands.done():
            if name not in self._courses:
                continue  # it came back before its switch was through, in a batch before
            self._courses[name].busy = False
            kind = Kind.FAIL if problem else Kind.POWERED
            events.append((name, Event(kind, self._clock.wall_s(), problem)))
        return events

    def _expire(self) -> list[tuple[str, Event]]:
        events = []
        now_s = self._clock.now_s()
        for name, course in self._courses.items():
            record = course.record
            if record.is_up and not course.settled:
                self._settle(course)
            elif self._is_stray(course) and now_s - course.entered_s > self._limits.verify:
                events.append((name, Event(Kind.FAIL, self._clock.wall_s(), FELL_SILENT)))
            if course.settled or course.busy or record.state not in WAITING or not record.step:
                continue
            limit_s = self._limits.of(record.step)
            if course.plan.do is Do.BY_HAND and record.step is Step.DHCP:
                limit_s = max(limit_s, BY_HAND_S)
            if now_s - course.entered_s < limit_s:
                continue
            reason = f"{WAITED_FOR[record.step]} (waited {limit_s:.0f} s)"
            events.append((name, Event(Kind.DEADLINE, self._clock.wall_s(), reason)))
        return events

    def _apply(self, events: Sequence[tuple[str, Event]]) -> list[Course]:
        """Writes events down; gives the courses that have failed by them."""
        return self._take(self._store.record_all(events))

    def _take(self, records: Mapping[str, DuckRecord]) -> list[Course]:
        """Goes on with new records; gives the courses that have failed."""
        failed = []
        for name, record in records.items():
            course = self._courses[name]
            before, course.record = course.record, record
            if (before.state, before.step) != (record.state, record.step):
                course.entered_s = self._clock.now_s()
            if before.describe() != record.describe() or before.reason != record.reason:
                self._on_change(course.plan.duck, record)
            if record.state is State.FAILED and not course.settled:
                failed.append(course)
            else:
                if before.is_up and record.state in WAITING:
                    course.settled = False  # it was up, and has started again by itself
                self._settle(course)
        return failed

    def _settle(self, course: Course) -> None:
        record = course.record
        if course.plan.do is Do.LEAVE or record.state is State.MAINTENANCE:
            course.settled = True
        elif course.plan.do is Do.REPORT:
            course.settled = record.state is State.FAILED
        elif record.is_up and record.verified and not self._is_to_restart(course):
            course.settled = not course.reload or self._is_reloaded(course)

    def _is_reloaded(self, course: Course) -> bool:
        """It serves again, or nobody will make it so."""
        if course.record.state is State.SERVING:
            return True
        limit_s = RELOAD_S if course.record.state is State.LOADING else RELOAD_BEGIN_S
        return self._clock.now_s() - course.entered_s > limit_s

    def _is_stray(self, course: Course) -> bool:
        """Not up, and in no state that has a deadline: it died while the run still needed it."""
        is_nowhere = course.record.state not in (*UP, *WAITING, State.FAILED, State.MAINTENANCE)
        return is_nowhere and not course.settled and not course.busy

    def _is_to_restart(self, course: Course) -> bool:
        """Up still, but its restart has not begun."""
        return course.plan.do is Do.RESTART and BY_PROTOCOL in course.means

    # ---- acting --------------------------------------------------------------------------------

    def _try_next(self, courses: Sequence[Course]) -> None:
        """The next means for ducks that are down or to be restarted; none left: they have failed.

        The history says so before it is done: a run that is killed in between leaves a duck that
        was started without need of a second time. A duck in maintenance is asked nothing: the event
        itself shows whether a person has put it there, up to this moment.
        """
        asked: list[tuple[str, Event]] = []
        chosen: list[tuple[Course, Means]] = []
        for course in courses:
            if course.record.state is State.MAINTENANCE:
                course.settled = True
                continue
            is_final = course.record.state is State.FAILED and course.record.step is Step.VERIFY
            if not course.means or (is_final and BY_PROTOCOL not in course.means):
                course.settled, course.failure = True, course.record
                continue
            means = course.means.pop(0)
            kind = Kind.REBOOT if means == BY_PROTOCOL else Kind.BOOT
            reason = f"{means.backend}: {course.plan.why}"
            if kind is Kind.REBOOT and course.reload:
                asked.append((course.plan.duck.name, Event(Kind.DRAIN, self._clock.wall_s())))
            event = Event(kind, self._clock.wall_s(), reason, course.plan.old_boot_id)
            asked.append((course.plan.duck.name, event))
            chosen.append((course, means))
        self._apply(asked)
        chosen = [item for item in chosen if item[0].record.state is not State.MAINTENANCE]
        for course, _means in chosen:
            course.busy = True
        by_protocol = [course.plan.duck for course, means in chosen if means == BY_PROTOCOL]
        for first in range(0, len(by_protocol), LOOK_DUCKS_MAX):
            self._hands.restart(by_protocol[first : first + LOOK_DUCKS_MAX])
        for course, means in chosen:
            if means != BY_PROTOCOL:
                self._hands.switch(course.plan.duck, means)

    def _look(self) -> None:
        """Looks at the ducks that may answer, those not looked at for longest first."""
        now_s = self._clock.now_s()
        due: list[Course] = []
        for course in self._courses.values():
            if course.settled or course.looking or course.busy:
                continue
            if now_s - course.looked_s >= _look_period_s(course):
                due.append(course)
        due.sort(key=lambda course: (_look_period_s(course), course.looked_s))
        while due and self._looks < LOOKS_AT_ONCE:
            chosen, due = due[:LOOK_DUCKS_MAX], due[LOOK_DUCKS_MAX:]
            for course in chosen:
                course.looking = True
            self._looks += 1
            self._eyes.look([course.plan.duck for course in chosen])

    # ---- what came of it -----------------------------------------------------------------------

    @property
    def records(self) -> dict[str, DuckRecord]:
        """The records of all ducks of the run; of one that was given up, as it was then.

        A box that starts over and over would be "booting" at whatever moment one looks.
        """
        return {
            name: course.failure if course.failure and not course.record.is_up else course.record
            for name, course in self._courses.items()
        }


def _opening(plan: DuckPlan, at_s: float) -> list[Event]:
    """What the plan itself says of a duck, before anything is done."""
    if plan.do is Do.KEEP:
        return [Event(Kind.KEEP, at_s)]
    if plan.do is Do.REPORT:
        kind = Kind.MISFIT if plan.answers else Kind.FAIL
        return [Event(kind, at_s, plan.why)]
    if plan.do is Do.BY_HAND:
        return [Event(Kind.BOOT, at_s, plan.why), Event(Kind.POWERED, at_s)]
    return []


def _look_period_s(course: Course) -> float:
    record = course.record
    if record.state is State.BOOTING and record.step not in (Step.HELLO, Step.VERIFY):
        return LOOK_LATE_S if boots_from_network(course.plan.duck) else LOOK_SOON_S
    return LOOK_SOON_S
