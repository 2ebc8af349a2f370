"""One look at a duck gives the events that it means, and looking again gives no more."""

from __future__ import annotations

from typing import Any

import pytest
from lifecycle_kit import EXPECTED, OTHER_BUILD, answer, shelf, silence

from duckctl.calibration import Calibration, DuckCalibration
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import DuckRecord, Kind, State, Step, transition
from duckctl.lifecycle.observe import events_of
from duckctl.lifecycle.report import step_seconds
from duckctl.lifecycle.store import StoredEvent
from duckctl.provision.self_test import slow_ducks, to_measure


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Duck:
    return shelf(tmp_path_factory.mktemp("fleet")).ducks[0]


def look(record: DuckRecord, duck: Duck, facts: dict[str, Any], at_s: float = 10.0) -> DuckRecord:
    for event in events_of(record, duck, facts, EXPECTED, at_s):
        record = transition(record, event)
    return record


@pytest.mark.parametrize(
    ("told", "expected"),
    [("idle", "ready"), ("ready", "ready"), ("loading", "loading"), ("serving", "serving")],
)
def test_what_a_duck_does_is_its_state(duck: Duck, told: str, expected: str) -> None:
    """A duck found at work is shown at work, from whatever state it was in."""
    for state in (State.REGISTERED, State.LOST, State.FAILED, State.READY, State.SERVING):
        record = DuckRecord(duck.name, state, Step.DHCP if state is State.FAILED else None)
        assert look(record, duck, answer(duck, state=told)).describe() == expected


def test_a_duck_that_falls_silent_is_lost_with_the_reason(duck: Duck) -> None:
    """The reason is the probe's, without the duck's name in front of it."""
    ready = look(DuckRecord(duck.name), duck, answer(duck))
    lost = look(ready, duck, silence(duck))
    assert (lost.state, lost.reason) == (State.LOST, "does not answer")


def test_silence_while_booting_is_expected(duck: Duck) -> None:
    """A booting duck that does not answer goes on booting."""
    record = DuckRecord(duck.name, State.BOOTING, Step.HELLO)
    assert look(record, duck, silence(duck)).describe() == "booting(hello)"


def test_looking_again_adds_no_event(duck: Duck) -> None:
    """The same answer twice, well or ill, moves the record only once."""
    for facts in (answer(duck), answer(duck, build=OTHER_BUILD), silence(duck)):
        once = look(DuckRecord(duck.name), duck, facts)
        twice = look(once, duck, facts, at_s=20.0)
        assert (twice.describe(), twice.since_s) == (once.describe(), once.since_s)


def test_a_misfit_that_is_cured_is_ready(duck: Duck) -> None:
    """The same boot may be right later: the inventory was corrected."""
    wrong = look(DuckRecord(duck.name), duck, answer(duck, name_told="duck02"))
    assert wrong.describe() == "failed(verify)"
    assert look(wrong, duck, answer(duck), at_s=20.0).describe() == "ready"


def test_another_protocol_version_is_a_misfit(duck: Duck) -> None:
    """It answered, though its INFO cannot be read: not lost, but wrong, in the probe's words."""
    facts = silence(duck) | {
        "reachable": True,
        "error": "speaks protocol version 1",
        "boot_id": "0",
    }
    (event,) = events_of(DuckRecord(duck.name), duck, facts, EXPECTED, 1.0)
    assert (event.kind, event.reason) == (Kind.MISFIT, "speaks protocol version 1")


def test_the_old_boot_says_nothing_while_a_restart_is_awaited(duck: Duck) -> None:
    """T42: the boot that has to end may answer until it ends."""
    record = DuckRecord(duck.name, State.REBOOTING, Step.POWER, boot_id="01", old_boot_id="01")
    assert events_of(record, duck, answer(duck, "01"), EXPECTED, 1.0) == []
    assert look(record, duck, answer(duck, "02")).describe() == "ready"


def test_steps_of_a_boot_are_timed() -> None:
    """The time in each step is from its event to the next; what was before the boot is no step."""

    def event(at_s: float, after: str) -> StoredEvent:
        return StoredEvent(0, at_s, "d1", "x", "", after, "", "")

    told = [
        event(0.0, "registered"),
        event(10.0, "booting(power)"),
        event(10.5, "booting(dhcp)"),
        event(20.0, "booting(hello)"),
        event(19.0, "booting(verify)"),  # the log has whole seconds
        event(19.5, "ready"),
        event(90.0, "rebooting(power)"),
        event(92.0, "booting(verify)"),
        event(92.5, "ready"),
    ]
    assert step_seconds(told) == {
        "d1": {"power": 0.5, "dhcp": 9.5, "hello": 0.0, "verify": 1.0, "going_down": 2.0}
    }


def test_slow_memory_stands_out() -> None:
    """One duck at half the usual rate is named with both figures; a spread of 20 % is usual."""
    rates = {f"d{n}": (20 + n % 3) * 1e9 for n in range(8)}
    assert slow_ducks(rates) == {}
    found = slow_ducks(rates | {"d9": 10e9})
    assert found == {"d9": "reads 10.0 GB/s, the usual duck 21.0"}
    assert slow_ducks({"d1": 1e9, "d2": 20e9}) == {}, "two ducks have no usual one"


@pytest.mark.parametrize(
    ("boot_id", "region_mib", "again"), [("01", 64, False), ("02", 64, True), ("01", 8, True)]
)
def test_a_duck_is_measured_once_per_boot(
    duck: Duck, boot_id: str, region_mib: int, again: bool
) -> None:
    """Figures of another region size do not count: ducks could not be compared."""
    known = Calibration((20e9,), "int", boot_id, 1.0, region_mib)
    record = DuckRecord(duck.name, boot_id="01")
    found = to_measure([duck], {duck.name: record}, {duck.name: DuckCalibration(known, known)})
    assert found == ([duck] if again else [])
