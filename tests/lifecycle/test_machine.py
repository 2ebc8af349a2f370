"""The state machine is total, moves only forward, and ends every wait."""

from __future__ import annotations

import itertools

import pytest

from duckctl.lifecycle.machine import (
    WAITING,
    DuckRecord,
    Event,
    Kind,
    Limits,
    State,
    Step,
    transition,
)

RECORDS = [
    DuckRecord("d", state, step, since_s=100.0, boot_id="a", old_boot_id=old, verified=verified)
    for state in State
    for step in (None, *Step)
    for old in ("", "a")
    for verified in (False, True)
]
BOOT = (
    (Kind.DISCOVER, "discovered"),
    (Kind.REGISTER, "registered"),
    (Kind.BOOT, "booting(power)"),
    (Kind.POWERED, "booting(dhcp)"),
    (Kind.DHCP, "booting(boot_file)"),
    (Kind.BOOT_FILE, "booting(image)"),
    (Kind.IMAGE, "booting(hello)"),
    (Kind.HELLO, "booting(verify)"),
    (Kind.VERIFIED, "ready"),
    (Kind.LOAD, "loading"),
    (Kind.SERVE, "serving"),
    (Kind.IDLE, "ready"),
    (Kind.SILENT, "lost"),
)


def play(record: DuckRecord, *kinds: Kind, boot_id: str = "b", at_s: float = 200.0) -> DuckRecord:
    for number, kind in enumerate(kinds):
        record = transition(record, Event(kind, at_s + number, boot_id=_boot_of(kind, boot_id)))
    return record


def _boot_of(kind: Kind, boot_id: str) -> str:
    return boot_id if kind is Kind.HELLO else ""


def test_a_life_from_power_on_to_lost() -> None:
    """Each event of an ordinary boot leads to the next state, named as status shows it."""
    record = DuckRecord("d")
    for at_s, (kind, expected) in enumerate(BOOT, 1):
        record = transition(record, Event(kind, float(at_s), boot_id=_boot_of(kind, "b")))
        assert record.describe() == expected
        assert record.since_s == at_s


@pytest.mark.parametrize("kind", list(Kind))
def test_every_event_is_answered_in_every_state(kind: Kind) -> None:
    """No combination of state, step and event raises, and waiting states always have a step."""
    for record in RECORDS:
        after = transition(record, Event(kind, 200.0, "why", boot_id="b", build="x"))
        assert isinstance(after, DuckRecord)
        if after.state in WAITING and record.state not in WAITING:
            assert Limits().due_s(after) is not None


def test_every_wait_ends_in_failed_with_its_step() -> None:
    """A deadline turns each waiting state into failed at that step, with a reason in words."""
    for step in Step:
        record = DuckRecord("d", State.BOOTING, step, since_s=100.0)
        after = transition(record, Event(Kind.DEADLINE, 500.0))
        assert (after.state, after.step) == (State.FAILED, step)
        assert len(after.reason) > 20


def test_a_deadline_means_nothing_to_who_does_not_wait() -> None:
    """A late deadline does not hurt a duck that is up meanwhile."""
    record = DuckRecord("d", State.READY, verified=True)
    assert transition(record, Event(Kind.DEADLINE, 500.0)) is record


@pytest.mark.parametrize(
    "order", list(itertools.permutations([Kind.DHCP, Kind.BOOT_FILE, Kind.IMAGE]))
)
def test_a_booting_duck_only_moves_forward(order: tuple[Kind, ...]) -> None:
    """Log lines in any order, or twice, never take a duck back to an earlier step."""
    record = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.POWERED)
    reached = -1
    for kind in (*order, *order):
        record = transition(record, Event(kind, 300.0))
        assert record.step is not None
        place = list(Step).index(record.step)
        assert place >= reached
        reached = place
    assert record.describe() == "booting(hello)"


def test_late_log_lines_do_not_take_a_ready_duck_down() -> None:
    """The log is read behind the probe: what happened before hello means nothing afterwards."""
    record = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED)
    for kind in (Kind.DHCP, Kind.BOOT_FILE, Kind.IMAGE):
        assert play(record, kind, at_s=150.0).state is State.READY


def test_a_ready_duck_that_asks_for_an_address_has_restarted() -> None:
    """A DISCOVER comes from firmware: whatever ran before has ended, also when nobody asked."""
    record = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED)
    after = play(record, Kind.DHCP, at_s=400.0)
    assert (after.describe(), after.verified) == ("booting(boot_file)", False)


def test_t42_only_a_new_boot_id_proves_a_reboot() -> None:
    """A duck that answers with its old boot id has not gone down, however often it answers."""
    up = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED, boot_id="a")
    asked = play(up, Kind.REBOOT, at_s=300.0)
    still = play(asked, Kind.HELLO, Kind.VERIFIED, Kind.HELLO, boot_id="a", at_s=301.0)
    assert still.describe() == "rebooting(power)"
    back = play(still, Kind.HELLO, Kind.VERIFIED, boot_id="b", at_s=310.0)
    assert (back.describe(), back.boots) == ("ready", 2)


def test_t42_a_failed_read_is_no_proof_of_going_down() -> None:
    """One lost answer while the restart is awaited changes nothing: only a new boot id counts."""
    up = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED, boot_id="a")
    asked = play(up, Kind.REBOOT, Kind.SILENT, Kind.HELLO, boot_id="a", at_s=300.0)
    assert asked.describe() == "rebooting(power)"


def test_a_lost_duck_that_answers_with_the_same_boot_is_ready_again() -> None:
    """A pulled cable is no reboot: nothing has to be verified anew."""
    up = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED)
    lost = play(up, Kind.SILENT, at_s=300.0)
    assert lost.state is State.LOST
    assert play(lost, Kind.HELLO, at_s=301.0).state is State.READY


def test_a_lost_duck_that_answers_with_another_boot_is_verified_anew() -> None:
    """It may have booted anything."""
    up = play(DuckRecord("d", State.REGISTERED), Kind.BOOT, Kind.HELLO, Kind.VERIFIED)
    back = play(play(up, Kind.SILENT, at_s=300.0), Kind.HELLO, boot_id="c", at_s=301.0)
    assert back.describe() == "booting(verify)"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.MAINTENANCE_OFF])
def test_nothing_touches_a_duck_in_maintenance(kind: Kind) -> None:
    """Only the end of maintenance ends it; signs of life are noted."""
    record = DuckRecord("d", State.MAINTENANCE, reason="new fan", since_s=100.0)
    after = transition(
        record, Event(kind, 200.0, "x" if kind is not Kind.MAINTENANCE_ON else "new fan")
    )
    assert (after.state, after.reason, after.since_s) == (State.MAINTENANCE, "new fan", 100.0)


def test_limits_can_be_shortened_but_not_lengthened() -> None:
    """--timeout bounds every step, and leaves shorter limits as they are."""
    limits = Limits().at_most(100.0)
    assert (limits.dhcp, limits.power, limits.verify) == (100.0, 60.0, 60.0)
